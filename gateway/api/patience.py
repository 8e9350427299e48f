"""Who is still at it after a while: many that wait for nothing but time, and one timer for all of them.

Knows when each began. Does not know what they do; most are over long before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Waiting:
    """Somebody's time. `end` it, and nobody is told.

    Holds on to who is told no longer than that: most of what a turn was made of dies young, and costs less so.
    """

    __slots__ = ("due", "tell")

    def __init__(self, due: float, tell: Callable[[], None]) -> None:
        self.due = due
        self.tell: Callable[[], None] | None = tell

    def end(self) -> None:
        """It is over in time, or was told."""
        self.tell = None


class Patience:
    """Tells each that lasts.

    Args:
        seconds: how long each has.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, tell: Callable[[], None], loop: asyncio.AbstractEventLoop) -> Waiting:
        """Somebody's time begins; `tell` is called once where it is not ended in time."""
        waiting = Waiting(loop.time() + self._seconds, tell)
        self._begun.append(waiting)
        if self._timer is None:
            self._timer = loop.call_at(waiting.due, self._look, loop)
        return waiting

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        begun, now = self._begun, loop.time()
        while begun and (begun[0].tell is None or begun[0].due <= now):
            tell = begun.popleft().tell
            if tell is not None:
                tell()
        self._timer = loop.call_at(begun[0].due, self._look, loop) if begun else None
