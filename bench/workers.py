"""`python -m bench.workers`: what several workers bring and take: requests a second, CPU, how even their shares are, memory.

Groups of each size take turns. Where workers, mock and load share too few cores, requests a second say little; CPU per request
says whether workers are in each other's way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from bench import gateway
from bench.load import closed_loop
from bench.request import requests
from bench.subjects import Subject, family, running

# A rule knows it: what is measured is not the encoder.
_WORD: Final = "keyword number 7"


@dataclass(slots=True)
class Group:
    """So many workers, and what was found of them; shares are percent of their CPU time, the smallest and the largest.

    Megabytes: what one worker holds for itself, and all processes by their share of what they have in common.
    """

    count: int
    subject: Subject
    per_second: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    shares: list[tuple[float, float]] = field(default_factory=list)
    own_mb: float = math.nan
    whole_mb: float = math.nan
    errors: int = 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=__doc__)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4], help="groups (default: 1 2 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window (default 2)")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--encoder", default="auto", help="what all of them load (default: auto); `none` for nothing")
    parser.add_argument("--mock", help="the upstream's URL (default: a mock of the bench's own)")
    return parser.parse_args()


async def measured(
    counts: Sequence[int],
    *,
    rounds: int,
    seconds: float,
    connections: int,
    encoder: str | None,
    mock: str | None = None,
) -> list[Group]:
    """Groups of these sizes, each measured `rounds` times in turn; `mock` is an upstream's URL instead of the bench's own."""
    async with AsyncExitStack() as stack:
        url = mock or (await stack.enter_async_context(running("mock", ["bench.mock"], core=None))).url
        groups = []
        for count in counts:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-workers-")))
            config, routes = gateway.write(place, url, semantic=encoder is not None)
            if encoder is not None:
                said = json.loads(config.read_text())
                said["router"]["semantic"]["encoder"] = encoder
                config.write_text(json.dumps(said))
            command = [*gateway.serving(config, routes), "--workers", str(count)]
            subject = await stack.enter_async_context(
                running(f"workers-{count}", command, core=None, ready_path="/readyz")
            )
            groups.append(Group(count, subject))
        if encoder is not None:
            await asyncio.sleep(5.0)  # one alone serves before it has loaded
        for number in range(rounds):
            for group in groups if number % 2 == 0 else reversed(groups):
                await _window(group, connections, seconds)
        for group in groups:
            group.own_mb = median(_memory_mb(pid, "Private_Clean", "Private_Dirty") for pid in _workers(group))
            group.whole_mb = sum(_memory_mb(pid, "Pss") for pid in family(group.subject.pid))
    return groups


async def _run(given: argparse.Namespace) -> int:
    groups = await measured(
        given.counts,
        rounds=given.rounds,
        seconds=given.seconds,
        connections=given.connections,
        encoder=None if given.encoder == "none" else given.encoder,
        mock=given.mock,
    )
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {given.connections} connections")
    print(f"{'workers':>7}{'req/s':>9}{'CPU ms/req':>12}{'share, %':>14}{'MB in all':>11}{'MB each, own':>14}")
    for group in groups:
        low, high = (median(values) for values in zip(*group.shares, strict=True))
        print(
            f"{group.count:>7}{median(group.per_second):>9.0f}{median(group.cpu_ms):>12.3f}"
            f"{f'{low:.0f} to {high:.0f}':>14}{group.whole_mb:>11.0f}{group.own_mb:>14.0f}"
            + (f"  {group.errors} failed" if group.errors else "")
        )
    return int(any(group.errors for group in groups))


async def _window(group: Group, connections: int, seconds: float) -> None:
    url = f"{group.subject.url}/v1"
    marks: list[list[float]] = []

    def cpu_s() -> float:
        marks.append([Subject("", pid, 0).cpu_s() for pid in _workers(group)])
        return sum(marks[-1])

    asking = requests(url, stream=False, word=_WORD)
    load = await closed_loop(url, asking, connections=connections, warm_up_s=0.5, seconds=seconds, cpu_s=cpu_s)
    used = [after - before for before, after in zip(marks[0], marks[-1], strict=True)]
    group.per_second.append(load.per_second)
    group.cpu_ms.append(load.cpu_ms)
    group.errors += load.errors
    if sum(used):
        group.shares.append((100 * min(used) / sum(used), 100 * max(used) / sum(used)))


def _workers(group: Group) -> list[int]:
    """Those of its processes that serve."""
    if group.count == 1:
        return [group.subject.pid]
    below = family(group.subject.pid)[1:]
    # The nursery and the server that they agree by were there before them.
    return sorted(below)[-group.count :]


def _memory_mb(pid: int, *names: str) -> float:
    """The sum of these sizes of a process, in megabytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sum(sizes[name] for name in names) * 1024 / 1e6


def main() -> int:
    """Print the figures."""
    return uvloop.run(_run(_options()))


if __name__ == "__main__":
    sys.exit(main())
