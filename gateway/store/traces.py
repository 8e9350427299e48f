"""Finished turns, in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Row, and_, delete, func, or_, select, true, tuple_

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.store import TraceRow
from gateway.store.tables import approvals, traces

_SUMMARY: Final = tuple(column for column in traces.c if column.name not in {"events", "size"})
# Where a trace stands among all.
_place: Final = tuple_(traces.c.started_at, traces.c.trace_id)
# Rows that one statement forgets: short transactions, so that the journal never waits long.
_BATCH: Final = 500

_events_of = attrgetter("events")

_NAMES: Final = (*TraceRow.__struct_fields__, "size")
# Rows of one statement. SQLite's driver gives Python's lock away and takes it back at every step, and beside a busy event
# loop that costs more than the row: so many rows are one step. Few sizes, because every connection keeps a compiled
# statement of each, and a hundred sizes were tens of megabytes.
_AT_ONCE: Final = (64, 16, 4, 1)


def _adding(count: int) -> str:
    row = f"({', '.join('?' * len(_NAMES))})"
    return f"INSERT OR REPLACE INTO traces ({', '.join(_NAMES)}) VALUES {', '.join([row] * count)}"  # noqa: S608 - fixed names


def _values(rows: Sequence[TraceRow]) -> tuple[Any, ...]:
    """What the statement takes: each row's values and, behind them, its size; no step of Python's own for any of them."""
    sizes = zip(map(len, map(_events_of, rows)))
    each = zip(map(msgspec.structs.astuple, rows), sizes, strict=True)
    return tuple(chain.from_iterable(chain.from_iterable(each)))


class SqlTraces:
    """`Traces` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[TraceRow]) -> None:
        """Keep these in one transaction; one that is kept already is replaced."""
        if not rows:
            return
        if self._database.is_postgresql:
            adding = insert(traces)
            changed = {name: adding.excluded[name] for name in _NAMES if name != "trace_id"}
            adding = adding.on_conflict_do_update(index_elements=[traces.c.trace_id], set_=changed)
            # One statement must not name a row twice; of two of one name the later one counts.
            named = {row.trace_id: {**msgspec.structs.asdict(row), "size": len(row.events)} for row in rows}
            async with self._database.transaction() as connection:
                await connection.execute(adding, list(named.values()))
            return
        # Straight to the driver: traces come by the hundred, and SQLAlchemy's work on each value is half the cost.
        inserts: list[tuple[str, list[tuple[Any, ...]]]] = []
        start = 0
        for count in _AT_ONCE:
            if ends := range(start + count, len(rows) + 1, count):
                inserts.append((_adding(count), [_values(rows[end - count : end]) for end in ends]))
                start = ends[-1]

        def insert_all(connection: sqlite3.Connection) -> None:
            for statement, groups in inserts:
                connection.executemany(statement, groups)

        await self._database.write_at_once(insert_all)

    async def get(self, id: str, owner: str | None) -> TraceRow | None:  # noqa: A002 - the contract's word
        """The trace of this trace id, request id, response id, or of the turn that asked for this approval."""
        asked = select(approvals.c.trace_id).where(approvals.c.id == id).scalar_subquery()
        wanted = asked if id.startswith("apr_") else id.removeprefix("req_")
        query = (
            select(*_SUMMARY, traces.c.events)
            .where(or_(traces.c.trace_id == wanted, traces.c.response_id == id), _owned(owner))
            .order_by(traces.c.started_at.desc())
            .limit(1)
        )
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else _row(row)

    async def newest(self, owner: str | None, *, limit: int, after: str | None = None) -> Sequence[TraceRow]:
        """The newest first, at most `limit`, older than the trace `after`."""
        query = select(*_SUMMARY).where(_owned(owner))
        if after is not None:
            last = select(traces.c.started_at, traces.c.trace_id).where(traces.c.trace_id == after, _owned(owner))
            query = query.where(_place < last.scalar_subquery())
        query = query.order_by(traces.c.started_at.desc(), traces.c.trace_id.desc()).limit(limit)
        async with self._database.reading() as connection:
            return [_row(row) for row in await connection.execute(query)]

    async def prune(self, *, before: float, max_bytes: int) -> int:
        """Forget those that began before `before`, and the oldest beyond `max_bytes` of events; how many went."""
        gone = await self._forget(traces.c.started_at < before)
        newest_too_many = await self._first_beyond(max_bytes)
        if newest_too_many is not None:
            started_at, _ = newest_too_many
            # The first condition is the index's.
            gone += await self._forget(and_(traces.c.started_at <= started_at, _place <= newest_too_many))
        if gone:
            await self._database.shrink()
        return gone

    async def _first_beyond(self, max_bytes: int) -> tuple[float, str] | None:
        """The place of the newest trace that does not fit with all newer ones. Reads of every trace, and so keeps no writer waiting."""
        newest_first = (traces.c.started_at.desc(), traces.c.trace_id.desc())
        # Gigabytes: PostgreSQL takes no number for a column of integers that is larger than they can be.
        total = func.sum(traces.c.size, type_=BigInteger()).over(order_by=newest_first)
        sums = select(traces.c.started_at, traces.c.trace_id, total.label("total")).subquery()
        query = select(sums.c.started_at, sums.c.trace_id).where(sums.c.total > max_bytes)
        query = query.order_by(sums.c.started_at.desc(), sums.c.trace_id.desc()).limit(1)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else (row.started_at, row.trace_id)

    async def _forget(self, condition: ColumnElement[bool]) -> int:
        """Forget these in short transactions; how many went."""
        gone, ids = 0, select(traces.c.trace_id).where(condition).limit(_BATCH)
        while True:
            async with self._database.transaction() as connection:
                count = (await connection.execute(delete(traces).where(traces.c.trace_id.in_(ids)))).rowcount
            gone += count
            if count < _BATCH:
                return gone


def _owned(owner: str | None) -> ColumnElement[bool]:
    return true() if owner is None else traces.c.owner == owner


def _row(row: Row[*tuple[Any, ...]]) -> TraceRow:
    return TraceRow(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for a row as a mapping
