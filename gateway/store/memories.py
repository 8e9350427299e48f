"""Memories, in the database."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import delete, insert, select, tuple_, update

from gateway.store.database import Database
from gateway.store.memory_records import MemoryRow
from gateway.store.tables import memories

_COLUMNS = [memories.c[name] for name in MemoryRow.__struct_fields__]
_SHOWN = [memories.c[name] for name in MemoryRow.__struct_fields__ if name != "vector"]
_NEWEST = (memories.c.created_at.desc(), memories.c.id.desc())


class SqlMemories:
    """`Memories` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[MemoryRow], *, most: int) -> None:
        """Keep these."""
        if not rows:
            return
        async with self._database.transaction() as connection:
            await connection.execute(insert(memories), [msgspec.structs.asdict(row) for row in rows])
            for owner in {row.owner for row in rows}:
                kept = select(memories.c.id).where(memories.c.owner == owner).order_by(*_NEWEST).limit(most)
                gone = memories.c.id.not_in(kept.scalar_subquery())
                await connection.execute(delete(memories).where(memories.c.owner == owner, gone))

    async def of(self, owner: str) -> Sequence[MemoryRow]:
        """All of an owner's."""
        query = select(*_COLUMNS).where(memories.c.owner == owner).order_by(*_NEWEST)
        async with self._database.reading() as connection:
            return [MemoryRow(**row) for row in (await connection.execute(query)).mappings()]

    async def newest(self, owner: str, *, limit: int, after: str | None = None) -> Sequence[MemoryRow]:
        """A page of them."""
        query = select(*_SHOWN).where(memories.c.owner == owner).order_by(*_NEWEST).limit(limit)
        if after is not None:
            there = select(memories.c.created_at, memories.c.id).where(
                memories.c.id == after, memories.c.owner == owner
            )
            query = query.where(
                tuple_(memories.c.created_at, memories.c.id) < there.subquery().select().scalar_subquery()
            )
        async with self._database.reading() as connection:
            return [MemoryRow(**row) for row in (await connection.execute(query)).mappings()]

    async def get(self, id: str, owner: str) -> MemoryRow | None:  # noqa: A002 - the contract's word
        """One of them."""
        query = select(*_COLUMNS).where(memories.c.id == id, memories.c.owner == owner)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        return MemoryRow(**found) if found is not None else None

    async def change(self, row: MemoryRow) -> bool:
        """Give one another text and vector."""
        values = {"text": row.text, "space": row.space, "vector": row.vector, "updated_at": row.updated_at}
        query = update(memories).where(memories.c.id == row.id, memories.c.owner == row.owner).values(**values)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount == 1

    async def delete(self, id: str, owner: str) -> bool:  # noqa: A002 - as above
        """Forget one."""
        query = delete(memories).where(memories.c.id == id, memories.c.owner == owner)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount == 1
