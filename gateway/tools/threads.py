"""Threads for tools that block.

Knows how many may run at once, and how many have been given up on and still run. Does not know tools.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Enough for blocking drivers, few enough that a thousand calls don't make a thousand threads.
MAX_WORKING = 16
# Threads whose caller has gone (timeout, cancellation) can't be stopped. Up to this many are replaced by fresh ones; beyond,
# each holds on to its slot until it ends, so that stuck tools can't eat the machine.
MAX_ABANDONED = 48


class NoThread(Exception):
    """Every slot was taken for as long as the caller could wait: the function was not called."""


class Threads:
    """Runs plain functions beside the event loop, in daemon threads of its own: the loop's default executor, which
    resolves names, stays free.

    Attributes:
        working: calls that somebody waits for.
        abandoned: calls that still run and that nobody waits for.
    """

    def __init__(self, max_working: int = MAX_WORKING, max_abandoned: int = MAX_ABANDONED) -> None:
        self.working = 0
        self.abandoned = 0
        self._max_abandoned = max_abandoned
        self._slots = asyncio.Semaphore(max_working)

    async def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function in a thread and wait for what it returns or raises.

        Waits for a free slot first. Cancelling the wait leaves the thread behind: it is counted, and a fresh one takes its
        slot as long as fewer than `max_abandoned` are left behind.
        """
        await self._slots.acquire()
        return await self._run(function, args, kwargs)

    async def run_within(self, wait_s: float, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """As `run`, but waits for a free slot `wait_s` seconds at most.

        Raises:
            NoThread: there was none.
        """
        try:
            async with asyncio.timeout(wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise NoThread from None
        return await self._run(function, args, kwargs)

    async def _run(self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        job = _Job()

        def work() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(function, *args, **kwargs)
            except BaseException as raised:  # noqa: BLE001 - the thread's outermost handler: it goes to who waits
                error = raised
            try:
                loop.call_soon_threadsafe(self._finish, job, done, value, error)
            except RuntimeError:
                # The loop has closed: nobody is left to tell.
                return

        self.working += 1
        try:
            threading.Thread(target=work, name="tool", daemon=True).start()
        except RuntimeError:
            self.working -= 1
            self._slots.release()
            raise
        try:
            return await done
        except asyncio.CancelledError:
            if not job.finished:
                self.working -= 1
                self.abandoned += 1
                job.abandoned = True
                if self.abandoned <= self._max_abandoned:
                    job.holds_slot = False
                    self._slots.release()
            raise

    def _finish(self, job: _Job, done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        job.finished = True
        if job.abandoned:
            self.abandoned -= 1
        else:
            self.working -= 1
        if job.holds_slot:
            self._slots.release()
        if done.done():
            return
        if error is None:
            done.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            # SystemExit, KeyboardInterrupt and StopIteration mean something to the loop that the tool didn't mean.
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


class _Job:
    """One call: who still cares for it, and whether it occupies a slot."""

    __slots__ = ("abandoned", "finished", "holds_slot")

    def __init__(self) -> None:
        self.finished = False
        self.abandoned = False
        self.holds_slot = True
