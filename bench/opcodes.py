"""What a request costs in instructions of Python: the same number on every machine, however busy it is.

Two thirds of a plain answer's CPU time are the interpreter's, so a number that rises by a fifth is a request that got dearer. What
C libraries and the kernel do is not in it: that is for ratios of CPU time to say. Those that a request waits for are most of what
the gateway adds to its latency.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench import gateway
from bench.client import Answered, Client, connect
from bench.rounds import ROWS
from bench.subjects import SubjectFailed, running

_WARM_UP: Final = 200
_SETTLE_S: Final = 20.0


class Opcodes(NamedTuple):
    """Instructions for a request: all of them, and those that it waits for. See `counted.py`."""

    all: float
    waited_for: float


async def opcodes(row_name: str, count: int) -> Opcodes:
    """What a request of this row takes, of `count` that are asked. Raises SubjectFailed where one is not answered well."""
    row = next(row for row in ROWS if row.name == row_name)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        place = Path(folder)
        async with running("direct", ["bench.mock"], core=None) as mock:
            config, routes = gateway.write(place, mock.url)
            arguments = ["bench.counted", str(place / "count"), *gateway.serving(config, routes)[1:]]
            async with running("gateway", arguments, core=None, ready_path="/readyz") as subject:
                url, request = row.target(subject)
                await _ask(url, request, _WARM_UP)
                os.kill(subject.pid, signal.SIGUSR1)
                await _ask(url, request, count)
                os.kill(subject.pid, signal.SIGUSR2)
                counted, waited_for = await _written(place / "count")
                return Opcodes(counted / count, waited_for / count)


async def _written(file: Path) -> list[int]:
    async with asyncio.timeout(_SETTLE_S):
        while True:
            text = file.read_text() if file.exists() else ""  # noqa: ASYNC240 - a few bytes
            if text:
                return [*map(int, text.split())]
            await asyncio.sleep(0.02)


async def _ask(url: str, request: Callable[[], bytes], count: int) -> None:
    """Ask so many requests, one after the other."""
    left, failed = count, 0
    done = asyncio.Event()

    def answered(client: Client, answer: Answered) -> None:
        nonlocal left, failed
        left -= 1
        failed += not answer.ok
        if left and not client.closed:
            client.ask(request())
        else:
            done.set()

    client = await connect(url, answered)
    client.ask(request())
    await done.wait()
    client.close()
    if failed or left:
        raise SubjectFailed(f"{failed + left} of {count} requests failed")
