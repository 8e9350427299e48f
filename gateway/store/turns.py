"""Turns that can be joined, in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select, update

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import runs, turns
from gateway.store.turn_records import TurnRow, TurnStatus

# Built once: building a statement takes longer than running it.
_BEGIN = insert(turns).on_conflict_do_nothing()
_RUN_OF_KEY = select(runs.c.id).where(
    runs.c.owner == bindparam("of_owner"),
    runs.c.idempotency_key == bindparam("of_key"),
    runs.c.created_at >= bindparam("keys_since"),
)
_DELIVERED = update(turns).where(turns.c.turn_id == bindparam("of_turn")).values(delivered=True)

_COLUMNS = [turns.c[name] for name in TurnRow.__struct_fields__]


class SqlTurns:
    """`Turns` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self, row: TurnRow, *, since: float | None = None, hasty: bool = False, keys_since: float = 0.0
    ) -> TurnRow | None:
        """Commit a new turn and answer None; or the turn that is there."""
        values = {name: getattr(row, name) for name in TurnRow.__struct_fields__} | {"meta": _json(row.meta)}
        known = turns.c.turn_id == row.turn_id
        if row.key is not None:
            known = known | ((turns.c.owner == row.owner) & (turns.c.key == row.key))
        async with self._database.transaction(hasty=hasty) as connection:
            if since is not None:
                rival = select(*_COLUMNS).where(_rival(row, since)).limit(1)
                found = (await connection.execute(rival)).mappings().first()
                if found is not None:
                    return _row(found)
            # A run's own turn has the run's id for its key.
            if row.key is not None and row.key != f"run_{row.turn_id}":
                asked = {"of_owner": row.owner, "of_key": row.key, "keys_since": keys_since}
                if (run := await connection.scalar(_RUN_OF_KEY, asked)) is not None:
                    return msgspec.structs.replace(row, turn_id=run, body_hash="", status="answered")
            if (await connection.execute(_BEGIN, values)).rowcount == 1:
                return None
            found = (await connection.execute(select(*_COLUMNS).where(known))).mappings().first()
            return None if found is None else _row(found)

    async def get(self, turn_id: str, owner: str | None) -> TurnRow | None:
        """One turn."""
        found = await self._find(turns.c.turn_id == turn_id, *(() if owner is None else (turns.c.owner == owner,)))
        return found[0] if found else None

    async def by_key(self, owner: str, key: str) -> TurnRow | None:
        """The owner's turn of this idempotency key."""
        found = await self._find(turns.c.owner == owner, turns.c.key == key)
        return found[0] if found else None

    async def by_body(self, owner: str, body_hash: str, *, since: float) -> Sequence[TurnRow]:
        """The owner's undelivered turns without a key that were asked this since then, the newest first."""
        return await self._find(
            turns.c.owner == owner,
            turns.c.body_hash == body_hash,
            turns.c.key.is_(None),
            turns.c.created_at >= since,
            turns.c.delivered.is_(False),
        )

    async def take(self, turn_id: str, holder: str, *, seen: TurnRow, until: float, now: float) -> bool:
        """Become the holder of a turn as it was seen; False where somebody else was quicker."""
        as_seen = (
            (turns.c.turn_id == turn_id)
            & (turns.c.holder == seen.holder)
            & (turns.c.held_until == seen.held_until)
            & (turns.c.status == seen.status)
        )
        return await self._change(as_seen, holder=holder, held_until=until, status="running", updated_at=now)

    async def keep(self, turn_id: str, holder: str, *, until: float) -> bool:
        """Hold on to a running turn; False where it is somebody else's by now."""
        # Who lost power holds nothing.
        return await self._change(_held(turn_id, holder), hasty=True, held_until=until)

    async def end(
        self,
        turn_id: str,
        holder: str,
        *,
        status: TurnStatus,
        http_status: int,
        answer: bytes,
        meta: Any,
        now: float,
        hasty: bool = False,
    ) -> bool:
        """Commit how a turn ended; False where it is somebody else's by now."""
        return await self._change(
            _held(turn_id, holder),
            hasty=hasty,
            status=status,
            http_status=http_status,
            answer=answer,
            meta=_json(meta),
            updated_at=now,
        )

    async def delivered(self, turn_id: str) -> None:
        """Note that the client has the answer."""
        async with self._database.transaction() as connection:
            await connection.execute(_DELIVERED, {"of_turn": turn_id})

    async def forget(self, turn_id: str) -> None:
        """Forget one turn."""
        async with self._database.transaction() as connection:
            await connection.execute(delete(turns).where(turns.c.turn_id == turn_id))

    async def prune(self, *, before: float) -> int:
        """Forget turns that began before."""
        async with self._database.transaction() as connection:
            return (await connection.execute(delete(turns).where(turns.c.created_at < before))).rowcount

    async def _find(self, *conditions: Any) -> list[TurnRow]:
        query = select(*_COLUMNS).where(*conditions).order_by(turns.c.created_at.desc(), turns.c.turn_id.desc())
        async with self._database.reading() as connection:
            return [_row(found) for found in (await connection.execute(query)).mappings().all()]

    async def _change(self, condition: Any, *, hasty: bool = False, **values: Any) -> bool:
        async with self._database.transaction(hasty=hasty) as connection:
            return (await connection.execute(update(turns).where(condition).values(**values))).rowcount == 1


def _rival(row: TurnRow, since: float) -> Any:
    same = (turns.c.owner == row.owner) & (turns.c.body_hash == row.body_hash) & turns.c.key.is_(None)
    theirs = turns.c.delivered.is_(False) if row.retried else turns.c.retried.is_(True)
    return same & (turns.c.created_at >= since) & theirs


def _held(turn_id: str, holder: str) -> Any:
    return (turns.c.turn_id == turn_id) & (turns.c.holder == holder) & (turns.c.status == "running")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _row(found: Mapping[Any, Any]) -> TurnRow:
    return TurnRow(**{**found, "meta": msgspec.json.decode(found["meta"])})
