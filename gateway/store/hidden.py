"""Rounds that a client does not see, in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BindParameter, bindparam, delete, select
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import hidden_calls, hidden_rounds
from gateway.store.turn_records import HiddenRow

# Built once: building a statement takes longer than running it.
_OWNER: BindParameter[str] = bindparam("owner")
_KEEP = insert(hidden_rounds).on_conflict_do_nothing()
_FOUND = (
    select(hidden_rounds)
    .where(hidden_rounds.c.owner == _OWNER)
    .where(
        hidden_rounds.c.anchor.in_(bindparam("anchors", expanding=True))
        | hidden_rounds.c.id.in_(
            select(hidden_calls.c.hidden_id).where(
                hidden_calls.c.owner == _OWNER, hidden_calls.c.call_id.in_(bindparam("call_ids", expanding=True))
            )
        )
    )
    .order_by(hidden_rounds.c.id.desc())
)


class SqlHidden:
    """`Hidden` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, rows: Sequence[HiddenRow]) -> None:
        """Commit the rounds behind these messages; the same again changes nothing."""
        async with self._database.transaction() as connection:
            if bare := [_values(row) for row in rows if not row.call_ids]:
                await connection.execute(_KEEP, bare)
            for row in rows:
                if row.call_ids:
                    await _keep(connection, row)

    async def find(self, owner: str, anchors: Sequence[str], call_ids: Sequence[str]) -> Sequence[HiddenRow]:
        """The owner's rows with one of these anchors or of these call ids, the newest first."""
        asked = {"owner": owner, "anchors": list(anchors), "call_ids": list(call_ids)}
        async with self._database.reading() as connection:
            found = (await connection.execute(_FOUND, asked)).mappings().all()
            if not found:
                return []
            numbers = [row["id"] for row in found]
            calls = await connection.execute(
                select(hidden_calls.c.hidden_id, hidden_calls.c.call_id).where(hidden_calls.c.hidden_id.in_(numbers))
            )
            of_row: dict[int, list[str]] = {}
            for number, call_id in calls:
                of_row.setdefault(number, []).append(call_id)
        return [
            HiddenRow(
                owner=row["owner"],
                anchor=row["anchor"],
                visible=row["visible"],
                digest=row["digest"],
                messages=row["messages"],
                call_ids=tuple(sorted(of_row.get(row["id"], ()))),
                created_at=row["created_at"],
            )
            for row in found
        ]

    async def prune(self, *, before: float) -> int:
        """Forget rounds kept before then."""
        async with self._database.transaction() as connection:
            return (await connection.execute(delete(hidden_rounds).where(hidden_rounds.c.created_at < before))).rowcount


async def _keep(connection: AsyncConnection, row: HiddenRow) -> None:
    """Keep a row and the ids it is found by; where it is kept already, so are they."""
    made = await connection.execute(_KEEP, _values(row))
    if made.rowcount == 1:
        number = made.inserted_primary_key[0] if made.inserted_primary_key else None
        calls = [{"owner": row.owner, "call_id": call_id, "hidden_id": number} for call_id in row.call_ids]
        await connection.execute(insert(hidden_calls), calls)


def _values(row: HiddenRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in HiddenRow.__struct_fields__ if name != "call_ids"}
