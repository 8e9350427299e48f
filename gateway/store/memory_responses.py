"""Responses and conversations without a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.errors import StoreUnavailable
from gateway.store.response_records import (
    ConversationItem,
    ConversationRow,
    EventBatch,
    ResponseRow,
    ResponseStatus,
    changed,
)


class MemoryConversations:
    """`Conversations` in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[str, ConversationRow] = {}
        self._items: dict[str, list[ConversationItem]] = {}

    async def add(self, row: ConversationRow, items: Sequence[ConversationItem]) -> None:
        """Keep a new conversation."""
        self._rows[row.id] = row
        self._items[row.id] = list(items)

    async def get(self, id: str, owner: str | None) -> ConversationRow | None:  # noqa: A002 - the contract's word
        """One conversation."""
        row = self._rows.get(id)
        return row if row is not None and owner in (None, row.owner) else None

    async def rename(self, id: str, owner: str | None, metadata: Mapping[str, str]) -> bool:  # noqa: A002 - as above
        """Give it other metadata."""
        row = await self.get(id, owner)
        if row is None:
            return False
        self._rows[id] = msgspec.structs.replace(row, metadata=dict(metadata))
        return True

    async def append(self, id: str, items: Sequence[ConversationItem]) -> bool:  # noqa: A002 - as above
        """Add items at its end."""
        if id not in self._rows:
            return False
        self._items[id] += items
        return True

    async def items(
        self,
        id: str,  # noqa: A002 - as above
        *,
        newest_first: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[ConversationItem]:
        """Its items in order."""
        found = list(self._items.get(id, ()))
        if newest_first:
            found.reverse()
        if after is not None:
            places = [place for place, item in enumerate(found) if item.id == after]
            found = found[places[0] + 1 :] if places else []
        return found[:limit]

    async def remove(self, id: str, item_id: str) -> bool:  # noqa: A002 - as above
        """Forget one item."""
        kept = [item for item in self._items.get(id, ()) if item.id != item_id]
        gone = len(kept) < len(self._items.get(id, ()))
        if gone:
            self._items[id] = kept
        return gone

    async def delete(self, id: str, owner: str | None) -> bool:  # noqa: A002 - as above
        """Forget a conversation."""
        if await self.get(id, owner) is None:
            return False
        del self._rows[id], self._items[id]
        return True


class MemoryResponses:
    """`Responses` in a dictionary."""

    def __init__(self, conversations: MemoryConversations) -> None:
        self._rows: dict[str, ResponseRow] = {}
        self._events: dict[str, list[EventBatch]] = {}
        self._conversations = conversations

    async def add(
        self, row: ResponseRow, events: Sequence[EventBatch] = (), said: Sequence[ConversationItem] = ()
    ) -> None:
        """Keep a new response."""
        if row.id in self._rows:
            raise StoreUnavailable("a record of this identity is kept already", retryable=False)
        self._rows[row.id] = row
        self._events[row.id] = list(events)
        if row.conversation_id is not None and said:
            await self._conversations.append(row.conversation_id, said)

    async def append(self, id: str, holder: str, events: Sequence[EventBatch], *, until: float) -> bool:  # noqa: A002 - the contract's word
        """Keep events of a response that is being made."""
        if not self._held(id, holder):
            return False
        self._rows[id] = changed(self._rows[id], held_until=until)
        self._events[id] += events
        return True

    async def take(self, id: str, holder: str, *, until: float, now: float) -> bool:  # noqa: A002 - as above
        """Become the one who makes a response."""
        row = self._rows.get(id)
        if row is None or row.status in ("completed", "incomplete"):
            return False
        self._rows[id] = changed(row, holder=holder, held_until=until, status="in_progress", updated_at=now)
        return True

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
        """Keep how a response ended."""
        if not self._held(id, holder):
            return False
        row = self._rows[id] = changed(self._rows[id], status=status, body=body, updated_at=now)
        self._events[id] += events
        if row.conversation_id is not None and said:
            await self._conversations.append(row.conversation_id, said)
        return True

    async def get(self, id: str, owner: str | None) -> ResponseRow | None:  # noqa: A002 - as above
        """One response."""
        row = self._rows.get(id)
        return row if row is not None and owner in (None, row.owner) else None

    async def chain(self, id: str, owner: str, *, limit: int) -> Sequence[ResponseRow]:  # noqa: A002 - as above
        """A response and those it continues, the oldest first."""
        found: list[ResponseRow] = []
        row = await self.get(id, owner)
        while row is not None and len(found) < limit:
            found.append(row)
            row = await self.get(row.previous_id, owner) if row.previous_id is not None else None
        return found[::-1]

    async def events(self, id: str, *, after: int, limit: int) -> Sequence[EventBatch]:  # noqa: A002 - as above
        """Batches in which there are events behind `after`."""
        return [batch for batch in self._events.get(id, ()) if batch.last > after][:limit]

    async def delete(self, id: str, owner: str | None) -> bool:  # noqa: A002 - as above
        """Forget a response."""
        if await self.get(id, owner) is None:
            return False
        del self._rows[id], self._events[id]
        return True

    async def prune(self, *, before: float, events_before: float) -> int:
        """Forget responses and events."""
        old = [row.id for row in self._rows.values() if row.updated_at < before and (row.over or not row.background)]
        for row in self._rows.values():
            if row.over and row.updated_at < events_before:
                self._events[row.id] = []
        for gone in old:
            del self._rows[gone], self._events[gone]
        return len(old)

    def _held(self, response_id: str, holder: str) -> bool:
        row = self._rows.get(response_id)
        return row is not None and row.holder == holder and not row.over
