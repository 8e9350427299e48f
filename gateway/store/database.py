"""The database: connections, transactions, and the way to today's tables.

Knows SQLite, PostgreSQL and Alembic. Does not know what is kept: that is each repository's.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from sqlalchemy import Connection, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio.engine import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util.concurrency import await_

from gateway.errors import NotStorable, SchemaOld, StoreUnavailable
from gateway.store.making_tables import make_tables
from gateway.store.one_hop import OneHopDriver, in_one_hop
from gateway.store.opening import cannot_be_opened
from gateway.store.tables import HEAD

if TYPE_CHECKING:
    import aiosqlite

_NO_TRANSACTION: Final = "no_transaction"
# Milliseconds a writer waits for other processes' transactions. SQLite lets who waits try again and again, and the one that
# tries at the right moment wins: with several workers on a slow disk the unlucky one needs patience.
_BUSY_MS: Final = 15_000
_WAL: Final = "PRAGMA journal_mode = WAL"
# Bytes of a new file's pages; an existing file keeps its own. Traces come in blocks of hundreds of kilobytes: in pages of 4 KB nearly twice as much CPU goes into
# moving them. In pages of 64 KB a third less would, and every small transaction would move 64 KB.
_PAGE_BYTES: Final = 16_384
# Bytes of the log between checkpoints: moving pages into the file is half the cost of keeping traces.
_LOG_BYTES: Final = 40_960_000
_LOOK_AGAIN_S: Final = 0.02
# Writers of this process take turns in order, so that none of them is the unlucky one. Seconds one waits at most.
_TURN_S: Final = 30.0
# Seconds that a process at its start waits for another one that migrates: gigabytes take minutes.
_MIGRATES_S: Final = 1800.0
# PostgreSQL: connections of this process, seconds to get one, and seconds one statement may take.
_POOL: Final = 10
_WAIT_S: Final = 5
_STATEMENT_S: Final = 30
# Whoever migrates holds this lock meanwhile: a number of our own among all advisory locks.
_MIGRATING: Final = 0x4E52_4D53
# What PostgreSQL's codes begin with where a value is at fault.
_DATA_ERROR: Final = "22"

_log = structlog.get_logger("gateway.store")


class Database:
    """One SQLite file (or `:memory:`), or one PostgreSQL database, shared by every repository.

    Attributes:
        in_memory: whether no other process can see it.
        is_postgresql: whether it is one.
    """

    def __init__(self, url: str) -> None:
        """Take a URL such as `sqlite:///data/hermes.db` or `postgresql://user@host/name`; nothing is opened yet.

        Raises:
            StoreUnavailable: the URL names no such database.
        """
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise StoreUnavailable("storage.database is not a database URL", retryable=False) from error
        self._place = parsed
        self.is_postgresql = parsed.get_backend_name() in ("postgresql", "postgres")
        # PostgreSQL lets writers write side by side.
        self._writing: asyncio.Lock | None = None
        if not self.is_postgresql and parsed.get_backend_name() != "sqlite":
            raise StoreUnavailable(
                "storage.database must begin with sqlite:/// or postgresql://; other databases are not supported",
                retryable=False,
            )
        if self.is_postgresql:
            self.in_memory = False
            self._path = None
            self._engine: AsyncEngine = create_async_engine(
                parsed.set(drivername="postgresql+asyncpg"),
                pool_size=_POOL,
                max_overflow=0,
                pool_timeout=_WAIT_S,
                pool_pre_ping=True,
                connect_args={"timeout": _WAIT_S, "command_timeout": _STATEMENT_S},
            )
            self._hasty = self._engine
            self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            return
        self.in_memory = parsed.database in {None, "", ":memory:"}
        self._path = None if self.in_memory else Path(str(parsed.database))
        place = parsed.set(drivername="sqlite+aiosqlite")
        # The connection that was used last: what it has read of the file is good until another one writes.
        used_last: dict[str, Any] = {} if self.in_memory else {"pool_use_lifo": True}
        self._engine = create_async_engine(place, module=OneHopDriver(), **used_last)
        # What only has to outlive this process, and may be forgotten with the machine's power.
        self._hasty = self._engine if self.in_memory else create_async_engine(place, module=OneHopDriver(), **used_last)
        for engine, prepare in {self._hasty: _prepare_hasty, self._engine: _prepare}.items():
            event.listen(engine.sync_engine, "connect", prepare)
            event.listen(engine.sync_engine, "begin", _begin)
        # Without a transaction of their own, and so without waiting for anybody's.
        self._reading = self._engine.execution_options(**{_NO_TRANSACTION: True})
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Create the folder where needed, and migrate where needed.

        Raises:
            SchemaOld: a PostgreSQL database has to be migrated first.
            StoreUnavailable: with what to do.
        """
        await self._make_folder()
        try:
            revision = await self._revision()
        except StoreUnavailable as error:
            raise cannot_be_opened(self._place, error) from error
        if revision == HEAD:
            return
        if self.is_postgresql:
            # Shared by replicas of perhaps two versions: when its tables change is an operator's decision.
            raise SchemaOld(
                f"the database's tables are at revision {revision or 'none'}, this version needs {HEAD}; "
                "run `hermes-gateway db upgrade`"
            )
        if revision is not None:
            # Gigabytes may have to be written anew, and nobody is served meanwhile.
            _log.info("the database is brought to this version's tables", revision=revision, needs=HEAD)
        await self.upgrade()

    async def upgrade(self) -> str:
        """Migrate to today's tables; the revision that the database has then.

        Processes that start together take turns: each looks at the revision inside of its own transaction.

        Raises:
            StoreUnavailable: with what to do.
        """
        await self._make_folder()
        until = monotonic() + _MIGRATES_S
        while True:
            try:
                async with self.transaction() as connection:
                    if self.is_postgresql:
                        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
                    await connection.run_sync(make_tables)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, (SQLAlchemyError, OSError)):
                    raise  # not the driver's, and it says what to do
                # A worker that gave up would end those that start with it: the one that migrates too.
                if not _is_busy(error.__cause__) or monotonic() > until:
                    raise cannot_be_opened(self._place, error) from error
            else:
                return HEAD

    async def _make_folder(self) -> None:
        if self._path is not None:
            folder = self._path.parent
            try:
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            except OSError as error:
                raise StoreUnavailable(
                    f"the folder {folder} cannot be made: {error.strerror}", retryable=False
                ) from error

    async def _revision(self) -> str | None:
        async with self.reading() as connection:
            known = (
                "SELECT to_regclass('alembic_version')::text"
                if self.is_postgresql
                else "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
            )
            if not await connection.scalar(text(known)):
                return None
            found = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            return None if found is None else str(found)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read by. Raises `StoreUnavailable` for whatever the database says."""
        try:
            async with self._reading.connect() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise _unavailable(error) from error

    @asynccontextmanager
    async def transaction(self, *, hasty: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection to write by: committed at the end, rolled back on any error. Never within another.

        A `hasty` commit does not wait for the disk: it outlives any process, and may be lost, with all hasty ones behind it,
        when the machine stops. Every other commit behind it makes it durable too. PostgreSQL knows no hurry here.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        async with self._turn():
            try:
                async with (self._hasty if hasty else self._engine).begin() as connection:
                    yield connection
            except (SQLAlchemyError, OSError) as error:
                raise _unavailable(error) from error

    async def write_at_once(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run `work` as one transaction of a SQLite file, with the driver's own connection and in its thread.

        A transaction whose statements are all known needs one change of threads, and nothing of SQLAlchemy's for each statement.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        async with self._turn():
            try:
                async with self._reading.connect() as connection:
                    await in_one_hop(connection, work)
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                raise _unavailable(error) from error

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One writer at a time, in the order they came, where the database wants it so."""
        if self._writing is None:
            yield
            return
        try:
            async with asyncio.timeout(_TURN_S):
                await self._writing.acquire()
        except TimeoutError as error:
            raise StoreUnavailable("the database is too slow: too many wait to write") from error
        try:
            yield
        finally:
            self._writing.release()

    async def shrink(self) -> None:
        """Give the file's free pages back to the disk; PostgreSQL does so by itself. Raises `StoreUnavailable`."""
        if self.is_postgresql:
            return
        async with self.reading() as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            # As a plain statement it would free one page: each is a step that Python's driver does not take.
            await cast("aiosqlite.Connection", raw).executescript("PRAGMA incremental_vacuum")

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()
        if self._hasty is not self._engine:
            await self._hasty.dispose()


def _prepare(connection: Any, _record: Any) -> None:
    # The transaction is begun by `_begin`; Python's own begins too late and never before a schema change.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
        for statement in (
            # Before anything is written: the switch to WAL writes. A file that is there already would be locked for nothing, and
            # whoever comes to read would wait for a writer.
            *(() if pages else (f"PRAGMA page_size = {_PAGE_BYTES}", "PRAGMA auto_vacuum = INCREMENTAL")),
            _WAL,
            # A journal entry is on the disk when its commit returns.
            "PRAGMA synchronous = FULL",
            "PRAGMA foreign_keys = ON",
            # KiB, taken when needed. A batch of traces is 2 MB, all that SQLite has by itself: then it writes pages of an index
            # again and again within one transaction, a fifth of what keeping traces costs.
            "PRAGMA cache_size = -8000",
        ):
            _patiently(cursor, statement)
        cursor.execute("PRAGMA page_size")
        (page_bytes,) = cursor.fetchone()
        cursor.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_bytes}")
    finally:
        cursor.close()


def _patiently(cursor: Any, statement: str) -> None:
    """Execute a setting. A new file's switch to WAL is refused at once, not after the busy timeout, while another process is at it."""
    until = monotonic() + _BUSY_MS / 1000
    while True:
        try:
            cursor.execute(statement)
        except sqlite3.OperationalError:
            if statement is not _WAL or monotonic() > until:
                raise
        else:
            return
        await_(asyncio.sleep(_LOOK_AGAIN_S))


def _prepare_hasty(connection: Any, record: Any) -> None:
    _prepare(connection, record)
    connection.execute("PRAGMA synchronous = NORMAL").close()


def _begin(connection: Connection) -> None:
    # A transaction that begins by reading cannot become a writing one while another writes; so all begin as writers.
    if not connection.get_execution_options().get(_NO_TRANSACTION):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_busy(error: BaseException) -> bool:
    """Whether a SQLite file was being written by another process for longer than a writer waits."""
    cause = getattr(error, "orig", None)
    return isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _unavailable(error: Exception) -> StoreUnavailable:
    if isinstance(error, (IntegrityError, sqlite3.IntegrityError)):
        return StoreUnavailable("a record of this identity is kept already", retryable=False)
    if str(getattr(getattr(error, "orig", None), "sqlstate", "")).startswith(_DATA_ERROR):
        return NotStorable("The request holds a text that cannot be kept: too long, or with a NUL character in it.")
    return StoreUnavailable("the database cannot be read or written")
