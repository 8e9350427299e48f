"""`python -m bench.slow`: many slow streams at once, beside a few that are as many events a second.

A thousand streams of one event a second are a thousand events a second, and so are sixteen of one every 16 ms: what an event
of the first costs more than one of the second is the price of having many open. Each subject in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Final, cast

import uvloop

from bench import gateway
from bench.request import requests
from bench.subjects import Cores, Subject, pin, running

_SETTLE_S: Final = 2.0
# How many at once, and the part of the mock that paces them.
KINDS: Final = {"few": (16, "steady"), "many": (1000, "slow")}


class _Stream(asyncio.Protocol):
    """A connection that asks for one stream after the other, and counts events."""

    def __init__(self, request: Callable[[], bytes]) -> None:
        self._request = request
        self._tail = b""
        self.events = 0
        self.failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request())

    def connection_lost(self, _: Exception | None) -> None:
        self.failed = True

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self.failed = True
        self._tail = (self._tail + data)[-8:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self._transport.write(self._request())

    def close(self) -> None:
        """Drop the connection."""
        self._transport.abort()


async def _measured(subject: Subject, kind: str, seconds: float) -> tuple[float, float, int]:
    """CPU microseconds an event, events a second, and how many of the streams failed."""
    count, lane = KINDS[kind]
    path = "/v1" if subject.name == "gateway" else f"/{lane}/v1"
    asking = requests(subject.url + path, stream=True, word=f"lane{lane}")
    loop = asyncio.get_running_loop()
    streams: list[_Stream] = []
    try:
        for number in range(count):
            _, stream = await loop.create_connection(lambda: _Stream(asking), "127.0.0.1", subject.port)
            streams.append(stream)
            # Spread over the pause, as streams are that began when their users liked.
            if number % 10 == 9:
                await asyncio.sleep(10 / count)
        await asyncio.sleep(_SETTLE_S)
        events, cpu, begun = sum(stream.events for stream in streams), subject.cpu_s(), perf_counter()
        await asyncio.sleep(seconds)
        done, used = sum(stream.events for stream in streams) - events, subject.cpu_s() - cpu
        took = perf_counter() - begun
        failed = sum(stream.failed for stream in streams)
    finally:
        for stream in streams:
            stream.close()
    return 1e6 * used / max(done, 1), done / took, failed


async def _run(seconds: float, rounds: int) -> int:
    cores = Cores.of_this_machine()
    pin(0, cores.load)
    failures = 0
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=cores.load))
        config, routes = gateway.write(place, mock.url)
        served = gateway.serving(config, routes)
        subjects: Mapping[str, Subject] = {
            "relay": await stack.enter_async_context(
                running("relay", ["bench.relay", "--upstream", mock.url], core=cores.subject)
            ),
            "gateway": await stack.enter_async_context(
                running("gateway", served, core=cores.subject, ready_path="/readyz")
            ),
        }
        for number in range(rounds):
            for name, subject in subjects.items():
                found = {}
                for kind in KINDS:
                    found[kind], rate, failed = await _measured(subject, kind, seconds)
                    failures += failed
                    print(
                        f"round {number + 1}, {name}, {KINDS[kind][0]} streams: {found[kind]:.1f} µs of CPU an "
                        f"event, {rate:,.0f} events a second, {subject.resident_mb():.0f} MB",
                        flush=True,
                    )
                    await asyncio.sleep(1.0)
                print(f"round {number + 1}, {name}: many / few {found['many'] / found['few']:.2f}", flush=True)
    if failures:
        print(f"{failures} streams failed", file=sys.stderr)
    return int(failures > 0)


def main() -> int:
    """Exit code 0; 1 when streams failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="of all windows (default 3)")
    given = parser.parse_args()
    return uvloop.run(_run(given.seconds, given.rounds))


if __name__ == "__main__":
    sys.exit(main())
