"""How many calls a backend takes at once, and who waits for the next free place.

Knows places and queues. Does not know what is done in a place, or which backend is preferred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

# Who has this many callers before him would wait too long to be worth it.
_WAITING_PER_PLACE = 8
_WAITING_AT_LEAST = 16


class Places:
    """One backend's places; without a limit there is always one.

    Attributes:
        busy: calls under way.
    """

    __slots__ = ("_limit", "_waiting", "busy")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._waiting: dict[asyncio.Future[Places], None] = {}
        self.busy = 0

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return len(self._waiting)

    @property
    def queue_is_full(self) -> bool:
        """Whether nobody more may wait here: 8 for each place may, and 16 in any case."""
        return self._limit is not None and len(self._waiting) >= max(
            _WAITING_AT_LEAST, _WAITING_PER_PLACE * self._limit
        )

    def take(self) -> bool:
        """Take a place, if one is free. Who waits already comes first."""
        if self._limit is not None and (self.busy >= self._limit or any(not each.done() for each in self._waiting)):
            return False
        self.busy += 1
        return True

    def release(self) -> None:
        """Give a place back; whoever waits longest gets it."""
        for waiter in self._waiting:
            if not waiter.done():
                # The place passes from hand to hand: `busy` stays.
                waiter.set_result(self)
                return
        self.busy -= 1


async def wait_for_place(options: Sequence[Places], seconds: float) -> Places | None:
    """Wait until one of them has a place, and take it; None after `seconds`.

    Options whose queue is full must not be among them.
    """
    waiter: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
    for places in options:
        places._waiting[waiter] = None  # noqa: SLF001 - the other half of the same thing
    try:
        async with asyncio.timeout(seconds):
            return await waiter
    except BaseException as error:
        # It may have been handed a place in the very moment it was cancelled.
        if waiter.done() and not waiter.cancelled():
            waiter.result().release()
        if isinstance(error, TimeoutError):
            return None
        raise
    finally:
        for places in options:
            places._waiting.pop(waiter, None)  # noqa: SLF001 - as above
