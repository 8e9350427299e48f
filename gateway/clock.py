"""Time, as something that can be passed in, and a bound on waiting that costs nothing where nobody waits.

Knows wall time and monotonic time. Does not know schedules.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Coroutine, Generator
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")


class Clock(Protocol):
    """A source of time. Tests hand in one that they move by hand."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` (never negative)."""
        ...


class SystemClock:
    """The machine's own clocks."""

    # Asked some twenty times a turn: the functions themselves, without one of Python's around each.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)


async def within(seconds: float, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What `work` returns, in so many seconds from its first wait on.

    As `asyncio.timeout` around it, but work that never waits costs no timer: five microseconds, where most of it never does.

    Raises:
        TimeoutError: it took longer.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: _Result = done.value
        return result
    async with asyncio.timeout(seconds):
        return await _rest(work, waits_for)


@types.coroutine
def _rest(work: Coroutine[Any, Any, _Result], waits_for: Any) -> Generator[Any, Any, _Result]:
    """Go on with work that waits for something, step by step as the event loop does."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - all of it is the work's: cancellation too
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as done:
        result: _Result = done.value
        return result
