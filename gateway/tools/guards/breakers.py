"""Tools, and the servers behind them, that are left alone for a while because they could not be reached.

Knows failures in a row and when to try again. What a tool or a server says properly, an error too, is no failure here. Does
not know why a connection failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.clock import Clock
from gateway.tools.spec import ToolSpec

# How long nothing goes out; then one call is let through, and what becomes of it decides.
OPEN_S: Final = 30.0
# Plugins run here: what one of them cannot reach says nothing about the others.
_WITHOUT_SERVER: Final = frozenset({"python"})
_MOST: Final = 4096

_Key = tuple[str, str]


class Breakers:
    """One breaker for each tool, and one for each server. Those of other versions' tools are others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[_Key, _Breaker] = {}

    @property
    def any_failing(self) -> bool:
        """Whether there is anything that failed last."""
        return bool(self._failing)

    def open_s(self, spec: ToolSpec, version: str) -> float:
        """Seconds until a call may be tried, 0 where it may be now. Asks only."""
        if not self._failing:
            return 0.0
        return max((each.left_s(self._clock.monotonic()) for each in self._of(spec, version)), default=0.0)

    def enter(self, spec: ToolSpec, version: str) -> float:
        """As `open_s`; where it answers 0, a call follows and `failed`, `answered` or `left` after it.

        `version` is what a server's breaker belongs to: the registry's digest.
        """
        wait_s = self.open_s(spec, version)
        if not wait_s and self._failing:
            for each in self._of(spec, version):
                each.probing = each.opened
        return wait_s

    def failed(self, spec: ToolSpec, version: str, limit: int, *, server: bool) -> bool:
        """A call did not get through; whether that opened a breaker.

        `limit` is `tools.breaker_failures`; `server` says whether it was the server that could not be reached, and not
        this tool alone that did not answer in time.
        """
        now = self._clock.monotonic()
        keys = _keys(spec, version) if server else _keys(spec, version)[:1]
        opened = False
        for key in keys:
            if key not in self._failing:
                if len(self._failing) >= _MOST:
                    self._failing.clear()
                self._failing[key] = _Breaker()
            opened |= self._failing[key].failed(now, limit)
        return opened

    def answered(self, spec: ToolSpec, version: str) -> None:
        """The far side answered, whatever it said."""
        if self._failing:
            for key in _keys(spec, version):
                self._failing.pop(key, None)

    def left(self, spec: ToolSpec, version: str) -> None:
        """Nothing was learnt: the call was given up, or never made."""
        if self._failing:
            for each in self._of(spec, version):
                each.probing = False

    def _of(self, spec: ToolSpec, version: str) -> Iterator[_Breaker]:
        return (self._failing[key] for key in _keys(spec, version) if key in self._failing)


class _Breaker:
    __slots__ = ("failures", "opened", "probing", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.opened = False
        self.probing = False
        self.until = 0.0

    def failed(self, now: float, limit: int) -> bool:
        self.failures += 1
        self.probing = False
        # Whoever was under way while it opened adds nothing to it; of what was open, one failure is enough.
        opens = now >= self.until if self.opened else self.failures >= limit
        if opens:
            self.opened = True
            self.until = now + OPEN_S
        return opens

    def left_s(self, now: float) -> float:
        if not self.opened:
            return 0.0
        return 1.0 if self.probing and now >= self.until else max(0.0, self.until - now)


def _keys(spec: ToolSpec, version: str) -> tuple[_Key, ...]:
    tool = (spec.name, spec.spec_hash)
    return (tool,) if spec.provider in _WITHOUT_SERVER else (tool, (spec.provider, version))
