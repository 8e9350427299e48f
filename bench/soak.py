"""`python -m bench.soak`: does the gateway's memory stay flat under streamed requests?

Asks until the number is reached, reads the resident size every thousand answers and fits a line through what follows the
warm-up. Exits with 1 where the line climbs too steeply, or an answer was not whole.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Final

from bench import gateway
from bench.client import Answered, Client, connect
from bench.request import requests
from bench.subjects import running

_EVERY: Final = 1000
_CONNECTIONS: Final = 16
# Caches fill and the allocator finds its size in the first part of a run.
_WARM_UP: Final = 0.3


@dataclass
class Soaked:
    """What was measured: the resident size in KiB after each thousand answers, the first value before all of them."""

    sizes_kib: list[int] = field(default_factory=list)
    errors: int = 0

    @property
    def slope_kib(self) -> float:
        """KiB per thousand answers after the warm-up, as a fitted line has it."""
        kept = self.sizes_kib[int(len(self.sizes_kib) * _WARM_UP) :]
        return linear_regression(range(len(kept)), kept).slope if len(kept) > 1 else 0.0


async def soak(total: int) -> Soaked:
    """Let a gateway answer `total` streamed requests."""
    found = Soaked()
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=None))
        config, routes = gateway.write(place, mock.url)
        arguments = gateway.serving(config, routes)
        subject = await stack.enter_async_context(running("gateway", arguments, core=None, ready_path="/readyz"))
        found.sizes_kib.append(_resident_kib(subject.pid))
        request = requests(f"{subject.url}/v1", stream=True, word="none")
        asked = answered = 0
        done = asyncio.Event()

        def on_answer(client: Client, answer: Answered) -> None:
            nonlocal asked, answered
            answered += 1
            found.errors += not answer.ok
            if answered % _EVERY == 0:
                found.sizes_kib.append(_resident_kib(subject.pid))
            if answered >= total or client.closed:
                done.set()
            elif asked < total:
                asked += 1
                client.ask(request())

        clients = [await connect(subject.url, on_answer) for _ in range(min(_CONNECTIONS, total))]
        try:
            for client in clients:
                asked += 1
                client.ask(request())
            await done.wait()
        finally:
            for client in clients:
                client.close()
    return found


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--most-kib", type=float, default=20, help="KiB per thousand requests (default 20)")
    given = parser.parse_args(arguments)
    found = asyncio.run(soak(given.requests))
    shown = found.sizes_kib[:: max(1, len(found.sizes_kib) // 10)]
    print("MiB resident:", " ".join(f"{size / 1024:.1f}" for size in [*shown, found.sizes_kib[-1]]))
    print(f"{found.slope_kib:.1f} KiB per 1,000 requests after the warm-up, {found.errors} answers not whole")
    return int(found.slope_kib > given.most_kib or found.errors > 0)


if __name__ == "__main__":
    sys.exit(main())
