"""Keys made at run time, in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import insert, or_, select, update

from gateway.store.database import Database
from gateway.store.store import KeyRow
from gateway.store.tables import keys

_LISTS: Final = ("roles", "tags", "models", "routes", "tools")


class SqlKeys:
    """`Keys` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: KeyRow) -> None:
        """Keep a new key."""
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        for name in _LISTS:
            values[name] = None if values[name] is None else msgspec.json.encode(values[name]).decode()
        async with self._database.transaction() as connection:
            await connection.execute(insert(keys), values)

    async def active(self, now: float) -> Sequence[KeyRow]:
        """Every key that is neither revoked nor at its end."""
        query = select(keys).where(
            keys.c.revoked_at.is_(None), or_(keys.c.expires_at.is_(None), keys.c.expires_at > now)
        )
        async with self._database.reading() as connection:
            return [_row(row) for row in (await connection.execute(query)).mappings()]

    async def every(self, owner: str | None) -> Sequence[KeyRow]:
        """Every key, the newest first, revoked ones included."""
        query = select(keys).order_by(keys.c.created_at.desc(), keys.c.id)
        if owner is not None:
            query = query.where(keys.c.owner == owner)
        async with self._database.reading() as connection:
            return [_row(row) for row in (await connection.execute(query)).mappings()]

    async def revoke(self, id: str, owner: str | None, now: float) -> bool:  # noqa: A002 - the contract's word
        """End a key now."""
        query = update(keys).where(keys.c.id == id, keys.c.revoked_at.is_(None)).values(revoked_at=now)
        if owner is not None:
            query = query.where(keys.c.owner == owner)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount > 0

    async def ever_created(self) -> bool:
        """Whether there ever was a key."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(keys.c.id).limit(1)) is not None


def _row(row: Mapping[Any, Any]) -> KeyRow:
    values = dict(row)
    for name in _LISTS:
        values[name] = None if values[name] is None else tuple(msgspec.json.decode(values[name]))
    return KeyRow(**values)
