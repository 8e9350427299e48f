"""The ledger of effects, in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, select, update

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.reopening import is_closed
from gateway.store.tables import effects
from gateway.store.turn_records import EffectRow, EffectStatus

# Built once: building a statement takes longer than running it.
_START = insert(effects).on_conflict_do_nothing()
_FINISH = (
    update(effects)
    .where(effects.c.id == bindparam("of_effect"), effects.c.status.in_(("started", "unknown")))
    .values({name: bindparam(f"to_{name}") for name in ("status", "content", "note", "finished_at", "undo")})
)

_COLUMNS = [effects.c[name] for name in EffectRow.__struct_fields__]


class SqlEffects:
    """`Effects` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(self, row: EffectRow) -> EffectRow | None:
        """Commit that an effect is about to happen and answer None; or the effect of this key that is there."""
        values = {name: getattr(row, name) for name in EffectRow.__struct_fields__}
        async with self._database.transaction() as connection:
            if (await connection.execute(_START, values)).rowcount == 1:
                return None
            known = select(*_COLUMNS).where(effects.c.owner == row.owner, effects.c.effect_key == row.effect_key)
            found = (await connection.execute(known)).mappings().first()
            return None if found is None else EffectRow(**found)

    async def finish(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        status: EffectStatus,
        content: str,
        note: str | None,
        now: float,
        undo: str | None = None,
    ) -> bool:
        """Commit how an effect ended; False where it had ended before."""
        values = {"to_status": status, "to_content": content, "to_note": note, "to_finished_at": now, "to_undo": undo}
        async with self._database.transaction() as connection:
            return (await connection.execute(_FINISH, {"of_effect": id, **values})).rowcount == 1

    async def restart(self, id: str, *, seen: EffectRow, row: EffectRow) -> bool:  # noqa: A002 - the contract's word
        """Begin an effect anew that has not happened. False where it changed since it was seen."""
        as_seen = (
            (effects.c.id == id)
            & (effects.c.status == seen.status)
            & (effects.c.holder == seen.holder)
            & (effects.c.started_at == seen.started_at)
        )
        values = {name: getattr(row, name) for name in EffectRow.__struct_fields__ if name not in ("id", "effect_key")}
        return await self._change(as_seen, **values)

    async def get(self, id: str, owner: str | None) -> EffectRow | None:  # noqa: A002 - the contract's word
        """One effect."""
        found = await self._find(select(*_COLUMNS).where(effects.c.id == id), owner)
        return found[0] if found else None

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[EffectRow]:
        """A turn's effects, in the order of their calls."""
        query = select(*_COLUMNS).where(effects.c.turn_id == turn_id)
        return await self._find(query.order_by(effects.c.round, effects.c.position), owner)

    async def newest(
        self, owner: str | None, *, status: EffectStatus | None = None, limit: int, after: str | None = None
    ) -> Sequence[EffectRow]:
        """The newest first, at most `limit`, older than the effect `after`."""
        query = select(*_COLUMNS).order_by(effects.c.started_at.desc(), effects.c.id.desc()).limit(limit)
        if status is not None:
            query = query.where(effects.c.status == status)
        if after is not None:
            last = await self.get(after, owner)
            if last is None:
                return []
            older = (effects.c.started_at < last.started_at) | (
                (effects.c.started_at == last.started_at) & (effects.c.id < last.id)
            )
            query = query.where(older)
        return await self._find(query, owner)

    async def lapse(self, *, before: float, content: str, note: str, now: float) -> int:
        """Count effects as `unknown` that were held until before then and whose end nobody wrote down."""
        lost = (effects.c.status == "started") & (effects.c.held_until < before)
        async with self._database.reading() as connection:
            # Mostly there are none, and looking takes nobody's turn to write.
            if await connection.scalar(select(effects.c.id).where(lost).limit(1)) is None:
                return 0
        values = {"status": "unknown", "content": content, "note": note, "finished_at": now}
        async with self._database.transaction() as connection:
            return (await connection.execute(update(effects).where(lost).values(**values))).rowcount

    async def prune(self, *, before: float) -> int:
        """Forget effects that ended before then; those whose outcome is not known stay, and those of runs that may go on."""
        over = (
            effects.c.status.in_(("done", "failed")) & (effects.c.finished_at < before) & is_closed(effects.c.turn_id)
        )
        async with self._database.transaction() as connection:
            return (await connection.execute(delete(effects).where(over))).rowcount

    async def _find(self, query: Any, owner: str | None) -> list[EffectRow]:
        if owner is not None:
            query = query.where(effects.c.owner == owner)
        async with self._database.reading() as connection:
            return [EffectRow(**found) for found in (await connection.execute(query)).mappings().all()]

    async def _change(self, condition: Any, **values: Any) -> bool:
        async with self._database.transaction() as connection:
            return (await connection.execute(update(effects).where(condition).values(**values))).rowcount == 1
