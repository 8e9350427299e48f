"""When what runs has to be over: one timer for all of it.

Knows which task to stop and when. As `asyncio.timeout`, but what keeps its time, as nearly all does, costs no timer of its
own: two microseconds of every stream.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Any, Final

# Loops look at their clock once a round, some to the millisecond.
_NEARLY_S: Final = 0.001


class Deadlines:
    """The deadlines of what runs now. Belongs to the event loop that it is first asked in."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[Deadline] = set()
        self._looks_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> Deadline:
        """A `with` block that this task has to be through in so many seconds.

        Raises:
            TimeoutError: out of the block, once it took longer.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        return Deadline(self, loop, seconds)

    def add(self, deadline: Deadline) -> None:
        """Stop its task at its time."""
        self._open.add(deadline)
        if deadline.due < self._looks_at:
            self._look_at(deadline.due)

    def remove(self, deadline: Deadline) -> None:
        """It was kept, or its task is being stopped."""
        self._open.discard(deadline)

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        """Stop what is late. Most of the time nothing is: what this look was for has ended long ago."""
        self._timer, self._looks_at = None, math.inf
        now = asyncio.get_running_loop().time() + _NEARLY_S
        for deadline in [each for each in self._open if each.due <= now]:
            self._open.discard(deadline)
            deadline.stop()
        if self._open:
            self._look_at(min(each.due for each in self._open))


class Deadline:
    """One task's. See `Deadlines.within`."""

    __slots__ = ("_all", "_before", "_late", "_loop", "_task", "due")

    _task: asyncio.Task[Any]
    _before: int

    def __init__(self, all_: Deadlines, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._all = all_
        self._loop = loop
        self._late = False
        self.due = loop.time() + seconds

    def __enter__(self) -> None:
        """Begin."""
        task = asyncio.current_task(self._loop)
        assert task is not None, "a deadline is a task's"
        self._task = task
        self._before = task.cancelling()
        self._all.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End. What others have cancelled stays cancelled."""
        self._all.remove(self)
        if self._late and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def stop(self) -> None:
        """It is late."""
        self._late = True
        self._task.cancel()
