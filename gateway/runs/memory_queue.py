"""A queue inside of one process, for a gateway that executes its runs itself.

New at every start: what the database knows is queued again then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count

from gateway.clock import Clock
from gateway.runs.queue import Taken
from gateway.store.run_records import PRIORITIES, Priority, Queued

# Every so many messages, the lowest lane goes first.
LOW_FIRST_EVERY = 10


class MemoryQueue:
    """`Queue` in memory.

    Args:
        clock: for when messages were queued.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lanes: dict[Priority, deque[tuple[str, float, Queued]]] = {lane: deque() for lane in PRIORITIES}
        self._taken: set[str] = set()
        self._some = asyncio.Event()
        self._numbers = count(1)
        self._turn = 0
        self._new = True

    async def put(self, messages: Sequence[Queued]) -> None:
        """Queue these."""
        for message in messages:
            self._lanes[message.priority].append((str(next(self._numbers)), self._clock.now(), message))
        if messages:
            self._some.set()

    async def take(self, count: int, timeout_s: float) -> Sequence[Taken]:
        """At most `count` messages."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._some.wait()
        except TimeoutError:
            return []
        self._turn += 1
        order = PRIORITIES if self._turn % LOW_FIRST_EVERY else tuple(reversed(PRIORITIES))
        taken: list[Taken] = []
        for lane in order:
            messages = self._lanes[lane]
            while messages and len(taken) < count:
                place, _, message = messages.popleft()
                self._taken.add(place)
                taken.append(Taken((lane, place), message))
        if not any(self._lanes.values()):
            self._some.clear()
        return taken

    async def done(self, taken: Sequence[Taken]) -> None:
        """Forget these."""
        self._taken -= {each.place[1] for each in taken}

    async def size(self) -> int:
        """How many messages there are."""
        return sum(map(len, self._lanes.values())) + len(self._taken)

    async def oldest(self) -> Mapping[Priority, float]:
        """When the oldest message of each lane was queued."""
        return {lane: messages[0][1] for lane, messages in self._lanes.items() if messages}

    async def is_new(self) -> bool:
        """True once: nothing of an earlier process is here."""
        was, self._new = self._new, False
        return was

    async def close(self) -> None:
        """Nothing is open."""
