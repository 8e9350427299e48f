"""SQLite behind SQLAlchemy with one change of threads for each statement.

Every connection has a thread of its own, and each step of a statement (cursor, execute, fetch, close) went there and back by
itself: ten changes for a query, four fifths of what it cost. Here a statement and its rows are one. Knows SQLAlchemy's adapter
for aiosqlite; does not know tables.
"""

# ruff: noqa: SLF001 - an adapter for SQLAlchemy's adapter: what it works on is theirs, and neither has a public way.

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import aiosqlite
from sqlalchemy.dialects.sqlite.aiosqlite import (
    AsyncAdapt_aiosqlite_connection,
    AsyncAdapt_aiosqlite_cursor,
    AsyncAdapt_aiosqlite_dbapi,
)
from sqlalchemy.ext.asyncio.engine import AsyncConnection
from sqlalchemy.util.concurrency import await_


class _Ran:
    """What a statement came to."""

    __slots__ = ("description", "lastrowid", "rowcount", "rows")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.description = cursor.description
        self.rows: deque[Any] = deque(cursor.fetchall() if cursor.description else ())
        # Known only once all rows are read.
        self.rowcount = cursor.rowcount
        self.lastrowid = cursor.lastrowid
        cursor.close()


def _run(connection: sqlite3.Connection, statement: str, parameters: Any) -> _Ran:
    return _Ran(connection.execute(statement, parameters if parameters is not None else ()))


def _run_many(connection: sqlite3.Connection, statement: str, parameters: Any) -> _Ran:
    return _Ran(connection.executemany(statement, parameters))


async def in_one_hop(connection: AsyncConnection, work: Callable[[sqlite3.Connection], None]) -> None:
    """Run `work` as one transaction, in the connection's thread and with SQLite's own connection."""
    raw: Any = (await connection.get_raw_connection()).driver_connection
    await raw._execute(_run_whole, raw._conn, work)


def _run_whole(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


class OneHopCursor(AsyncAdapt_aiosqlite_cursor):
    """A cursor that has nothing on the other side between two statements."""

    __slots__ = ("_ran",)

    def __init__(self, adapt_connection: AsyncAdapt_aiosqlite_connection) -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection
        self._rows = deque()
        self._ran: _Ran | None = None

    @property
    def description(self) -> Any:
        """As DB-API has it."""
        return None if self._ran is None else self._ran.description

    @property
    def rowcount(self) -> int:
        """As DB-API has it."""
        return -1 if self._ran is None else self._ran.rowcount

    @property
    def lastrowid(self) -> int:
        """As DB-API has it."""
        return 0 if self._ran is None else self._ran.lastrowid or 0

    def execute(self, operation: Any, parameters: Any = None) -> Any:
        """Run a statement and fetch what it gives."""
        return self._go(_run, operation, parameters)

    def executemany(self, operation: Any, seq_of_parameters: Sequence[Any]) -> Any:
        """Run a statement for each set of parameters."""
        return self._go(_run_many, operation, seq_of_parameters)

    def close(self) -> None:
        """Forget the rows."""
        self._rows.clear()

    async def _async_soft_close(self) -> None:
        return

    def _go(self, run: Any, operation: Any, parameters: Any) -> None:
        connection: Any = self._connection
        try:
            ran: _Ran = await_(connection._execute(run, connection._conn, operation, parameters))
        except Exception as error:  # noqa: BLE001 - the adapter's own way to translate whatever a driver raises
            self._adapt_connection._handle_exception(error)
        self._ran, self._rows = ran, ran.rows


class OneHopConnection(AsyncAdapt_aiosqlite_connection):
    """A connection that goes to its thread only for what has to be done there."""

    __slots__ = ()

    _cursor_cls = OneHopCursor  # type: ignore[assignment]

    def rollback(self) -> None:
        """Roll back, if there is a transaction."""
        if self._in_transaction:
            super().rollback()

    def commit(self) -> None:
        """Commit, if there is a transaction."""
        if self._in_transaction:
            super().commit()

    @property
    def _in_transaction(self) -> bool:
        connection: Any = self._connection
        return bool(connection._connection is not None and connection.in_transaction)


class OneHopDriver(AsyncAdapt_aiosqlite_dbapi):
    """What SQLAlchemy takes for the driver."""

    def __init__(self) -> None:
        super().__init__(aiosqlite, sqlite3)

    def connect(self, *arg: Any, **kw: Any) -> OneHopConnection:
        """Open a connection."""
        return OneHopConnection(self, super().connect(*arg, **kw)._connection)
