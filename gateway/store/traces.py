"""Finished turns, in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from itertools import accumulate
from math import inf
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Select, SelectBase, and_, delete, func, select, tuple_, union_all
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.ids import begun_at, made_at
from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import approvals, trace_batches, trace_names, trace_owners
from gateway.store.trace_records import (
    BATCH_S,
    FRESH_S,
    SPAN_S,
    Kept,
    TraceBatch,
    TraceRow,
    TraceSummary,
    batches_of,
    kept_as,
    kept_of,
)

_ID_DIGITS: Final = 32
# Batches that one statement forgets: short transactions, so that the journal never waits long.
_FORGOTTEN: Final = 100
# Batches that are read at first for a list; then twice as many, and so on up to what keeps the event loop for some 3 ms.
_READ: Final = 4
_READ_AT_MOST: Final = 32

_COLUMNS: Final = tuple(column.name for column in trace_batches.c if column.name in TraceBatch.__struct_fields__)
_ADD: Final = f"INSERT INTO trace_batches ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - fixed names
_ADD_OWNER: Final = "INSERT INTO trace_owners (owner, newest_at, batch_id) VALUES (?, ?, ?)"
_ADD_NAME: Final = "INSERT INTO trace_names (name, batch_id) VALUES (?, ?)"


class SqlTraces:
    """`Traces` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, batches: Sequence[TraceBatch]) -> None:
        """Keep these in one transaction."""
        if not batches:
            return
        again = frozenset[str]().union(*(batch.again for batch in batches))
        if self._database.is_postgresql or again:
            async with self._database.transaction() as connection:
                for batch in batches:
                    for kept in await _without_earlier(connection, batch, again) if again else [batch]:
                        await _insert(connection, kept)
            return

        def insert_all(connection: sqlite3.Connection) -> None:
            for batch in batches:
                number = connection.execute(_ADD, _values(batch)).lastrowid
                connection.executemany(_ADD_OWNER, [(owner, batch.newest_at, number) for owner in batch.owners])
                connection.executemany(_ADD_NAME, [(name, number) for name in batch.names])

        # Straight to the driver, in one change of threads.
        await self._database.write_at_once(insert_all)

    async def get(self, id: str, owner: str | None) -> TraceRow | None:  # noqa: A002 - the contract's word
        """The trace of this trace id, request id, response id, or of the turn that asked for this approval."""
        async with self._database.reading() as connection:
            if id.startswith("apr_"):
                asked = await connection.scalar(select(approvals.c.trace_id).where(approvals.c.id == id))
                if asked is None:
                    return None
                id = str(asked)  # noqa: A001 - as above
            # Twice: what was found may just then be written anew without its neighbours.
            for _ in range(2):
                found = await _find(connection, id, owner)
                if found is None:
                    return None
                number, kept = found
                part = func.substr(trace_batches.c.events, kept.start + 1, kept.size)
                # Of an empty block SQLite makes none.
                events = await connection.scalar(select(func.coalesce(part, b"")).where(trace_batches.c.id == number))
                if events is not None:
                    return TraceRow(kept.summary, events)
        return None

    async def newest(self, owner: str | None, *, limit: int, after: str | None = None) -> Sequence[TraceSummary]:
        """The newest first, at most `limit`, older than the trace `after`."""
        async with self._database.reading() as connection:
            behind = None
            if after is not None:
                found = await _find(connection, after, owner)
                if found is None or found[1].summary.trace_id != after:
                    return []
                behind = found[1].summary.place
            # An earlier trace of a turn may stand beside its later one for as long as ids are fresh: that much more is read.
            until = inf if behind is None else behind[0] + 2 * FRESH_S
            since = -inf
            latest: dict[str, TraceSummary] = {}
            chosen: list[TraceSummary] = []
            async for newest_at, read in _read(connection, owner, until):
                for summary in read:
                    known = latest.get(summary.trace_id)
                    if since <= summary.started_at <= until and summary.stays_over(known):
                        latest[summary.trace_id] = summary
                ordered = sorted(latest.values(), key=_place_of, reverse=True)
                chosen = [each for each in ordered if behind is None or each.place < behind][:limit]
                if len(chosen) == limit:
                    since = chosen[-1].started_at - 2 * FRESH_S
                    if newest_at < since:
                        break
                    # What cannot be chosen any more is not put in order again and again.
                    latest = {each.trace_id: each for each in ordered if each.started_at >= since}
            return chosen

    async def prune(self, *, before: float, max_bytes: int) -> int:
        """Forget those that began before `before`, and the oldest beyond `max_bytes` of events; how many went."""
        gone = await self._forget(trace_batches.c.newest_at < before)
        for number in await self._at(before):
            gone += await self._thin(number, lambda kept: [each for each in kept if each.summary.started_at >= before])
        beyond = await self._first_beyond(max_bytes)
        if beyond is not None:
            number, newest_at, newer_bytes = beyond
            # The first condition is the index's.
            older = and_(trace_batches.c.newest_at <= newest_at, _newness < tuple_(newest_at, number))
            gone += await self._forget(older)
            gone += await self._thin(number, lambda kept: _newest_within(kept, max_bytes - newer_bytes))
        if gone:
            await self._database.shrink()
        return gone

    async def _at(self, moment: float) -> list[int]:
        """The batches with traces before this moment and others behind it."""
        batches = trace_batches.c
        query = select(batches.id).where(
            batches.newest_at >= moment, batches.newest_at <= moment + BATCH_S, batches.oldest_at < moment
        )
        async with self._database.reading() as connection:
            return list((await connection.scalars(query)).all())

    async def _first_beyond(self, max_bytes: int) -> tuple[int, float, int] | None:
        """The newest batch that does not fit with all newer ones: which, when its newest trace began, bytes of all newer ones."""
        batches = trace_batches.c
        newest_first = (batches.newest_at.desc(), batches.id.desc())
        # Gigabytes: PostgreSQL takes no number for a column of integers that is larger than they can be.
        total = func.sum(batches.size, type_=BigInteger()).over(order_by=newest_first)
        sums = select(
            batches.id, batches.newest_at, (total - batches.size).label("newer"), total.label("total")
        ).subquery()
        query = select(sums.c.id, sums.c.newest_at, sums.c.newer).where(sums.c.total > max_bytes)
        query = query.order_by(sums.c.newest_at.desc(), sums.c.id.desc()).limit(1)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else (row.id, row.newest_at, int(row.newer))

    async def _forget(self, condition: ColumnElement[bool]) -> int:
        """Forget these in short transactions; how many traces went."""
        gone, ids = 0, select(trace_batches.c.id).where(condition).limit(_FORGOTTEN)
        # Of two that wait for each other's rows PostgreSQL ends one. What somebody else is at can be forgotten the next time.
        ids = ids.with_for_update(skip_locked=True)
        going = delete(trace_batches).where(trace_batches.c.id.in_(ids)).returning(trace_batches.c.count)
        while True:
            async with self._database.transaction() as connection:
                counts = (await connection.scalars(going)).all()
            gone += int(sum(counts))
            if len(counts) < _FORGOTTEN:
                return gone

    async def _thin(self, number: int, choose: Callable[[Sequence[Kept]], Sequence[Kept]]) -> int:
        """Write a batch anew with the chosen of its traces alone; how many went."""
        async with self._database.transaction() as connection:
            return await _thin(connection, number, choose)


_place_of: Final = attrgetter("place")
_newness: Final = tuple_(trace_batches.c.newest_at, trace_batches.c.id)


def _values(batch: TraceBatch) -> tuple[Any, ...]:
    return tuple(getattr(batch, name) for name in _COLUMNS)


async def _insert(connection: AsyncConnection, batch: TraceBatch) -> None:
    values = dict(zip(_COLUMNS, _values(batch), strict=True))
    number = await connection.scalar(insert(trace_batches).values(values).returning(trace_batches.c.id))
    owners = [{"owner": owner, "newest_at": batch.newest_at, "batch_id": number} for owner in batch.owners]
    await connection.execute(insert(trace_owners), owners)
    if batch.names:
        await connection.execute(insert(trace_names), [{"name": name, "batch_id": number} for name in batch.names])


async def _thin(connection: AsyncConnection, number: int, choose: Callable[[Sequence[Kept]], Sequence[Kept]]) -> int:
    going = delete(trace_batches).where(trace_batches.c.id == number)
    row = (await connection.execute(going.returning(trace_batches.c.kept, trace_batches.c.events))).first()
    if row is None:
        return 0
    kept = kept_of(row.kept)
    stay = choose(kept)
    events = [row.events[each.start : each.start + each.size] for each in stay]
    for batch in batches_of([each.summary for each in stay], events):
        await _insert(connection, batch)
    return len(kept) - len(stay)


async def _without_earlier(connection: AsyncConnection, batch: TraceBatch, again: AbstractSet[str]) -> list[TraceBatch]:
    """The batch without traces of turns, of those `again`, of which a later one is kept; earlier ones are forgotten."""
    rows = batch.rows()
    last: dict[str, TraceRow] = {}
    for row in rows:
        trace_id = row.summary.trace_id
        known = last.get(trace_id)
        if trace_id in again and row.summary.stays_over(None if known is None else known.summary):
            last[trace_id] = row
    # In one order, or two writers might wait for each other.
    for trace_id in sorted(last):
        if await _is_superseded(connection, trace_id, last[trace_id].summary.finished_at):
            del last[trace_id]
    stay = [row for row in rows if row.summary.trace_id not in again or last.get(row.summary.trace_id) is row]
    return (
        [batch] if len(stay) == len(rows) else batches_of([row.summary for row in stay], [row.events for row in stay])
    )


async def _is_superseded(connection: AsyncConnection, trace_id: str, finished_at: float) -> bool:
    """Whether a trace of this turn is kept that ended later; those that did not are forgotten."""
    # Again and again: another writer may just have written their batch anew, with them.
    while places := await _places(connection, trace_id, None):
        if any(kept.summary.finished_at > finished_at for _, kept in places):
            return True
        for number in {number for number, _ in places}:
            await _thin(connection, number, partial(_without, trace_id))
    return False


async def _find(connection: AsyncConnection, name: str, owner: str | None) -> tuple[int, Kept] | None:
    """The newest trace that is called so, and its batch."""
    # What a turn is called ends with its trace id, or is listed.
    trace_id = name[-_ID_DIGITS:]
    named = select(trace_batches.c.kept).where(trace_batches.c.id.in_(_named(name)))
    listed = [each.summary for kept in await connection.scalars(named) for each in kept_of(kept)]
    called = [each for each in listed if each.is_called(name) and each.trace_id != trace_id]
    others = dict.fromkeys(each.trace_id for each in sorted(called, key=_place_of, reverse=True))
    found = [place async for place in _last_of(connection, [trace_id], name, owner)]
    async for place in _last_of(connection, others, name, owner):
        found.append(place)
        break
    return max(found, key=lambda each: each[1].summary.place, default=None)


async def _last_of(
    connection: AsyncConnection, trace_ids: Iterable[str], name: str, owner: str | None
) -> AsyncIterator[tuple[int, Kept]]:
    """Of each of these turns the trace that ended last, if it is called so, and its batch."""
    for trace_id in trace_ids:
        places = await _places(connection, trace_id, owner)
        # Of two that ended at once, the one that came later.
        last = max(reversed(places), key=lambda each: each[1].summary.finished_at, default=None)
        if last is not None and last[1].summary.is_called(name):
            yield last


async def _places(connection: AsyncConnection, trace_id: str, owner: str | None) -> list[tuple[int, Kept]]:
    """The traces of this id, with their batches."""
    batches = trace_batches.c
    holding: SelectBase = _named(trace_id)
    with suppress(ValueError):
        # The first condition bounds how much of the index is read.
        behind = begun_at(made_at(trace_id) + SPAN_S + 1)
        spanning = and_(batches.last_id < behind, batches.last_id >= trace_id, batches.first_id <= trace_id)
        holding = union_all(select(batches.id).where(spanning), _named(trace_id))
    query = select(batches.id, batches.kept).where(batches.id.in_(holding)).order_by(batches.id)
    return [
        (row.id, each)
        for row in await connection.execute(query)
        for each in kept_as(trace_id, row.kept)
        if owner in {None, each.summary.owner}
    ]


async def _read(
    connection: AsyncConnection, owner: str | None, until: float
) -> AsyncIterator[tuple[float, list[TraceSummary]]]:
    """The owner's traces, some batches at a time, those with the newest first: all of them, and when the newest of the last of them
    began.

    Only batches with traces that began by `until`.
    """
    batches = trace_batches.c
    at, number = (
        (batches.newest_at, batches.id) if owner is None else (trace_owners.c.newest_at, trace_owners.c.batch_id)
    )
    query = select(at, number, batches.kept).order_by(at.desc(), number.desc())
    if owner is not None:
        query = query.join_from(trace_owners, trace_batches, batches.id == number).where(trace_owners.c.owner == owner)
    if until < inf:
        # The first condition is the index's.
        query = query.where(at <= until + BATCH_S, batches.oldest_at <= until)
    count, last = _READ, None
    while True:
        page = query if last is None else query.where(at <= last[0], tuple_(at, number) < tuple_(*last))
        rows = (await connection.execute(page.limit(count))).all()
        if rows:
            last = (rows[-1][0], rows[-1][1])
            summaries = (each.summary for *_, kept in rows for each in kept_of(kept))
            yield last[0], [each for each in summaries if owner in {None, each.owner}]
        if len(rows) < count:
            return
        count = min(2 * count, _READ_AT_MOST)


def _named(name: str) -> Select[int]:
    """The batches that list this name."""
    return select(trace_names.c.batch_id).where(trace_names.c.name == name)


def _without(trace_id: str, kept: Sequence[Kept]) -> list[Kept]:
    return [each for each in kept if each.summary.trace_id != trace_id]


def _newest_within(kept: Sequence[Kept], room: int) -> list[Kept]:
    """The newest of these that have room, in their order."""
    newest_first = sorted(kept, key=lambda each: each.summary.place, reverse=True)
    sizes = accumulate(each.size for each in newest_first)
    fitting = {each.start for each, size in zip(newest_first, sizes, strict=True) if size <= room}
    return [each for each in kept if each.start in fitting]
