"""What is asked of the peers: windows of load, and a light load beside the mock alone; what was found of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Final

from bench.load import Load, closed_loop
from bench.peer_list import Peer
from bench.probe import Target, open_loop, percentile
from bench.request import requests
from bench.subjects import Subject

_WARM_UP_S: Final = 0.5
# LiteLLM keeps up with no more.
_LIGHT: Final = 50
_LIGHTER: Final = 20
# A peer that uses less than this in a second with a handful of requests has loaded what it loads behind its first answers.
_IDLE_CPU_S: Final = 0.2
_LOADED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a window of load asks for.

    Attributes:
        name: how it is asked for and printed.
        stream: whether answers are streamed.
        connections: of the closed loop.
        lane: the part of the mock that answers, and the word that sends the gateway there; None: the usual one.
        only: the peers that do it, all where empty.
    """

    name: str
    stream: bool = False
    connections: int = 64
    lane: str | None = None
    only: tuple[str, ...] = ()

    def is_for(self, peer: Peer) -> bool:
        """Whether this peer can be asked for it."""
        if self.only and peer.name not in self.only:
            return False
        if self.stream and not peer.streams:
            return False
        return self.lane is None or peer.lanes


_SHOWN: Final = ("nginx", "Starlette + aiohttp relay", "gateway", "TensorZero")
WORKS: Final = (
    Work("json"),
    Work("stream", stream=True),
    # Fewer connections: 64 streams of 53 writes each would measure the mock's timers.
    Work("paced", stream=True, connections=16, lane="paced"),
    Work("json, 1 connection", connections=1, only=_SHOWN),
    Work("json, 512 connections", connections=512, only=_SHOWN),
    Work("tool round", lane="tool", only=("gateway",)),
)


@dataclass(slots=True)
class Found:
    """What was measured of one peer.

    Attributes:
        cpu_ms: CPU milliseconds a request, by work, one of each round.
        per_second: answers a second, by work, one of each round.
        added_ms: what it adds to the mock's own latency, by kind, one of each light load.
        start_s: seconds to its first answer, one of each start.
        idle_mb: resident megabytes a second after.
        errors: requests that were not answered well.
    """

    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    per_second: dict[str, list[float]] = field(default_factory=dict)
    added_ms: dict[str, list[float]] = field(default_factory=dict)
    start_s: list[float] = field(default_factory=list)
    idle_mb: list[float] = field(default_factory=list)
    errors: int = 0

    def cpu(self, work: str) -> float:
        """Median CPU milliseconds; NaN where nothing was measured."""
        return middle(self.cpu_ms.get(work, ()))

    def added(self, kind: str) -> float:
        """Median of the light loads, in milliseconds; NaN where nothing was measured."""
        return middle(self.added_ms.get(kind, ()))


def middle(values: Sequence[float]) -> float:
    """The median; NaN of none."""
    return median(values) if values else math.nan


def asking(peer: Peer, url: str, *, stream: bool, lane: str | None = None) -> Callable[[], bytes]:
    """The requests that a peer gets: the gateway chooses a lane of the mock by a word, the others by the path."""
    path, word = peer.path, peer.word
    if lane is not None:
        path, word = (path, f"lane{lane}") if peer.chooses else (f"/{lane}/v1", word)
    return requests(
        url + path, stream=stream, word=word, model=peer.model, headers=dict(peer.headers), different=peer.different
    )


async def loaded(work: Work, served: Sequence[tuple[Peer, Subject]], seconds: float, found: dict[str, Found]) -> None:
    """A round of one work: every peer there and back again, so that a drift of the machine's speed hits all alike."""
    there = [(peer, subject) for peer, subject in served if work.is_for(peer)]
    windows: dict[str, list[Load]] = {}
    for peer, subject in [*there, *reversed(there)]:
        windows.setdefault(peer.name, []).append(await _window(work, peer, subject, seconds))
    for name, of in windows.items():
        mine = found[name]
        mine.errors += sum(load.errors for load in of)
        answered = sum(load.requests for load in of)
        if answered:
            mine.cpu_ms.setdefault(work.name, []).append(1000 * sum(load.cpu_s for load in of) / answered)
            mine.per_second.setdefault(work.name, []).append(answered / sum(load.seconds for load in of))


async def _window(work: Work, peer: Peer, subject: Subject, seconds: float) -> Load:
    connections = min(work.connections, peer.stream_connections) if work.stream else work.connections
    return await closed_loop(
        subject.url,
        asking(peer, subject.url, stream=work.stream, lane=work.lane),
        connections=connections,
        warm_up_s=max(_WARM_UP_S, peer.seconds / 2),
        seconds=max(seconds, peer.seconds),
        cpu_s=subject.cpu_s,
    )


async def lightly(peer: Peer, subject: Subject, mock: Subject, seconds: float, found: Found) -> None:
    """Latencies at a light load, of the peer and of the mock alone, on one clock."""
    for stream in (False, True) if peer.streams else (False,):
        targets = {
            "direct": Target(mock.url, requests(f"{mock.url}/v1", stream=stream, word="lane")),
            "peer": Target(subject.url, asking(peer, subject.url, stream=stream)),
        }
        await open_loop(targets, rate=_LIGHTER if peer.seconds else _LIGHT, seconds=seconds)
        found.errors += targets["peer"].errors
        ours, theirs = targets["peer"], targets["direct"]
        if stream:
            added = percentile(ours.first_ms, 0.5) - percentile(theirs.first_ms, 0.5)
            found.added_ms.setdefault("first byte", []).append(added)
            continue
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            added = percentile(ours.total_ms, share) - percentile(theirs.total_ms, share)
            found.added_ms.setdefault(name, []).append(added)


async def settled(peer: Peer, subject: Subject) -> None:
    """Ask until what is measured is the usual: nothing is loaded behind any more, every prompt that comes again is known."""
    targets = {"": Target(subject.url, asking(peer, subject.url, stream=False))}
    deadline = monotonic() + _LOADED_S
    used = subject.cpu_s()
    while monotonic() < deadline:
        await open_loop(targets, rate=5, seconds=1)
        before, used = used, subject.cpu_s()
        if used - before < _IDLE_CPU_S:
            break
    for _ in range(3 if peer.different else 1):
        await open_loop(targets, rate=100, seconds=(peer.different or 20) / 100)
