"""Rounds that a client does not see, in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.database import Database
from gateway.store.tables import hidden_calls, hidden_rounds
from gateway.store.turn_records import HiddenRow


class SqlHidden:
    """`Hidden` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, rows: Sequence[HiddenRow]) -> None:
        """Commit the rounds behind these messages; the same again changes nothing."""
        async with self._database.transaction() as connection:
            for row in rows:
                await _keep(connection, row)

    async def find(self, owner: str, anchors: Sequence[str], call_ids: Sequence[str]) -> Sequence[HiddenRow]:
        """The owner's rows with one of these anchors or of these call ids, the newest first."""
        mine = hidden_calls.c.owner == owner
        by_call = select(hidden_calls.c.hidden_id).where(mine, hidden_calls.c.call_id.in_(call_ids))
        query = (
            select(hidden_rounds)
            .where(hidden_rounds.c.owner == owner)
            .where(hidden_rounds.c.anchor.in_(anchors) | hidden_rounds.c.id.in_(by_call))
            .order_by(hidden_rounds.c.id.desc())
        )
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().all()
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
    same = (
        (hidden_rounds.c.owner == row.owner)
        & (hidden_rounds.c.anchor == row.anchor)
        & (hidden_rounds.c.digest == row.digest)
    )
    if await connection.scalar(select(hidden_rounds.c.id).where(same)) is not None:
        return
    values = {name: getattr(row, name) for name in HiddenRow.__struct_fields__ if name != "call_ids"}
    made = await connection.execute(insert(hidden_rounds).values(**values))
    number = made.inserted_primary_key[0] if made.inserted_primary_key else None
    for call_id in row.call_ids:
        await connection.execute(insert(hidden_calls).values(owner=row.owner, call_id=call_id, hidden_id=number))
