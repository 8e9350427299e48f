"""`python -m bench.peers`: the gateway beside other gateways, at the same work, in turn, with the same instruments.

The gateway has everything on that production needs: a key to check, 1,000 keyword rules, a decision by meaning that a cache
holds, traces and metrics. The others pass requests on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Final

import uvloop

from bench.load import closed_loop
from bench.peer_list import Peer, peers
from bench.peer_process import served_by
from bench.peer_rounds import WORKS, Found, Work, lightly, loaded, middle, settled
from bench.report import conditions
from bench.request import requests
from bench.subjects import Cores, Subject, SubjectFailed, pin, running
from bench.verdicts import verdicts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--place", type=Path, required=True, help="where the peers' environments are")
    parser.add_argument("--rounds", type=int, default=3, help="of two windows for each peer and work (default 3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a window (default 1.5)")
    parser.add_argument("--light-rounds", type=int, default=5, help="light loads for each peer, 0 for none (default 5)")
    parser.add_argument("--light-seconds", type=float, default=4.0, help="length of a light load (default 4)")
    parser.add_argument("--starts", type=int, default=5, help="of each peer, to be timed and weighed (default 5)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these peers alone")
    names = [work.name for work in WORKS]
    parser.add_argument("--work", nargs="+", choices=names, default=names, help="this work alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return parser.parse_args()


async def _run(given: argparse.Namespace) -> int:
    cores = Cores.of_this_machine()
    stated = conditions(cores, rounds=given.rounds, seconds=given.seconds, probe_s=given.light_seconds)
    pin(0, cores.load)
    chosen = [peer for peer in peers(given.place.resolve()) if not given.only or peer.name in given.only]
    works = [work for work in WORKS if work.name in given.work]
    found = {peer.name: Found() for peer in chosen}
    ceiling: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=cores.load))
        installed = [peer for peer in chosen if peer.version is not None]
        for number in range(given.starts):
            for peer in installed:
                _tell(f"start {number + 1}/{given.starts}: {peer.name}")
                await _started(peer, mock, cores, found[peer.name])
        served = []
        for peer in installed:
            if peer.loaded and (subject := await _entered(stack, peer, mock, cores)) is not None:
                await settled(peer, subject)
                served.append((peer, subject))
        for number in range(given.rounds):
            for work in works:
                _tell(f"round {number + 1}/{given.rounds}: {work.name}")
                ceiling.setdefault(work.name, []).append(await _ceiling(mock, work))
                await loaded(work, served, given.seconds, found)
        for number in range(given.light_rounds):
            _tell(f"light load {number + 1}/{given.light_rounds}")
            for peer, subject in served:
                await lightly(peer, subject, mock, given.light_seconds, found[peer.name])
    for name, value in stated.items():
        print(f"{name}: {value}")
    print("peers:", "; ".join(f"{peer.name} {peer.version or 'not installed'}" for peer in chosen))
    print("ceiling of mock and load, requests a second:", {work: round(middle(of)) for work, of in ceiling.items()})
    print(f"\n{_table(chosen, found)}\n")
    print("\n".join(verdicts(found)))
    if given.json:
        kept = {name: {each: getattr(of, each) for each in of.__slots__} for name, of in found.items()}
        versions = {peer.name: peer.version for peer in chosen}
        whole = {"conditions": stated, "versions": versions, "ceiling": ceiling, "found": kept}
        given.json.write_text(json.dumps(whole, indent=2) + "\n")
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _started(peer: Peer, mock: Subject, cores: Cores, found: Found) -> None:
    """One start, timed to the first answer and weighed a second later."""
    try:
        begun = monotonic()
        async with served_by(peer, mock, cores) as subject:
            found.start_s.append(monotonic() - begun)
            await asyncio.sleep(1.0)
            found.idle_mb.append(subject.resident_mb())
    except SubjectFailed as error:
        _tell(f"{peer.name} did not start: {error}")


async def _entered(stack: AsyncExitStack, peer: Peer, mock: Subject, cores: Cores) -> Subject | None:
    try:
        return await stack.enter_async_context(served_by(peer, mock, cores))
    except SubjectFailed as error:
        _tell(f"{peer.name} did not start: {error}")
        return None


async def _ceiling(mock: Subject, work: Work) -> float:
    """What the mock and this process can do without a subject between them, answers a second."""
    url = f"{mock.url}/{work.lane}/v1" if work.lane else f"{mock.url}/v1"
    load = await closed_loop(
        url,
        requests(url, stream=work.stream, word="lane"),
        connections=work.connections,
        warm_up_s=0.2,
        seconds=1.0,
        cpu_s=mock.cpu_s,
    )
    return load.per_second


# Columns: what stands above, what is shown of a peer, and digits behind the point.
_COLUMNS: Final = (
    ("CPU ms", lambda of: of.cpu("json"), 3),
    ("req/s", lambda of: middle(of.per_second.get("json", ())), 0),
    ("at 1", lambda of: of.cpu("json, 1 connection"), 3),
    ("at 512", lambda of: of.cpu("json, 512 connections"), 3),
    ("CPU ms/stream", lambda of: of.cpu("stream"), 3),
    ("paced", lambda of: of.cpu("paced"), 2),
    ("+p50 ms", lambda of: of.added("p50"), 2),
    ("+p99 ms", lambda of: of.added("p99"), 2),
    ("first byte", lambda of: of.added("first byte"), 2),
    ("start s", lambda of: middle(of.start_s), 2),
    ("MB", lambda of: middle(of.idle_mb), 0),
)


def _table(chosen: list[Peer], found: dict[str, Found]) -> str:
    lines: list[tuple[str, ...]] = [("subject", *(name for name, _, _ in _COLUMNS))]
    for peer in chosen:
        of = found[peer.name]
        name = peer.name if peer.version is not None else f"{peer.name} (not installed)"
        name += f" ({of.errors} failed)" if of.errors else ""
        lines.append((name, *(_number(shown(of), digits) for _, shown, digits in _COLUMNS)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def main() -> Any:
    """Exit code 0; 1 when the mock didn't start."""
    return uvloop.run(_run(_options()))


if __name__ == "__main__":
    sys.exit(main())
