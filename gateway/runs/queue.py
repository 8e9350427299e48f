"""The seam of queues: what wakes workers. Carries identifiers; what a run is, the database says.

A queue may forget everything at any moment and may hand a message out twice: who takes one asks the database whether the run is
still to be begun. Does not know Redis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.store.run_records import Priority, Queued


class Taken(msgspec.Struct, frozen=True):
    """A message that was handed out. `message` is None where it is not one of ours; `why` says what is wrong then."""

    place: tuple[str, str]
    message: Queued | None
    why: str = ""


class Queue(Protocol):
    """Messages in three lanes. Every call raises `StoreUnavailable` where the queue cannot be reached."""

    async def put(self, messages: Sequence[Queued]) -> None:
        """Queue these, each in the lane of its priority; all or none as far as anybody can see."""
        ...

    async def take(self, count: int, timeout_s: float) -> Sequence[Taken]:
        """At most `count` messages, of higher lanes first; waits for one at most `timeout_s`.

        Now and then the lowest lane goes first, so that it moves under any load.
        """
        ...

    async def done(self, taken: Sequence[Taken]) -> None:
        """Forget these: they are known to the database, or to nobody."""
        ...

    async def size(self) -> int:
        """How many messages there are, taken ones that are not done included."""
        ...

    async def oldest(self) -> Mapping[Priority, float]:
        """When the oldest message of each lane was queued, in seconds since the epoch; empty lanes are missing."""
        ...

    async def is_new(self) -> bool:
        """Whether the queue has forgotten everything since it was last asked this by anybody; its places are made anew then."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
