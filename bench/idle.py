"""`python -m bench.idle`: what a request costs by how long its process has slept before it.

The same requests, one at a time: one right after the other, then so many a second. The instructions are the same each time. What
more each of them takes when a core has slept is what the machine forgets meanwhile (caches, translations of addresses, branches),
and the more code a subject runs, the more of it there is to forget.
"""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from bench.load import closed_loop
from bench.peer_list import Peer, peers
from bench.peer_process import served_by
from bench.peer_rounds import asking, settled
from bench.probe import Target, open_loop
from bench.subjects import Cores, Subject, family, pin, running

_SUBJECTS: Final = ("nginx", "Starlette + aiohttp relay", "gateway", "TensorZero")
_RATES: Final = (1000, 200, 50)
_SECONDS: Final = 4.0


async def _back_to_back(peer: Peer, subject: Subject) -> float:
    """CPU milliseconds of a request that comes as soon as the one before it is answered."""
    load = await closed_loop(
        subject.url,
        asking(peer, subject.url, stream=False),
        connections=1,
        warm_up_s=0.5,
        seconds=_SECONDS / 2,
        cpu_s=lambda: _cpu_s(subject),
    )
    return load.cpu_ms


async def _spaced(peer: Peer, subject: Subject, rate: int) -> float:
    """CPU milliseconds of a request, of so many a second."""
    target = Target(subject.url, asking(peer, subject.url, stream=False))
    before = _cpu_s(subject)
    await open_loop({"": target}, rate=rate, seconds=_SECONDS)
    return 1000 * (_cpu_s(subject) - before) / max(len(target.total_ms), 1)


def _cpu_s(subject: Subject) -> float:
    """CPU time used so far; to the nanosecond, where `Subject.cpu_s` counts in hundredths of a second."""
    threads = (thread for pid in family(subject.pid) for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def _run(place: Path, rounds: int) -> None:
    cores = Cores.of_this_machine()
    pin(0, cores.load)
    chosen = [peer for peer in peers(place) if peer.name in _SUBJECTS and peer.version is not None]
    found: dict[tuple[str, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=cores.load))
        served = [(peer, await stack.enter_async_context(served_by(peer, mock, cores))) for peer in chosen]
        for peer, subject in served:
            await settled(peer, subject)
        for _ in range(rounds):
            for peer, subject in served:
                found.setdefault((peer.name, 0), []).append(await _back_to_back(peer, subject))
                for rate in _RATES:
                    found.setdefault((peer.name, rate), []).append(await _spaced(peer, subject, rate))
    print("CPU ms of a request       at once" + "".join(f"{rate:>8}/s" for rate in _RATES))
    for peer in chosen:
        print(f"{peer.name:26}" + "".join(f"{median(found[peer.name, rate]):10.3f}" for rate in (0, *_RATES)))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("--place", type=Path, required=True, help="where the peers' environments are")
    parser.add_argument("--rounds", type=int, default=3, help="of each subject and rate (default 3)")
    given = parser.parse_args()
    uvloop.run(_run(given.place.resolve(), given.rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
