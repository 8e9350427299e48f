"""Responses and conversations as they are kept, and what their store promises.

Knows the records. Does not know SQL, nor what stands in a response: that is the codec's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A response.

    Attributes:
        background: whether a run makes it.
        streamed: whether its events are kept.
        previous_id: the response it continues, or None.
        conversation_id: the conversation it belongs to, or None.
        input: JSON list: the items its request brought.
        body: JSON object: the response.
        holder: who makes it, until `held_until` (seconds since the epoch) at the latest.
    """

    id: str
    owner: str
    status: ResponseStatus
    background: bool = False
    streamed: bool = False
    previous_id: str | None = None
    conversation_id: str | None = None
    input: bytes = b"[]"
    body: bytes = b"{}"
    holder: str = ""
    held_until: float = 0.0
    created_at: float
    updated_at: float

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status not in ("queued", "in_progress")


class EventBatch(msgspec.Struct, frozen=True):
    """Events of a response that were written together: numbers `first` to `last`, packed."""

    first: int
    last: int
    frames: bytes


class ConversationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation; its items are kept apart."""

    id: str
    owner: str
    metadata: Mapping[str, str] = {}
    created_at: float


class ConversationItem(msgspec.Struct, frozen=True):
    """One item of a conversation: its id, and the item as JSON."""

    id: str
    item: bytes


class Responses(Protocol):
    """Responses. Every call is one transaction, and raises `StoreUnavailable` where the store cannot be reached."""

    async def add(
        self, row: ResponseRow, events: Sequence[EventBatch] = (), said: Sequence[ConversationItem] = ()
    ) -> None:
        """Keep a new response with its events, and what it adds to its conversation, where that is still there."""
        ...

    async def append(self, id: str, holder: str, events: Sequence[EventBatch], *, until: float) -> bool:  # noqa: A002 - the contract's word
        """Keep events of a response that is being made, and hold on to it; False where it is gone or somebody else's."""
        ...

    async def take(self, id: str, holder: str, *, until: float, now: float) -> bool:  # noqa: A002 - as above
        """Become the one who makes a response; False where it is there already, or is gone."""
        ...

    async def end(
        self,
        id: str,  # noqa: A002 - as above
        holder: str,
        *,
        status: ResponseStatus,
        body: bytes,
        events: Sequence[EventBatch] = (),
        said: Sequence[ConversationItem] = (),
        now: float,
    ) -> bool:
        """Keep how a response ended, as `add` does; False where it is gone, has ended, or is somebody else's."""
        ...

    async def get(self, id: str, owner: str | None) -> ResponseRow | None:  # noqa: A002 - as above
        """One response."""
        ...

    async def chain(self, id: str, owner: str, *, limit: int) -> Sequence[ResponseRow]:  # noqa: A002 - as above
        """A response and those it continues, the oldest first, `limit` of them at most; none where it is not there.

        Where the oldest of them still names another, that one is gone.
        """
        ...

    async def events(self, id: str, *, after: int, limit: int) -> Sequence[EventBatch]:  # noqa: A002 - as above
        """Batches in which there are events behind `after`, in order, `limit` of them at most."""
        ...

    async def delete(self, id: str, owner: str | None) -> bool:  # noqa: A002 - as above
        """Forget a response with its events; False where there is none."""
        ...

    async def prune(self, *, before: float, events_before: float) -> int:
        """Forget responses that ended before, and the events of those that ended before then; how many responses went."""
        ...


class Conversations(Protocol):
    """Conversations. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def add(self, row: ConversationRow, items: Sequence[ConversationItem]) -> None:
        """Keep a new conversation."""
        ...

    async def get(self, id: str, owner: str | None) -> ConversationRow | None:  # noqa: A002 - as above
        """One conversation."""
        ...

    async def rename(self, id: str, owner: str | None, metadata: Mapping[str, str]) -> bool:  # noqa: A002 - as above
        """Give it other metadata; False where it is not there."""
        ...

    async def append(self, id: str, items: Sequence[ConversationItem]) -> bool:  # noqa: A002 - as above
        """Add items at its end; False where it is not there."""
        ...

    async def items(
        self,
        id: str,  # noqa: A002 - as above
        *,
        newest_first: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[ConversationItem]:
        """Its items in order, those behind the item `after`."""
        ...

    async def remove(self, id: str, item_id: str) -> bool:  # noqa: A002 - as above
        """Forget one item; False where it is not there."""
        ...

    async def delete(self, id: str, owner: str | None) -> bool:  # noqa: A002 - as above
        """Forget a conversation with its items; False where there is none."""
        ...


def changed(row: ResponseRow, **values: Any) -> ResponseRow:
    """The row with other values."""
    return msgspec.structs.replace(row, **values)
