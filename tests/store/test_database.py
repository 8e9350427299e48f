"""The database file: migrations, processes side by side, failures."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect

from gateway.errors import NotStorable, SchemaOld, StoreUnavailable
from gateway.store import database
from gateway.store.database import Database
from gateway.store.making_tables import make_tables, migrate
from gateway.store.sql import SqlStore
from gateway.store.tables import HEAD, metadata
from tests.postgres import Postgres
from tests.traces import batched, changed, traced

ROW = traced()


def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def opened(path: Path) -> SqlStore:
    store = SqlStore(url(path))
    await store.open()
    return store


def ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(sql).fetchall()
    connection.close()
    return found


async def test_whoever_starts_it_is_told_which_database_cannot_be_opened_and_why_without_its_password(
    tmp_path: Path,
) -> None:
    (tmp_path / "no.db").write_bytes(b"this is no database at all, and was never meant to be one")
    for place, named, why in (
        ("postgresql://app:hidden@127.0.0.1:1/shop", "app:***@127.0.0.1:1/shop", "refused|Connect call failed"),
        (url(tmp_path / "no.db"), "no.db", "not a database"),
    ):
        store = SqlStore(place)
        try:
            for act in (store.open, store.upgrade):
                with pytest.raises(StoreUnavailable, match=why) as caught:
                    await act()
                assert named in str(caught.value)
                assert "hidden" not in str(caught.value)
        finally:
            await store.close()


async def test_the_newest_migration_is_the_one_that_lets_a_start_skip_alembic() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "gateway" / "store" / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def shape(connection: Connection) -> dict[str, Any]:
    """Everything that a database knows of its tables but their rows."""
    tables = inspect(connection)
    if connection.dialect.name == "postgresql":
        named = connection.exec_driver_sql("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    else:
        named = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT NULL")
    return {
        "indexes": {str(name): " ".join(str(sql).split()) for name, sql in named},
        **{
            name: {
                "columns": {
                    each["name"]: (str(each["type"]), each["nullable"], each["default"])
                    for each in tables.get_columns(name)
                },
                "key": tables.get_pk_constraint(name),
                "unique": sorted(tables.get_unique_constraints(name), key=repr),
                "foreign": sorted(tables.get_foreign_keys(name), key=repr),
                "checks": sorted(tables.get_check_constraints(name), key=repr),
            }
            for name in tables.get_table_names()
        },
    }


def faults(connection: Connection) -> Any:
    """How the tables differ from those of the code."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    return compare_metadata(MigrationContext.configure(connection), metadata)


def test_migrations_end_where_a_new_database_begins(tmp_path: Path) -> None:
    found = []
    for name, make in (("new", make_tables), ("old", migrate)):
        engine = create_engine(url(tmp_path / name))
        with engine.begin() as connection:
            make(connection)
            assert faults(connection) == []
            found.append(shape(connection))
            assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").all() == [(HEAD,)]
        engine.dispose()
    assert found[0] == found[1]


async def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    await store.traces.add(batched(ROW))
    await store.close()
    store = await opened(tmp_path / "x.db")
    assert await store.traces.get(ROW.summary.trace_id, "app") == ROW
    assert await store.upgrade() == HEAD
    await store.close()


def test_a_new_database_and_one_of_today_open_without_importing_alembic(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import asyncio, sys
        from gateway.store.sql import SqlStore

        async def main():
            store = SqlStore({url(tmp_path / "x.db")!r})
            await store.open()
            await store.close()

        asyncio.run(main())
        print("alembic" in sys.modules)
    """)

    def run() -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    assert [run(), run()] == ["False", "False"]


async def test_processes_that_start_together_migrate_once(tmp_path: Path) -> None:
    stores = [SqlStore(url(tmp_path / "x.db")) for _ in range(4)]
    await asyncio.wait_for(asyncio.gather(*(store.open() for store in stores)), 60)
    for number, store in enumerate(stores):
        await store.traces.add(batched(traced(f"{number:032x}")))
        await store.close()
    assert ask(tmp_path / "x.db", "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert ask(tmp_path / "x.db", "SELECT sum(count) FROM trace_batches") == [(4,)]


async def test_whoever_starts_while_another_process_migrates_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a writer waits at most is over soon; the migration is not.
    monkeypatch.setattr(database, "_BUSY_MS", 20)
    store = SqlStore(f"sqlite:///{tmp_path}/x.db")
    await store.open()
    await store.close()
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
        other.execute("UPDATE alembic_version SET version_num = '0011'")
        other.execute("BEGIN IMMEDIATE")
        other.execute(f"UPDATE alembic_version SET version_num = '{HEAD}'")
        opening = asyncio.create_task(store.open())
        done, _ = await asyncio.wait([opening], timeout=0.5)
        assert not done
        other.execute("COMMIT")
    await asyncio.wait_for(opening, 20)
    await store.close()


async def test_a_failed_migration_leaves_no_half_of_it(tmp_path: Path) -> None:
    # A table in the way of the second statement: the first must be undone.
    path = tmp_path / "x.db"
    ask(path, "CREATE TABLE memories (x)")
    store = SqlStore(url(path))
    with pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()
    assert [name for (name,) in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")] == ["memories"]


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    await store.close()
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    store = SqlStore(url(tmp_path / "x.db"))
    with pytest.raises(StoreUnavailable, match="newer version"):
        await store.open()
    await store.close()
    assert ask(tmp_path / "x.db", "SELECT version_num FROM alembic_version") == [("9999",)]


@pytest.mark.parametrize("text", ["mysql://h/d", "oracle://h/d"])
def test_another_kind_of_database_is_refused(text: str) -> None:
    with pytest.raises(StoreUnavailable, match="sqlite:///"):
        Database(text)


async def test_a_postgresql_database_is_migrated_by_command_only(postgres_server: Postgres) -> None:
    url = postgres_server.database()
    store = SqlStore(url)
    with pytest.raises(SchemaOld, match="hermes-gateway db upgrade"):
        await store.open()
    # Two operators at once are one migration.
    other = SqlStore(url)
    assert set(await asyncio.wait_for(asyncio.gather(store.upgrade(), other.upgrade()), 60)) == {HEAD}
    await store.open()
    await store.traces.add(batched(ROW))
    assert await other.traces.get(ROW.summary.trace_id, "app") == ROW
    for each in (store, other):
        await each.close()


async def test_migrations_end_where_a_new_database_begins_in_postgresql(postgres_server: Postgres) -> None:
    found = []
    for make in (make_tables, migrate):
        store = SqlStore(postgres_server.database())
        async with store._database.transaction() as connection:
            await connection.run_sync(make)
            assert await connection.run_sync(faults) == []
            found.append(await connection.run_sync(shape))
        await store.open()
        await store.close()
    assert found[0] == found[1]


async def test_a_postgresql_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    store = SqlStore(f"postgresql://nobody@/nothing?host={tmp_path}")
    with pytest.raises(StoreUnavailable) as caught:
        await store.open()
    assert caught.value.retryable
    await store.close()


async def test_keys_made_before_their_secrets_stood_apart_keep_them(tmp_path: Path) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "gateway" / "store" / "migrations"))
    engine = create_engine(url(tmp_path / "x.db"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.exec_driver_sql(
            "INSERT INTO keys (id, name, digest, prefix, owner, roles, tags, created_at) "
            "VALUES ('key_1', 'n', 'd1', 'hg-1', 'admin', '[\"metrics\"]', '[]', 5)"
        )
    engine.dispose()
    store = await opened(tmp_path / "x.db")
    found = await store.keys.find("d1")
    assert found is not None
    assert (found.id, found.roles, found.secrets[0].prefix, found.limits, found.blocked) == (
        "key_1",
        ("metrics",),
        "hg-1",
        {},
        False,
    )
    await store.close()


def test_what_is_no_url_is_refused_without_showing_it() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        Database("tell-nobody")
    assert "tell-nobody" not in str(caught.value)


async def test_a_file_that_is_no_database_is_unavailable_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"these are my notes, do not touch" * 100)
    store = SqlStore(url(path))
    with pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()
    assert path.read_bytes() == b"these are my notes, do not touch" * 100


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SqlStore(url(tmp_path / "file" / "x.db"))
    with pytest.raises(StoreUnavailable, match="file"):
        await store.open()
    await store.close()


async def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    await store.traces.add(batched(ROW))
    with sqlite3.connect(tmp_path / "x.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM trace_batches")
        found = await asyncio.wait_for(store.traces.get(ROW.summary.trace_id, "app"), 2)
        assert found == ROW
        other.execute("ROLLBACK")
    other.close()
    await store.close()


async def test_what_is_written_at_once_is_one_transaction(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    await store.traces.add(batched(ROW))

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM trace_batches")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        await store._database.write_at_once(fails)
    assert await store.traces.get(ROW.summary.trace_id, "app") == ROW
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM trace_batches")
        loop.call_soon_threadsafe(begun.set)
        go.wait(10)

    writing = asyncio.create_task(store._database.write_at_once(slow))
    await begun.wait()
    writing.cancel()
    loop.call_later(0.05, go.set)
    with pytest.raises(asyncio.CancelledError):
        await writing
    # Its connection is not given to anybody in the middle of it.
    await store.traces.add(batched(traced("b" * 32)))
    assert await store.traces.get(ROW.summary.trace_id, "app") is None
    assert await store.traces.get("b" * 32, "app") is not None
    with pytest.raises(StoreUnavailable):
        await store._database.write_at_once(lambda connection: connection.execute("DELETE FROM nothing").close())
    await store.close()


@pytest.mark.parametrize("count", [1, 3, 63, 64, 65, 150])
async def test_any_number_of_traces_is_kept_in_their_order(tmp_path: Path, count: int) -> None:
    store = await opened(tmp_path / "x.db")
    rows = [traced(f"{number:032x}", started_at=number) for number in range(count)]
    await store.traces.add(batched(*rows, changed(rows[0], status=500)))
    kept = await store.traces.newest("app", limit=count)
    assert [row.trace_id for row in kept] == [row.summary.trace_id for row in reversed(rows)]
    assert kept[-1].status == 500
    await store.close()


async def test_a_writer_waits_for_another_processs_transaction(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    with sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.traces.add(batched(ROW)))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        other.execute("COMMIT")
        await asyncio.wait_for(waiting, 6)
    other.close()
    assert await store.traces.get(ROW.summary.trace_id, "app") == ROW
    await store.close()


@pytest.mark.parametrize(("made_with", "pages"), [(None, 16_384), (4096, 4096), (65_536, 65_536)])
async def test_the_file_is_written_through_and_shrinks_when_traces_go(
    tmp_path: Path, made_with: int | None, pages: int
) -> None:
    path = tmp_path / "x.db"
    if made_with is not None:  # by another version
        with sqlite3.connect(path) as made:
            for statement in (f"page_size = {made_with}", "auto_vacuum = INCREMENTAL", "journal_mode = WAL"):
                made.execute(f"PRAGMA {statement}")
        made.close()
    store = await opened(path)
    async with store._database.reading() as connection:
        pragmas = [
            (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "auto_vacuum", "page_size", "wal_autocheckpoint")
        ]
    assert pragmas == ["wal", 2, 2, pages, 40_960_000 // pages]
    (empty,) = ask(path, "SELECT page_count FROM pragma_page_count")[0]
    rows = [traced(f"{number:032x}", events=b"x" * 50_000) for number in range(100)]
    await store.traces.add(batched(*rows))
    await store.traces.prune(before=100, max_bytes=2**31)
    await store.close()
    assert path.stat().st_size < (int(str(empty)) + 10) * pages


async def test_a_value_that_postgresql_does_not_take_is_the_requests_fault(postgres_server: Postgres) -> None:
    store = SqlStore(await postgres_server.migrated())
    try:
        with pytest.raises(NotStorable):
            await store.traces.get("\0", "app")
        await store.traces.add(batched(ROW))
        assert await store.traces.get("a" * 32, "app") is not None
    finally:
        await store.close()
