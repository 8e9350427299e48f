"""Finished turns, in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, and_, delete, func, select, tuple_
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import approvals, trace_batches, trace_names, trace_owners
from gateway.store.trace_records import (
    BATCH_S,
    FRESH_S,
    Kept,
    TraceBatch,
    TraceRow,
    TraceSummary,
    batches_of,
    kept_of,
)

_ID_DIGITS: Final = 32
# Batches that one statement forgets: short transactions, so that the journal never waits long.
_FORGOTTEN: Final = 100
# Batches that are read at first for a list; then twice as many, and so on.
_READ: Final = 4

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
        if self._database.is_postgresql or any(batch.again for batch in batches):
            async with self._database.transaction() as connection:
                for batch in batches:
                    for kept in await _without_earlier(connection, batch):
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
                events = await connection.scalar(select(part).where(trace_batches.c.id == number))
                if events is not None:
                    return TraceRow(kept.summary, events)
        return None

    async def newest(self, owner: str | None, *, limit: int, after: str | None = None) -> Sequence[TraceSummary]:
        """The newest first, at most `limit`, older than the trace `after`."""
        async with self._database.reading() as connection:
            behind = None
            if after is not None:
                found = await _find(connection, after, owner)
                if found is None:
                    return []
                behind = found[1].summary.place
            # An earlier trace of a turn may stand beside its later one for as long as ids are fresh: that much more is read.
            until = None if behind is None else behind[0] + 2 * FRESH_S
            latest: dict[str, TraceSummary] = {}
            chosen: list[TraceSummary] = []
            async for newest_at, read in _read(connection, owner, until):
                for summary in read:
                    known = latest.get(summary.trace_id)
                    if known is None or known.finished_at <= summary.finished_at:
                        latest[summary.trace_id] = summary
                chosen = [each for each in latest.values() if behind is None or each.place < behind]
                chosen = sorted(chosen, key=_place_of, reverse=True)[:limit]
                if len(chosen) == limit and newest_at < chosen[-1].started_at - 2 * FRESH_S:
                    break
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


async def _without_earlier(connection: AsyncConnection, batch: TraceBatch) -> list[TraceBatch]:
    """The batch without traces of turns of which a later one is kept; earlier ones are forgotten."""
    if not batch.again or not await _batches_of_ids(connection, min(batch.again), max(batch.again)):
        return [batch]
    superseded: set[str] = set()
    rows = batch.rows()
    ended = {row.summary.trace_id: row.summary.finished_at for row in rows if row.summary.trace_id in batch.again}
    for trace_id, finished_at in ended.items():
        for number, kept in await _batches_of_ids(connection, trace_id, trace_id):
            of_it = [each for each in kept if each.summary.trace_id == trace_id]
            if any(each.summary.finished_at > finished_at for each in of_it):
                superseded.add(trace_id)
            elif of_it:
                await _thin(connection, number, partial(_without, trace_id))
    if not superseded:
        return [batch]
    rows = [row for row in rows if row.summary.trace_id not in superseded]
    return batches_of([row.summary for row in rows], [row.events for row in rows])


async def _batches_of_ids(connection: AsyncConnection, first: str, last: str) -> list[tuple[int, list[Kept]]]:
    """The batches that may hold traces of ids from the one to the other."""
    query = select(trace_batches.c.id, trace_batches.c.kept).where(_spans(first, last))
    return [(row.id, kept_of(row.kept)) for row in await connection.execute(query)]


def _spans(first: str, last: str) -> ColumnElement[bool]:
    return and_(trace_batches.c.last_id >= first, trace_batches.c.first_id <= last)


async def _find(connection: AsyncConnection, name: str, owner: str | None) -> tuple[int, Kept] | None:
    """The newest trace that is called so, and its batch."""
    # What a turn is called ends with its trace id, or is listed.
    trace_id = name[-_ID_DIGITS:]
    found = {summary.trace_id: place for summary, place in await _latest(connection, _spans(trace_id, trace_id), owner)}
    listed = trace_batches.c.id.in_(select(trace_names.c.batch_id).where(trace_names.c.name == name))
    for summary, _ in await _latest(connection, listed, owner):
        other = summary.trace_id
        if summary.is_called(name) and other not in found:
            # Perhaps a trace of before: its turn's later one stands where its id does.
            places = await _latest(connection, _spans(other, other), owner)
            found |= {each.trace_id: place for each, place in places if each.trace_id == other}
    called = [(number, kept) for number, kept in found.values() if kept.summary.is_called(name)]
    return max(called, key=lambda each: each[1].summary.place, default=None)


async def _latest(
    connection: AsyncConnection, condition: ColumnElement[bool], owner: str | None
) -> list[tuple[TraceSummary, tuple[int, Kept]]]:
    """The owner's traces in these batches, of each turn the one that ended last, with their batches' numbers."""
    query = select(trace_batches.c.id, trace_batches.c.kept).where(condition).order_by(trace_batches.c.id)
    latest: dict[str, tuple[int, Kept]] = {}
    for row in await connection.execute(query):
        for each in kept_of(row.kept):
            summary = each.summary
            known = latest.get(summary.trace_id)
            if owner in {None, summary.owner} and (
                known is None or known[1].summary.finished_at <= summary.finished_at
            ):
                latest[summary.trace_id] = (row.id, each)
    return [(place[1].summary, place) for place in latest.values()]


async def _read(
    connection: AsyncConnection, owner: str | None, until: float | None
) -> AsyncIterator[tuple[float, list[TraceSummary]]]:
    """The owner's traces, batch by batch, those with the newest first: when the newest of a batch began, and all of it.

    With `until`, only batches with traces that began by then.
    """
    batches = trace_batches.c
    at, number = (
        (batches.newest_at, batches.id) if owner is None else (trace_owners.c.newest_at, trace_owners.c.batch_id)
    )
    query = select(at, number, batches.kept).order_by(at.desc(), number.desc())
    if owner is not None:
        query = query.join_from(trace_owners, trace_batches, batches.id == number).where(trace_owners.c.owner == owner)
    if until is not None:
        # The first condition is the index's.
        query = query.where(at <= until + BATCH_S, batches.oldest_at <= until)
    count, last = _READ, None
    while True:
        page = query if last is None else query.where(at <= last[0], tuple_(at, number) < tuple_(*last))
        rows = (await connection.execute(page.limit(count))).all()
        for newest_at, batch_id, kept in rows:
            summaries = [each.summary for each in kept_of(kept)]
            yield newest_at, [each for each in summaries if owner in {None, each.owner}]
            last = (newest_at, batch_id)
        if len(rows) < count:
            return
        count *= 2


def _without(trace_id: str, kept: Sequence[Kept]) -> list[Kept]:
    return [each for each in kept if each.summary.trace_id != trace_id]


def _newest_within(kept: Sequence[Kept], room: int) -> list[Kept]:
    """The newest of these that have room, in their order."""
    newest_first = sorted(kept, key=lambda each: each.summary.place, reverse=True)
    sizes = accumulate(each.size for each in newest_first)
    fitting = {each.start for each, size in zip(newest_first, sizes, strict=True) if size <= room}
    return [each for each in kept if each.start in fitting]
