"""Conversations and their items, in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.database import Database
from gateway.store.response_records import ConversationItem, ConversationRow
from gateway.store.tables import conversation_items, conversations


class SqlConversations:
    """`Conversations` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: ConversationRow, items: Sequence[ConversationItem]) -> None:
        """Keep a new conversation."""
        values = {
            "id": row.id,
            "owner": row.owner,
            "metadata": _json(row.metadata),
            "created_at": row.created_at,
        }
        async with self._database.transaction() as connection:
            await connection.execute(insert(conversations).values(**values))
            await append_items(connection, row.id, items)

    async def get(self, id: str, owner: str | None) -> ConversationRow | None:  # noqa: A002 - the contract's word
        """One conversation."""
        query = select(conversations).where(conversations.c.id == id)
        if owner is not None:
            query = query.where(conversations.c.owner == owner)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        if found is None:
            return None
        return ConversationRow(**{**found, "metadata": msgspec.json.decode(found["metadata"])})

    async def rename(self, id: str, owner: str | None, metadata: Mapping[str, str]) -> bool:  # noqa: A002 - as above
        """Give it other metadata."""
        query = update(conversations).where(conversations.c.id == id).values(metadata=_json(metadata))
        if owner is not None:
            query = query.where(conversations.c.owner == owner)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount == 1

    async def append(self, id: str, items: Sequence[ConversationItem]) -> bool:  # noqa: A002 - as above
        """Add items at its end."""
        async with self._database.transaction() as connection:
            return await append_items(connection, id, items)

    async def items(
        self,
        id: str,  # noqa: A002 - as above
        *,
        newest_first: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[ConversationItem]:
        """Its items in order."""
        position = conversation_items.c.position
        query = select(conversation_items.c.id, conversation_items.c.item).where(
            conversation_items.c.conversation_id == id
        )
        if after is not None:
            there = (
                select(position)
                .where(conversation_items.c.conversation_id == id, conversation_items.c.id == after)
                .scalar_subquery()
            )
            query = query.where(position < there if newest_first else position > there)
        query = query.order_by(position.desc() if newest_first else position)
        if limit is not None:
            query = query.limit(limit)
        async with self._database.reading() as connection:
            return [ConversationItem(*found) for found in (await connection.execute(query)).all()]

    async def remove(self, id: str, item_id: str) -> bool:  # noqa: A002 - as above
        """Forget one item."""
        query = delete(conversation_items).where(
            conversation_items.c.conversation_id == id, conversation_items.c.id == item_id
        )
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount > 0

    async def delete(self, id: str, owner: str | None) -> bool:  # noqa: A002 - as above
        """Forget a conversation."""
        query = delete(conversations).where(conversations.c.id == id)
        if owner is not None:
            query = query.where(conversations.c.owner == owner)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount == 1


async def append_items(connection: AsyncConnection, id: str, items: Sequence[ConversationItem]) -> bool:  # noqa: A002 - as above
    """Add items at a conversation's end, within a transaction; False where there is no such conversation."""
    known = select(conversations.c.id).where(conversations.c.id == id).with_for_update()
    if await connection.scalar(known) is None:
        return False
    last = select(func.max(conversation_items.c.position)).where(conversation_items.c.conversation_id == id)
    at = await connection.scalar(last)
    begin = 0 if at is None else at + 1
    if items:
        values = [
            {"conversation_id": id, "position": begin + place, "id": item.id, "item": item.item}
            for place, item in enumerate(items)
        ]
        await connection.execute(insert(conversation_items), values)
    return True


def _json(metadata: Mapping[str, str]) -> str:
    return msgspec.json.encode(metadata).decode()
