"""What is owed to undo, in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, or_, select, update

from gateway.store.compensation_records import CompensationRow, CompensationStatus
from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import compensations

_NAMES = CompensationRow.__struct_fields__
_COLUMNS = [compensations.c[name] for name in _NAMES]
_MADE = ("made_id", "status", "attempts", "error", "finished_at")


class SqlCompensations:
    """`Compensations` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def owe(self, rows: Sequence[CompensationRow]) -> None:
        """Record these; those whose effect is owed already stay as they are."""
        if not rows:
            return
        query = insert(compensations).on_conflict_do_nothing(index_elements=[compensations.c.effect_id])
        async with self._database.transaction() as connection:
            for row in rows:
                await connection.execute(query, {name: getattr(row, name) for name in _NAMES})

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[CompensationRow]:
        """What is owed for a turn."""
        query = select(*_COLUMNS).where(compensations.c.turn_id == turn_id).order_by(compensations.c.position)
        return await self._find(query if owner is None else query.where(compensations.c.owner == owner))

    async def of_effects(self, effects: Sequence[str]) -> Sequence[CompensationRow]:
        """Those that undo one of these effects, or are one of them."""
        if not effects:
            return []
        which = or_(compensations.c.effect_id.in_(effects), compensations.c.made_id.in_(effects))
        return await self._find(select(*_COLUMNS).where(which))

    async def change(self, row: CompensationRow) -> None:
        """Write down how far an undoing is."""
        query = update(compensations).where(compensations.c.effect_id == row.effect_id)
        async with self._database.transaction() as connection:
            await connection.execute(query.values({name: getattr(row, name) for name in _MADE}))

    async def settle(self, made_id: str, *, status: CompensationStatus, error: str | None, now: float) -> bool:
        """Write down what came of an undoing by its own effect."""
        query = update(compensations).where(compensations.c.made_id == made_id)
        async with self._database.transaction() as connection:
            done = await connection.execute(query.values(status=status, error=error, finished_at=now))
            return done.rowcount == 1

    async def prune(self, *, before: float) -> int:
        """Forget what was undone before then."""
        over = (compensations.c.status == "done") & (compensations.c.finished_at < before)
        async with self._database.transaction() as connection:
            return (await connection.execute(delete(compensations).where(over))).rowcount

    async def _find(self, query: Any) -> list[CompensationRow]:
        async with self._database.reading() as connection:
            return [CompensationRow(**found) for found in (await connection.execute(query)).mappings().all()]
