"""The database: connections, transactions, and the way to today's tables.

Knows SQLite and Alembic. Does not know what is kept: that is each repository's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Connection, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import StoreUnavailable
from gateway.store.tables import HEAD

if TYPE_CHECKING:
    import aiosqlite

# Milliseconds a writer waits for another process's transaction.
_BUSY_MS: Final = 5000


class Database:
    """One SQLite file (or `:memory:`), shared by every repository.

    Attributes:
        in_memory: whether no other process can see it.
    """

    def __init__(self, url: str) -> None:
        """Take a URL such as `sqlite:///data/hermes.db`; nothing is opened yet.

        Raises:
            StoreUnavailable: the URL names no SQLite database.
        """
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise StoreUnavailable("storage.database is not a database URL", retryable=False) from error
        if parsed.get_backend_name() != "sqlite":
            raise StoreUnavailable(
                "storage.database must begin with sqlite:///; other databases are not supported by this version",
                retryable=False,
            )
        self.in_memory = parsed.database in {None, "", ":memory:"}
        self._path = None if self.in_memory else Path(str(parsed.database))
        self._engine: AsyncEngine = create_async_engine(parsed.set(drivername="sqlite+aiosqlite"))
        # What only has to outlive this process, and may be forgotten with the machine's power.
        self._hasty = self._engine if self.in_memory else create_async_engine(self._engine.url)
        for engine, prepare in {self._hasty: _prepare_hasty, self._engine: _prepare}.items():
            event.listen(engine.sync_engine, "connect", prepare)
            event.listen(engine.sync_engine, "begin", _begin)
        # SQLite has one writer; who waits for it in here is woken in turn, where SQLite would look again after ever longer
        # pauses.
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Create the folder where needed, and migrate where needed.

        Raises:
            StoreUnavailable: with what to do.
        """
        if self._path is not None:
            folder = self._path.parent
            try:
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            except OSError as error:
                raise StoreUnavailable(
                    f"the folder {folder} cannot be made: {error.strerror}", retryable=False
                ) from error
        if await self._revision() != HEAD:
            await self.upgrade()

    async def upgrade(self) -> str:
        """Migrate to today's tables; the revision that the database has then.

        Processes that start together take turns: each looks at the revision inside of its own transaction.
        """
        async with self.transaction() as connection:
            await connection.run_sync(_migrate)
        return HEAD

    async def _revision(self) -> str | None:
        async with self.reading() as connection:
            known = await connection.scalar(text("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"))
            if not known:
                return None
            found = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            return None if found is None else str(found)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read by. Raises `StoreUnavailable` for whatever the database says."""
        with_plain = {"isolation_level": "AUTOCOMMIT"}
        try:
            async with self._engine.connect() as connection:
                yield await connection.execution_options(**with_plain)
        except SQLAlchemyError as error:
            raise _unavailable(error) from error

    @asynccontextmanager
    async def transaction(self, *, hasty: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection to write by: committed at the end, rolled back on any error. Never within another.

        A `hasty` commit does not wait for the disk: it outlives any process, and may be lost, with all hasty ones behind it,
        when the machine stops. Every other commit behind it makes it durable too.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        try:
            async with self._writing, (self._hasty if hasty else self._engine).begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise _unavailable(error) from error

    async def shrink(self) -> None:
        """Give the file's free pages back to the disk. Raises `StoreUnavailable`."""
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
        for statement in (
            f"PRAGMA busy_timeout = {_BUSY_MS}",
            "PRAGMA auto_vacuum = INCREMENTAL",
            "PRAGMA journal_mode = WAL",
            # A journal entry is on the disk when its commit returns.
            "PRAGMA synchronous = FULL",
            "PRAGMA foreign_keys = ON",
            # Some 40 MB of log between checkpoints: moving pages into the file is half the cost of keeping traces.
            "PRAGMA wal_autocheckpoint = 10000",
        ):
            cursor.execute(statement)
    finally:
        cursor.close()


def _prepare_hasty(connection: Any, record: Any) -> None:
    _prepare(connection, record)
    connection.execute("PRAGMA synchronous = NORMAL").close()


def _begin(connection: Connection) -> None:
    # A transaction that begins by reading cannot become a writing one while another writes; so all begin as writers.
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(connection: Connection) -> None:
    # 100 ms that a database of today does not need.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreUnavailable(
            "the database was written by a newer version of Hermes Gateway; install that version, or use another database",
            retryable=False,
        ) from error


def _unavailable(error: SQLAlchemyError) -> StoreUnavailable:
    if isinstance(error, IntegrityError):
        return StoreUnavailable("a record of this identity is kept already", retryable=False)
    return StoreUnavailable("the database cannot be read or written")
