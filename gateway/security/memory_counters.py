"""Counters of this process: the twin of those in a shared server, rule by rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.clock import Clock
from gateway.security.counters import Entry, Exit, Hold, Kind, Stay, Verdict

# Buckets and places that are remembered; those that are full and free go first, for they say nothing.
_SIZE = 20_000
# Floating point is not exact: what is missing by less than this is not missing.
_NOTHING = 1e-6


@dataclass(slots=True)
class _Bucket:
    used: float = 0.0
    at: float = 0.0
    limit: int = 1


@dataclass(slots=True)
class _Purse:
    spent: int
    holds: dict[str, tuple[int, float]] = field(default_factory=dict)

    def held(self) -> int:
        """What all of them have set aside."""
        return sum(amount for amount, _ in self.holds.values())


class MemoryCounters:
    """`Counters` in dictionaries.

    Args:
        clock: time.
        lease_s: as in `counters.py`; a turn of this process gives word by living.
    """

    shared = False

    def __init__(self, clock: Clock, *, lease_s: float = math.inf) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._buckets: dict[str, _Bucket] = {}
        self._places: dict[str, dict[str, float]] = {}
        self._purses: dict[str, _Purse] = {}

    async def enter(self, entry: Entry) -> Verdict:
        """Take everything at once, or nothing."""
        now = self._clock.monotonic()
        purses = [self._purse(hold, now) for hold in entry.holds]
        spent = [-1 if purse is None else purse.spent for purse in purses]
        held = [0 if purse is None else purse.held() for purse in purses]
        if -1 in spent:
            return Verdict("unknown", spent=spent, held=held)
        used = [self._used(take.name, take.limit, now) for take in entry.takes]
        places = [self._taken(slot.name, now) for slot in entry.slots]
        kind, index, wait_ms = _refused(entry, used, [len(busy) for busy in places], spent, held)
        if not kind:
            until = now + self._lease_s
            for number, take in enumerate(entry.takes):
                used[number] += min(take.amount, take.limit)
                self._buckets[take.name] = _Bucket(used[number], now, take.limit)
            for busy in places:
                busy[entry.id] = until
            for number, hold in enumerate(entry.holds):
                purse = self._purses[hold.name]
                purse.holds[entry.id] = (hold.amount, until)
                held[number] = purse.held()
        left = [take.limit - level for take, level in zip(entry.takes, used, strict=True)]
        outcome: Literal["in", "refused"] = "refused" if kind else "in"
        return Verdict(outcome, kind, index, wait_ms, left, [len(busy) for busy in places], spent, held)

    def leave(self, exit_: Exit) -> None:
        """Give back, and count what it came to."""
        now = self._clock.monotonic()
        for given in exit_.given:
            level = max(0.0, self._used(given.name, given.limit, now) + given.amount)
            self._buckets[given.name] = _Bucket(level, now, given.limit)
        for name in exit_.slots:
            self._places.get(name, {}).pop(exit_.id, None)
        for paid in exit_.paid:
            purse = self._purses.get(paid.name)
            if purse is not None:
                purse.holds.pop(exit_.id, None)
                purse.spent += paid.cost
        if len(self._buckets) > _SIZE or len(self._places) > _SIZE:
            self._tidy(now)

    async def renew(self, stays: Sequence[Stay]) -> None:
        """Give word."""
        until = self._clock.monotonic() + self._lease_s
        for stay in stays:
            for name in stay.slots:
                self._places.setdefault(name, {})[stay.id] = until
            for name, amount in stay.held:
                if (purse := self._purses.get(name)) is not None:
                    purse.holds[stay.id] = (amount, until)

    async def close(self) -> None:
        """Nothing to do."""

    def _used(self, name: str, limit: int, now: float) -> float:
        bucket = self._buckets.get(name)
        return 0.0 if bucket is None else max(0.0, bucket.used - (now - bucket.at) * limit / 60)

    def _taken(self, name: str, now: float) -> dict[str, float]:
        busy = self._places.setdefault(name, {})
        for id_ in [id_ for id_, until in busy.items() if until <= now]:
            del busy[id_]
        return busy

    def _purse(self, hold: Hold, now: float) -> _Purse | None:
        purse = self._purses.get(hold.name)
        if purse is None:
            if hold.initial < 0:
                return None
            purse = self._purses[hold.name] = _Purse(hold.initial)
        for id_ in [id_ for id_, (_, until) in purse.holds.items() if until <= now]:
            del purse.holds[id_]
        return purse

    def _tidy(self, now: float) -> None:
        self._buckets = {
            name: bucket for name, bucket in self._buckets.items() if self._used(name, bucket.limit, now) > 0
        }
        self._places = {name: busy for name, busy in self._places.items() if busy}


def _refused(
    entry: Entry, used: Sequence[float], busy: Sequence[int], spent: Sequence[int], held: Sequence[int]
) -> tuple[Kind, int, float]:
    """By what an entry is refused, which of them, and when it would be let in, ms: money first, then the longest wait."""
    for index, hold in enumerate(entry.holds):
        if hold.amount > hold.old and spent[index] + held[index] - hold.old + hold.amount > hold.limit:
            return "hold", index, 0
    waits: list[tuple[float, int]] = []
    for index, (take, level) in enumerate(zip(entry.takes, used, strict=True)):
        missing = level + min(take.amount, take.limit) - take.limit
        if missing > _NOTHING:
            waits.append((missing * 60_000 / take.limit, -index))
    if waits:
        wait_ms, index = max(waits)
        return "take", -index, wait_ms
    for index, slot in enumerate(entry.slots):
        if busy[index] >= slot.limit:
            return "slot", index, 0
    return "", 0, 0
