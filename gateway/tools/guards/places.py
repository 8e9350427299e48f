"""How often and how many at a time a single tool is called, by everybody together.

Knows counts and waits, first come, first served, within a bound. Does not know what a tool does; requests to one host are the
outbound guard's to count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from gateway.clock import Clock
from gateway.config.models import ToolLimitConfig
from gateway.tools.outcome import CallFailed

_MINUTE_S: Final = 60.0


class Busy(CallFailed):
    """A tool has more to do than it may, for longer than the call would have waited."""


class Places:
    """Places for calls, by tool."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._together: dict[tuple[str, int], _Together] = {}
        self._started: dict[tuple[str, int], deque[float]] = {}

    @asynccontextmanager
    async def taken(self, name: str, limit: ToolLimitConfig, wait_s: float) -> AsyncGenerator[float, None]:
        """Wait for a place, `wait_s` at most, and hold it; yields the seconds that it took.

        Raises:
            Busy: there was none in time.
        """
        began = self._clock.monotonic()
        if limit.per_min is not None:
            await self._in_turn(name, limit.per_min, wait_s)
        if limit.concurrency is None:
            yield self._clock.monotonic() - began
            return
        key = (name, limit.concurrency)
        places = self._together.setdefault(key, _Together(limit.concurrency))
        places.users += 1
        try:
            try:
                async with asyncio.timeout(wait_s):
                    await places.free.acquire()
            except TimeoutError:
                raise Busy(f"`{name}` is busy: {limit.concurrency} calls at a time; try again later") from None
            try:
                yield self._clock.monotonic() - began
            finally:
                places.free.release()
        finally:
            places.users -= 1
            if not places.users:
                del self._together[key]

    async def _in_turn(self, name: str, per_min: int, wait_s: float) -> None:
        """Wait until fewer than `per_min` calls began within the last minute."""
        now = self._clock.monotonic()
        key = (name, per_min)
        if key not in self._started:
            # Another limit of the same tool, before a reload: what was counted then is forgotten.
            self._started = {each: began for each, began in self._started.items() if each[0] != name}
            self._started[key] = deque()
        started = self._started[key]
        while started and started[0] + _MINUTE_S <= now:
            started.popleft()
        at = max(now, started[-per_min] + _MINUTE_S) if len(started) >= per_min else now
        if at - now > wait_s:
            raise Busy(f"`{name}` is busy: {per_min} calls a minute; try again in {at - now:.0f} s")
        started.append(at)
        if at > now:
            try:
                await self._clock.sleep(at - now)
            except asyncio.CancelledError:
                # Whoever left before its turn came has not called.
                started.remove(at)
                raise


class _Together:
    __slots__ = ("free", "users")

    def __init__(self, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        self.users = 0
