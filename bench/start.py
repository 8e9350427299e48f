"""`python -m bench.start`: seconds from a process's start to its first answers, and what it holds when idle.

Starts alternate between the kinds, so that each sees the same noise. The file cache is warm: one start of each kind is thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

import uvloop

from bench import gateway
from bench.request import KEY, requests
from bench.subjects import ROOT, Cores, Subject, SubjectFailed, free_port, inherited, pin, running, stop

# What decides by meaning in each kind: an encoder's name, or None for none.
KINDS: Final = {"off": None, "minilm": "minilm", "multilingual": "multilingual", "auto": "auto"}
# A rule knows it.
_WORD: Final = "keyword number 7"
# No rule knows them; the first is read by the one space of `auto`, the second by the other.
_MEANT: Final = ("refund my order please", "请把订单的钱退给我")
_LONGEST_S: Final = 60.0
_LOOK_S: Final = 0.005
_SETTLED_S: Final = 1.0


@dataclass(slots=True)
class Starts:
    """Of one kind, one value a start: seconds by the clock, CPU seconds, megabytes."""

    healthy_s: list[float] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    meant_s: list[float] = field(default_factory=list)
    idle_mb: list[float] = field(default_factory=list)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--starts", type=int, default=7, help="of each kind (default 7)")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="encoders (default: all, and none)"
    )
    return parser.parse_args()


async def _run(given: argparse.Namespace) -> int:
    cores = Cores.of_this_machine()
    pin(0, cores.load)
    found = {kind: Starts() for kind in given.kinds}
    async with running("direct", ["bench.mock"], core=cores.load) as mock:
        for number in range(given.starts + 1):
            for kind in given.kinds:
                await _start(kind, mock.url, cores.subject, found[kind] if number else Starts())
    print(f"medians of {given.starts} starts; best in brackets")
    print(f"{'encoder':<14}{'/healthz s':>16}{'answered s':>16}{'CPU s':>16}{'by meaning s':>16}{'idle MB':>10}")
    for kind, of in found.items():
        times = "".join(
            f"{median(values):>9.2f} ({min(values):.2f})" if values else f"{'-':>16}"
            for values in (of.healthy_s, of.answered_s, of.cpu_s, of.meant_s)
        )
        print(f"{kind:<14}{times}{median(of.idle_mb):>10.1f}")
    return 0


async def _start(kind: str, mock: str, core: int | None, found: Starts) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-start-") as place:
        folder = Path(place)
        config, routes = gateway.write(folder, mock, semantic=KINDS[kind] is not None)
        if KINDS[kind] is not None:
            said = json.loads(config.read_text())
            said["router"]["semantic"]["encoder"] = KINDS[kind]
            config.write_text(json.dumps(said))
        began = monotonic()
        async with _served(folder, config, routes, core) as subject:
            await _until(subject, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            found.healthy_s.append(monotonic() - began)
            await _until(subject, _closing(requests(f"{subject.url}/v1", stream=False, word=_WORD)()))
            found.answered_s.append(monotonic() - began)
            found.cpu_s.append(subject.cpu_s())
            if KINDS[kind] is not None:
                for text in _MEANT:
                    while b"encoder_loading" in await _until(subject, _route(text)):
                        await asyncio.sleep(_LOOK_S)
                found.meant_s.append(monotonic() - began)
            await asyncio.sleep(_SETTLED_S)
            found.idle_mb.append(subject.resident_mb())


@asynccontextmanager
async def _served(folder: Path, config: Path, routes: Path, core: int | None) -> AsyncIterator[Subject]:
    """A gateway's process, from its very beginning."""
    port = free_port()
    command = [
        *(sys.executable, "-m", *gateway.serving(config, routes)),
        *("--port", str(port)),
    ]
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env={**inherited(), "PYTHONPATH": str(ROOT)}, stdout=output, stderr=output
        )
        pin(process.pid, core)
        try:
            yield Subject("gateway", process.pid, port)
        finally:
            await stop(process)


async def _until(subject: Subject, request: bytes) -> bytes:
    """Ask until there is an answer of status 200; the answer."""
    async with asyncio.timeout(_LONGEST_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", subject.port)
            except OSError:
                await asyncio.sleep(_LOOK_S)
                continue
            writer.write(request)
            answer = await reader.read()
            writer.close()
            if answer.startswith(b"HTTP/1.1 200"):
                return answer
            raise SubjectFailed(answer[:500].decode(errors="replace"))


def _closing(request: bytes) -> bytes:
    """The same, on a connection that ends with its answer."""
    return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def _route(text: str) -> bytes:
    """Where this text would go, and why."""
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": text}]}).encode()
    head = (
        "POST /v1/route HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> int:
    """Print the figures."""
    return uvloop.run(_run(_options()))


if __name__ == "__main__":
    sys.exit(main())
