"""Sessions and their messages, in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import delete, select, update
from sqlalchemy import insert as plain_insert

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.session_records import Change, SessionRow
from gateway.store.tables import session_messages, sessions

_COLUMNS = [sessions.c[name] for name in SessionRow.__struct_fields__]


class SqlSessions:
    """`Sessions` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(
        self, owner: str, name: str, holder: str, *, until: float, now: float, alive: Callable[[str], bool]
    ) -> SessionRow | None:
        """Hold a session."""
        here = (sessions.c.owner == owner) & (sessions.c.name == name)
        found = await self._one(owner, name)
        if found is None:
            new = {"owner": owner, "name": name, "created_at": now, "updated_at": now, "expires_at": until}
            async with self._database.transaction() as connection:
                await connection.execute(insert(sessions).on_conflict_do_nothing(), new)
            found = await self._one(owner, name)
            if found is None:
                return None
        if found.holder and found.held_until > now and alive(found.holder):
            return None
        free = here & (sessions.c.holder == found.holder) & (sessions.c.held_until == found.held_until)
        changed = update(sessions).where(free).values(holder=holder, held_until=until).returning(*_COLUMNS)
        async with self._database.transaction() as connection:
            taken = (await connection.execute(changed)).mappings().first()
        return SessionRow(**taken) if taken is not None else None

    async def messages(self, number: int) -> Sequence[bytes]:
        """A session's messages."""
        query = select(session_messages.c.message).where(session_messages.c.session == number)
        async with self._database.reading() as connection:
            return list((await connection.execute(query.order_by(session_messages.c.position))).scalars())

    async def change(self, number: int, holder: str, change: Change, *, now: float, ttl_s: float) -> bool:
        """Change a session."""
        end = change.upto + len(change.messages)
        values = {
            "head": change.head,
            "first": change.first,
            "end": end,
            "size": change.size,
            "last": change.last,
            "last_print": change.last_print,
            "holder": "",
            "held_until": 0.0,
            "updated_at": now,
            "expires_at": now + ttl_s,
            "revision": sessions.c.revision + 1,
        }
        held = (sessions.c.number == number) & (sessions.c.holder == holder)
        position = session_messages.c.position
        async with self._database.transaction() as connection:
            if (await connection.execute(update(sessions).where(held).values(values))).rowcount != 1:
                return False
            gone = (position >= change.upto) | (position < change.first)
            await connection.execute(delete(session_messages).where(session_messages.c.session == number, gone))
            rows = [
                {"session": number, "position": at, "message": message}
                for at, message in enumerate(change.messages, change.upto)
                if at >= change.first
            ]
            if rows:
                await connection.execute(plain_insert(session_messages), rows)
        return True

    async def release(self, number: int, holder: str) -> None:
        """Hold it no more."""
        held = (sessions.c.number == number) & (sessions.c.holder == holder)
        async with self._database.transaction() as connection:
            await connection.execute(update(sessions).where(held).values(holder="", held_until=0.0))

    async def get(self, owner: str, name: str, *, now: float) -> SessionRow | None:
        """One session."""
        found = await self._one(owner, name)
        return found if found is not None and found.revision > 0 and found.expires_at > now else None

    async def delete(self, owner: str, name: str) -> bool:
        """Forget a session."""
        query = delete(sessions).where(sessions.c.owner == owner, sessions.c.name == name)
        async with self._database.transaction() as connection:
            return (await connection.execute(query.returning(sessions.c.revision))).scalar_one_or_none() not in (
                None,
                0,
            )

    async def prune(self, *, before: float) -> int:
        """Forget those that expired."""
        query = delete(sessions).where(sessions.c.expires_at < before, sessions.c.held_until < before)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount

    async def _one(self, owner: str, name: str) -> SessionRow | None:
        query = select(*_COLUMNS).where(sessions.c.owner == owner, sessions.c.name == name)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        return SessionRow(**found) if found is not None else None
