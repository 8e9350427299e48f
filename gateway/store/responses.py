"""Responses and their events, in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, literal, select, update
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.conversations import append_items
from gateway.store.database import Database
from gateway.store.response_records import ConversationItem, EventBatch, ResponseRow, ResponseStatus
from gateway.store.tables import response_events, responses

_COLUMNS = [responses.c[name] for name in ResponseRow.__struct_fields__]
_UNENDED = ("queued", "in_progress")


class SqlResponses:
    """`Responses` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, row: ResponseRow, events: Sequence[EventBatch] = (), said: Sequence[ConversationItem] = ()
    ) -> None:
        """Keep a new response."""
        values = {name: getattr(row, name) for name in ResponseRow.__struct_fields__}
        # One that is being made outlives a process, and is nothing yet that a machine's end could take away.
        async with self._database.transaction(hasty=not row.over) as connection:
            await connection.execute(insert(responses).values(**values))
            await _keep(connection, row.id, events)
            if row.conversation_id is not None and said:
                await append_items(connection, row.conversation_id, said)

    async def append(self, id: str, holder: str, events: Sequence[EventBatch], *, until: float) -> bool:  # noqa: A002 - the contract's word
        """Keep events of a response that is being made."""
        async with self._database.transaction(hasty=True) as connection:
            held = update(responses).where(_held(id, holder)).values(held_until=until)
            if (await connection.execute(held)).rowcount != 1:
                return False
            await _keep(connection, id, events)
        return True

    async def take(self, id: str, holder: str, *, until: float, now: float) -> bool:  # noqa: A002 - as above
        """Become the one who makes a response."""
        taken = (
            update(responses)
            .where(responses.c.id == id, responses.c.status.not_in(("completed", "incomplete")))
            .values(holder=holder, held_until=until, status="in_progress", updated_at=now)
        )
        async with self._database.transaction(hasty=True) as connection:
            return (await connection.execute(taken)).rowcount == 1

    async def end(
        self,
        id: str,  # noqa: A002 - as above
        holder: str,
        *,
        status: ResponseStatus,
        body: bytes,
        events: Sequence[EventBatch] = (),
        said: Sequence[ConversationItem] = (),
        now: float,
    ) -> bool:
        """Keep how a response ended."""
        async with self._database.transaction() as connection:
            ended = update(responses).where(_held(id, holder)).values(status=status, body=body, updated_at=now)
            if (await connection.execute(ended)).rowcount != 1:
                return False
            await _keep(connection, id, events)
            if said:
                conversation = await connection.scalar(select(responses.c.conversation_id).where(responses.c.id == id))
                if conversation is not None:
                    await append_items(connection, conversation, said)
        return True

    async def get(self, id: str, owner: str | None) -> ResponseRow | None:  # noqa: A002 - as above
        """One response."""
        query = select(*_COLUMNS).where(responses.c.id == id)
        if owner is not None:
            query = query.where(responses.c.owner == owner)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        return None if found is None else _row(found)

    async def chain(self, id: str, owner: str, *, limit: int) -> Sequence[ResponseRow]:  # noqa: A002 - as above
        """A response and those it continues, the oldest first."""
        first = (
            select(responses.c.id, responses.c.previous_id, literal(1).label("depth"))
            .where(responses.c.id == id, responses.c.owner == owner)
            .cte("chain", recursive=True)
        )
        before = responses.alias()
        chain = first.union_all(
            select(before.c.id, before.c.previous_id, first.c.depth + 1).where(
                before.c.id == first.c.previous_id, before.c.owner == owner, first.c.depth < limit
            )
        )
        query = select(*_COLUMNS).join(chain, chain.c.id == responses.c.id).order_by(chain.c.depth.desc())
        async with self._database.reading() as connection:
            return [_row(found) for found in (await connection.execute(query)).mappings().all()]

    async def events(self, id: str, *, after: int, limit: int) -> Sequence[EventBatch]:  # noqa: A002 - as above
        """Batches in which there are events behind `after`."""
        query = (
            select(response_events.c.first, response_events.c.last, response_events.c.frames)
            .where(response_events.c.response_id == id, response_events.c.last > after)
            .order_by(response_events.c.last)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [EventBatch(*found) for found in (await connection.execute(query)).all()]

    async def delete(self, id: str, owner: str | None) -> bool:  # noqa: A002 - as above
        """Forget a response."""
        query = delete(responses).where(responses.c.id == id)
        if owner is not None:
            query = query.where(responses.c.owner == owner)
        async with self._database.transaction() as connection:
            return (await connection.execute(query)).rowcount == 1

    async def prune(self, *, before: float, events_before: float) -> int:
        """Forget responses and events."""
        over = responses.c.status.not_in(_UNENDED)
        stale = select(responses.c.id).where(over, responses.c.updated_at < events_before)
        async with self._database.transaction() as connection:
            await connection.execute(delete(response_events).where(response_events.c.response_id.in_(stale)))
            # One that a run still has to make may have waited for long.
            old = (responses.c.updated_at < before) & (over | responses.c.background.is_(False))
            return (await connection.execute(delete(responses).where(old))).rowcount


async def _keep(connection: AsyncConnection, response_id: str, events: Sequence[EventBatch]) -> None:
    if events:
        values = [
            {"response_id": response_id, "first": batch.first, "last": batch.last, "frames": batch.frames}
            for batch in events
        ]
        await connection.execute(insert(response_events), values)


def _held(response_id: str, holder: str) -> Any:
    return (responses.c.id == response_id) & (responses.c.holder == holder) & responses.c.status.in_(_UNENDED)


def _row(found: Mapping[Any, Any]) -> ResponseRow:
    return ResponseRow(**found)
