"""Who is still at it after a while: many that wait for nothing but time, and one timer for all of them.

Knows when each began. Does not know what they do; most are over long before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class Lasting(Protocol):
    """Something that is usually over soon.

    Attributes:
        over: whether it is.
    """

    over: bool

    def lasts(self) -> None:
        """Called once, where it is not over in time."""
        ...


class Patience:
    """Tells each that lasts.

    Args:
        seconds: how long each has.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun: deque[tuple[float, Lasting]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, one: Lasting, loop: asyncio.AbstractEventLoop) -> None:
        """Its time begins."""
        due = loop.time() + self._seconds
        self._begun.append((due, one))
        if self._timer is None:
            self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        begun, now = self._begun, loop.time()
        while begun and (begun[0][1].over or begun[0][0] <= now):
            _, one = begun.popleft()
            if not one.over:
                one.lasts()
        self._timer = loop.call_at(begun[0][0], self._look, loop) if begun else None
