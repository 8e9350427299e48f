"""Keys made at run time, in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import insert, or_, select, update

from gateway.store.database import Database
from gateway.store.key_records import KeyRow, SecretRow
from gateway.store.tables import key_secrets, keys

_JSON: Final = ("roles", "tags", "models", "routes", "tools", "limits", "budgets")
_LISTS: Final = frozenset({"roles", "tags", "models", "routes", "tools"})
_COLUMNS: Final = [keys.c[name] for name in KeyRow.__struct_fields__ if name != "secrets"]
_SECRET: Final = [key_secrets.c[name] for name in SecretRow.__struct_fields__]
# A key of the database is read by its secret on the way of a request: one statement.
_BY_DIGEST: Final = select(*_COLUMNS, *(column.label(f"secret_{column.name}") for column in _SECRET)).join(
    key_secrets, key_secrets.c.key_id == keys.c.id
)


class SqlKeys:
    """`Keys` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: KeyRow) -> None:
        """Keep a new key with its secrets."""
        values = _values({name: getattr(row, name) for name in row.__struct_fields__ if name != "secrets"})
        async with self._database.transaction() as connection:
            await connection.execute(insert(keys), values)
            for secret in row.secrets:
                await connection.execute(insert(key_secrets), _secret(secret, row))

    async def find(self, digest: str) -> KeyRow | None:
        """The key of this secret."""
        async with self._database.reading() as connection:
            found = (await connection.execute(_BY_DIGEST.where(key_secrets.c.digest == digest))).mappings().first()
        if found is None:
            return None
        secret = SecretRow(**{name: found[f"secret_{name}"] for name in SecretRow.__struct_fields__})
        return _row({column.name: found[column.name] for column in _COLUMNS}, (secret,))

    async def get(self, id: str) -> KeyRow | None:  # noqa: A002 - the contract's word
        """One key."""
        async with self._database.reading() as connection:
            return await _one(connection, id)

    async def every(self, *, limit: int | None = None, after: str | None = None) -> Sequence[KeyRow]:
        """The newest first."""
        query = select(*_COLUMNS).order_by(keys.c.created_at.desc(), keys.c.id.desc())
        if limit is not None:
            query = query.limit(limit)
        async with self._database.reading() as connection:
            if after is not None:
                at = await connection.scalar(select(keys.c.created_at).where(keys.c.id == after))
                if at is None:
                    return []
                query = query.where(or_(keys.c.created_at < at, (keys.c.created_at == at) & (keys.c.id < after)))
            found = (await connection.execute(query)).mappings().all()
            secrets = await _secrets(connection, [row["id"] for row in found])
        return [_row(row, secrets.get(row["id"], ())) for row in found]

    async def change(self, id: str, values: Mapping[str, Any]) -> KeyRow | None:  # noqa: A002 - the contract's word
        """Change some of a key's fields."""
        alive = (keys.c.id == id) & keys.c.revoked_at.is_(None)
        async with self._database.transaction() as connection:
            if values:
                await connection.execute(update(keys).where(alive).values(**_values(values)))
            found = await _one(connection, id)
        return None if found is None or found.revoked_at is not None else found

    async def rotate(self, id: str, secret: SecretRow, *, old_until: float) -> KeyRow | None:  # noqa: A002 - the contract's word
        """Add a secret; the others end soon."""
        longer = or_(key_secrets.c.expires_at.is_(None), key_secrets.c.expires_at > old_until)
        async with self._database.transaction() as connection:
            row = await _one(connection, id)
            if row is None or row.revoked_at is not None:
                return None
            await connection.execute(
                update(key_secrets).where(key_secrets.c.key_id == id, longer).values(expires_at=old_until)
            )
            await connection.execute(insert(key_secrets), _secret(secret, row))
            return await _one(connection, id)

    async def revoke(self, id: str, now: float) -> bool:  # noqa: A002 - the contract's word
        """End a key now."""
        query = update(keys).where(keys.c.id == id, keys.c.revoked_at.is_(None)).values(revoked_at=now)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount > 0

    async def any_active(self, now: float) -> bool:
        """Whether some key counts now."""
        active = keys.c.revoked_at.is_(None) & keys.c.blocked.is_(False)
        lasting = or_(keys.c.expires_at.is_(None), keys.c.expires_at > now)
        async with self._database.reading() as connection:
            return await connection.scalar(select(keys.c.id).where(active, lasting).limit(1)) is not None

    async def ever_created(self) -> bool:
        """Whether there ever was a key."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(keys.c.id).limit(1)) is not None


async def _one(connection: Any, id: str) -> KeyRow | None:  # noqa: A002 - the contract's word
    found = (await connection.execute(select(*_COLUMNS).where(keys.c.id == id))).mappings().first()
    return None if found is None else _row(found, (await _secrets(connection, [id])).get(id, ()))


async def _secrets(connection: Any, ids: Sequence[str]) -> dict[str, tuple[SecretRow, ...]]:
    query = select(key_secrets.c.key_id, *_SECRET).order_by(key_secrets.c.created_at.desc(), key_secrets.c.digest)
    # A list of a page is named; all of them are not, for a statement takes only so many names.
    if len(ids) <= 500:
        query = query.where(key_secrets.c.key_id.in_(ids))
    found: dict[str, tuple[SecretRow, ...]] = {}
    for row in (await connection.execute(query)).mappings():
        key_id = row["key_id"]
        secret = SecretRow(**{name: row[name] for name in SecretRow.__struct_fields__})
        found[key_id] = (*found.get(key_id, ()), secret)
    return found


def _secret(secret: SecretRow, row: KeyRow) -> dict[str, Any]:
    return {**{name: getattr(secret, name) for name in secret.__struct_fields__}, "key_id": row.id, "owner": row.owner}


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: msgspec.json.encode(value).decode() if name in _JSON and value is not None else value
        for name, value in values.items()
    }


def _row(found: Mapping[Any, Any], secrets: tuple[SecretRow, ...]) -> KeyRow:
    values = dict(found)
    for name in _JSON:
        if values[name] is not None:
            read = msgspec.json.decode(values[name])
            values[name] = tuple(read) if name in _LISTS else read
    return KeyRow(**values, secrets=secrets)
