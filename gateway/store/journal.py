"""The durable steps of turns, in the database."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import delete, insert, select

from gateway.errors import StoreUnavailable
from gateway.store.database import Database
from gateway.store.reopening import is_closed
from gateway.store.store import JournalEntry
from gateway.store.tables import journal, turns


class SqlJournal:
    """`Journal` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False) -> None:
        """Commit these in one transaction, where their turn is held by that attempt."""
        if not entries:
            return
        values = [
            {name: getattr(entry, name) for name in entry.__struct_fields__}
            | {"content": msgspec.json.encode(entry.content).decode()}
            for entry in entries
        ]
        held = select(turns.c.turn_id).where(turns.c.turn_id == entries[0].turn_id, turns.c.holder == held_by)
        async with self._database.transaction(hasty=hasty) as connection:
            if held_by is not None and await connection.scalar(held) is None:
                raise StoreUnavailable("Another process has taken this turn over.", retryable=True)
            await connection.execute(insert(journal), values)

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[JournalEntry]:
        """The turn's entries in order."""
        columns = [journal.c[name] for name in JournalEntry.__struct_fields__]
        query = (
            select(*columns)
            .where(journal.c.turn_id == turn_id)
            .order_by(journal.c.round, journal.c.kind, journal.c.position)
        )
        if owner is not None:
            query = query.where(journal.c.owner == owner)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [JournalEntry(**{**row, "content": msgspec.json.decode(row["content"])}) for row in rows]

    async def prune(self, *, before: float) -> int:
        """Forget entries older than `before`, but for those of runs that may go on."""
        old = delete(journal).where(journal.c.created_at < before, is_closed(journal.c.turn_id))
        async with self._database.transaction() as connection:
            return (await connection.execute(old)).rowcount
