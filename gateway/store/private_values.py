"""What placeholders stand for, in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, or_, select

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import private_values
from gateway.store.value_records import ValueRow

_KEEPING = insert(private_values)
_KEEP: Final = _KEEPING.on_conflict_do_update(
    index_elements=[private_values.c.owner, private_values.c.placeholder],
    set_={"expires_at": _KEEPING.excluded.expires_at, "sealed": _KEEPING.excluded.sealed},
)


class SqlPrivateValues:
    """`PrivateValues` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, rows: Sequence[ValueRow]) -> None:
        """Keep these, all or none."""
        # In one order everywhere, so that writers who meet wait for each other and never in a circle; each once.
        ordered = sorted({(row.owner, row.placeholder): row for row in rows}.items())
        async with self._database.transaction() as connection:
            await connection.execute(_KEEP, [{n: getattr(row, n) for n in row.__struct_fields__} for _, row in ordered])

    async def get(self, placeholder: str, owner: str) -> ValueRow | None:
        """The owner's value, or None."""
        query = select(private_values).where(
            private_values.c.owner == owner, private_values.c.placeholder == placeholder
        )
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        return None if found is None else ValueRow(**found)

    async def newest(self, owner: str, beginnings: Sequence[str], limit: int) -> list[ValueRow]:
        """An owner's values whose placeholders begin like one of these."""
        placeholder = private_values.c.placeholder
        query = (
            select(private_values)
            .where(private_values.c.owner == owner, or_(*(placeholder.startswith(each) for each in beginnings)))
            .order_by(private_values.c.expires_at.desc())
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [ValueRow(**found) for found in (await connection.execute(query)).mappings()]

    async def prune(self, *, before: float) -> int:
        """Forget those whose time was over before then."""
        async with self._database.transaction() as connection:
            gone = await connection.execute(delete(private_values).where(private_values.c.expires_at < before))
            return gone.rowcount
