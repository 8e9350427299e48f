"""Traces kept many in a row: found, listed, replaced and forgotten as if each had its own."""

from __future__ import annotations

import asyncio
import random
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, select, text
from structlog.testing import capture_logs

from gateway import ids
from gateway.ids import made_at, new_trace_id
from gateway.store import trace_records, traces
from gateway.store.memory import MemoryTraces
from gateway.store.sql import SqlStore
from gateway.store.tables import trace_batches
from gateway.store.trace_records import BATCH_BYTES, BATCH_S, SPAN_S, TraceRow, TraceSummary, batches_of
from gateway.store.traces import _thin
from tests.postgres import Postgres
from tests.traces import batched, changed, traced

NOW = 1_800_000_000.0


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "postgresql":
        made = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    else:
        made = SqlStore(f"sqlite:///{tmp_path}/x.db")
    await made.open()
    yield made
    await made.close()


def id_of(moment: float, chance: random.Random) -> str:
    return f"{int(moment * 2**20):013x}{chance.getrandbits(76):019x}"


def lasting(trace_id: str, began: float, seconds: float, owner: str = "app", **more: Any) -> TraceRow:
    return traced(trace_id, owner, started_at=began, finished_at=began + seconds, seconds=seconds, **more)


class Turns:
    """Turns of several owners, some of them long, some recorded again, some under another's response id."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = NOW
        self.made: list[TraceRow] = []

    def next(self) -> TraceRow:
        chance = self.chance
        self.now += chance.choice([0.0, 0.001, 0.3, 5.0, 90.0])
        owner = chance.choice(["app", "app", "app", "app/eve", "rare"] if chance.random() < 0.9 else ["rarest"])
        seconds = chance.choice([0.0, 0.01, 2.0, 300.0])
        if self.made and chance.random() < 0.1:
            # Taken up again: at once or much later, and now and then by a clock that goes slow.
            before = chance.choice(self.made).summary
            began = max(before.started_at, self.now - chance.choice([0.0, 0.5, 100.0]))
            ends = max(began, before.finished_at) + chance.choice([0.0, 1.0, 50.0])
            row = traced(
                before.trace_id, before.owner, started_at=began, finished_at=ends, status=chance.choice([200, 500])
            )
        else:
            trace_id = id_of(self.now, chance)
            other = chance.choice(self.made).summary.trace_id if self.made and chance.random() < 0.2 else trace_id
            size = chance.choice([2, 200, 5000, 120_000])
            events = f"[{trace_id!r:>{size}}]".encode()
            row = lasting(trace_id, self.now, seconds, owner, response_id=f"chatcmpl-{other}", user="夏", events=events)
        self.made.append(row)
        return row


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_kept_is_found_as_in_a_dictionary(store: SqlStore, seed: int) -> None:
    turns, twin = Turns(seed), MemoryTraces()
    for _ in range(turns.chance.randint(1, 12)):
        rows = [turns.next() for _ in range(turns.chance.choice([1, 2, 17, 60]))]
        # Those that end first are written first.
        rows.sort(key=lambda row: row.summary.finished_at)
        for kept in (store.traces, twin):
            await kept.add(batched(*rows))
    named = {row.summary.trace_id for row in turns.made} | {str(row.summary.response_id) for row in turns.made}
    for owner in (None, "app", "app/eve", "rare", "rarest", "nobody"):
        for name in turns.chance.sample(sorted(named), min(len(named), 40)):
            assert await store.traces.get(name, owner) == await twin.get(name, owner), (name, owner)
        for limit in (1, 7, 1000):
            listed: list[Any] = []
            after = None
            while page := await store.traces.newest(owner, limit=limit, after=after):
                assert page == await twin.newest(owner, limit=limit, after=after)
                listed += page
                after = page[-1].trace_id
                if len(listed) > 40 * limit:
                    break
            assert len({each.trace_id for each in listed}) == len(listed)
    moment = turns.made[len(turns.made) // 2].summary.started_at
    await store.traces.prune(before=moment, max_bytes=2**40)
    await twin.prune(before=moment, max_bytes=2**40)
    assert await store.traces.newest(None, limit=5000) == await twin.newest(None, limit=5000)


@pytest.mark.parametrize("room", [0, 1, 99, 100, 250, 5000, 29_900, 30_000])
async def test_the_newest_that_have_room_stay_whatever_they_are_kept_with(store: SqlStore, room: int) -> None:
    chance, rows = random.Random(1), []
    for number in range(300):
        began = NOW + number / 10
        rows.append(lasting(id_of(began, chance), began, 0.1, events=b"x" * 100))
    for start in range(0, 300, 30):
        await store.traces.add(batched(*rows[start : start + 30]))
    stay = rows[len(rows) - room // 100 :]
    assert await store.traces.prune(before=0, max_bytes=room) == 300 - len(stay)
    assert await store.traces.newest(None, limit=999) == [row.summary for row in reversed(stay)]
    for row in stay:
        assert await store.traces.get(row.summary.trace_id, "app") == row


async def test_who_forgets_waits_for_nobody(postgres_server: Postgres) -> None:
    store = SqlStore(await postgres_server.migrated())
    await store.open()
    chance = random.Random(10)
    rows = [lasting(id_of(NOW + number * 100, chance), NOW + number * 100, 1) for number in range(5)]
    await store.traces.add(batched(*rows))
    async with asyncio.timeout(20), store._database.transaction() as connection:
        held = select(trace_batches.c.id).where(trace_batches.c.first_id == rows[2].summary.trace_id)
        assert await connection.scalar(held.with_for_update()) is not None
        assert await store.traces.prune(before=NOW + 10_000, max_bytes=2**40) == 4
    assert await store.traces.newest(None, limit=9) == [rows[2].summary]
    assert await store.traces.prune(before=NOW + 10_000, max_bytes=2**40) == 1
    await store.close()


async def test_a_turn_taken_up_again_has_one_trace_and_its_neighbours_theirs(store: SqlStore) -> None:
    chance = random.Random(2)
    rows = [lasting(id_of(NOW + number, chance), NOW + number, 1, events=b"[%d]" % number) for number in range(10)]
    await store.traces.add(batched(*rows))
    later = changed(rows[4], started_at=NOW + 5000, finished_at=NOW + 5001, status=500)
    await store.traces.add(batched(later))
    # One that ended earlier and comes late is no news.
    await store.traces.add(batched(changed(rows[4], started_at=NOW + 4000, finished_at=NOW + 4001)))
    listed = await store.traces.newest("app", limit=99)
    assert listed == [later.summary, *[row.summary for row in reversed(rows) if row is not rows[4]]]
    for row in [later, *rows[:4], *rows[5:]]:
        assert await store.traces.get(row.summary.trace_id, "app") == row


async def test_a_list_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/x.db")
    await store.open()
    chance, rows = random.Random(3), []
    for number in range(2000):
        began = NOW + number * 10
        rows.append(lasting(id_of(began, chance), began, 1, "rare" if number % 400 == 0 else "app"))
        await store.traces.add(batched(rows[-1]))
    steps = 0

    def counted() -> None:
        nonlocal steps
        steps += 1

    async with store._database.reading() as connection:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        await raw.set_progress_handler(counted, 100)
    for owner, after, found in (
        ("app", None, rows[1999]),
        ("app", rows[1000], rows[999]),
        ("rare", None, rows[1600]),
        (None, rows[5], rows[4]),
    ):
        steps = 0
        listed = await store.traces.newest(owner, limit=1, after=None if after is None else after.summary.trace_id)
        assert listed == [found.summary]
        assert await store.traces.get(found.summary.trace_id, owner) == found
        # Two thousand batches, of which no query walks through more than an index.
        assert steps < 300, steps
    await store.close()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The batches whose summaries were read."""
    read: list[bytes] = []
    decode = trace_records._decode

    def counted(kept: bytes) -> Any:
        read.append(kept)
        return decode(kept)

    monkeypatch.setattr(trace_records, "_decode", counted)
    return read


async def test_ids_of_any_time_are_found_and_lead_no_other_search_astray(store: SqlStore, decoded: list[bytes]) -> None:
    chance, batches, asked = random.Random(5), [], []
    for number in range(400):
        began = NOW + number
        rows = [lasting(id_of(began + part / 10, chance), began + part / 10, 1) for part in range(3)]
        # As schedules have them, and turns that waited long.
        rows.append(lasting(f"{chance.getrandbits(128):032x}", began, 1))
        rows.append(lasting(id_of(began - 3000, chance), began, 1, response_id=f"resp_{number}"))
        batches += batched(*rows)
        asked += [row for row in rows if number % 100 == 50]
    await store.traces.add(batches)
    for row in asked:
        decoded.clear()
        assert await store.traces.get(row.summary.trace_id, "app") == row
        assert len(decoded) <= 2
    for unknown in (id_of(NOW + 200, chance), "0" * 32, "f" * 32, "g" * 32, "req_", "%", f"resp_{'0' * 32}"):
        decoded.clear()
        assert await store.traces.get(unknown, None) is None
        assert not decoded
    decoded.clear()
    again = changed(asked[0], started_at=NOW + 9000, finished_at=NOW + 9001)
    await store.traces.add(batched(again))
    # The batch to be kept, and the one that was written anew.
    assert len(decoded) <= 4
    assert await store.traces.get(again.summary.trace_id, None) == again
    assert len(await store.traces.newest(None, limit=9999)) == 5 * 400


async def test_a_page_behind_long_turns_is_not_put_in_order_again_and_again(store: SqlStore) -> None:
    chance, batches, count = random.Random(6), [], 0
    for second in range(200):
        rows = [(NOW + second - BATCH_S * chance.random()) for _ in range(50)]
        batches += batched(*[lasting(id_of(began, chance), began, NOW + second - began) for began in rows])
    await store.traces.add(batches)
    whole = await store.traces.newest(None, limit=10_000)

    def counted(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is TraceSummary.place.fget.__code__  # type: ignore[attr-defined]

    sys.setprofile(counted)
    page = await store.traces.newest(None, limit=100, after=whole[5000].trace_id)
    sys.setprofile(None)
    assert page == whole[5001:5101]
    assert count < 20_000


async def test_an_earlier_trace_that_is_written_behind_the_later_one_is_forgotten(store: SqlStore) -> None:
    chance = random.Random(7)
    trace_id = id_of(NOW, chance)
    earlier, later = lasting(trace_id, NOW, 4, status=500), lasting(trace_id, NOW + 10, 0.1)
    other = lasting(id_of(NOW + 1, chance), NOW + 1, 3)
    await store.traces.add([*batched(later), *batched(earlier, other)])
    assert await store.traces.newest(None, limit=9) == [later.summary, other.summary]
    assert await store.traces.newest(None, limit=9, after=other.summary.trace_id) == []
    assert await store.traces.get(trace_id, None) == later


async def test_what_is_written_anew_meanwhile_is_forgotten_too(postgres_server: Postgres) -> None:
    store = SqlStore(await postgres_server.migrated())
    await store.open()
    chance = random.Random(8)
    rows = [lasting(id_of(NOW + number, chance), NOW + number, 1) for number in range(3)]
    await store.traces.add(batched(*rows))
    later = changed(rows[1], started_at=NOW + 50, finished_at=NOW + 51)
    async with asyncio.timeout(20):
        async with store._database.transaction() as connection:
            # What another writer is at: it takes the batch away and puts it back.
            number = await connection.scalar(select(trace_batches.c.id))
            assert number is not None
            await _thin(connection, number, lambda kept: kept)
            adding = asyncio.create_task(store.traces.add(batched(later)))
            async with store._database.reading() as looking:
                waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
                while not await looking.scalar(waiting):
                    await asyncio.sleep(0.01)
        await adding
    assert await store.traces.newest(None, limit=9) == [later.summary, rows[2].summary, rows[0].summary]
    assert await store.traces.newest(None, limit=9, after=rows[2].summary.trace_id) == [rows[0].summary]
    await store.close()


async def test_a_list_goes_on_behind_a_trace_id_alone(store: SqlStore) -> None:
    chance = random.Random(9)
    rows = [lasting(id_of(NOW + number, chance), NOW + number, 1, response_id=f"r{number}") for number in range(3)]
    await store.traces.add(batched(*rows))
    for after in (f"req_{rows[2].summary.trace_id}", "r2", "", "%", "_" * 32):
        assert await store.traces.newest("app", limit=9, after=after) == []


async def test_a_trace_without_events_is_one(store: SqlStore) -> None:
    row = traced(new_trace_id(), events=b"")
    await store.traces.add(batched(row))
    assert await store.traces.get(row.summary.trace_id, "app") == row


async def test_a_batch_that_is_written_anew_while_it_is_read_is_not_taken_for_the_other(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(11)
    rows = [
        lasting(id_of(NOW + number, chance), NOW + number, 1, f"owner-{number}", events=b"[%d]" % number)
        for number in range(4)
    ]
    await store.traces.add(batched(*rows))
    find, found = traces._find, []

    async def interrupted(*asked: Any) -> Any:
        found.append(await find(*asked))
        if len(found) == 1:
            await store.traces.add(batched(changed(rows[0], started_at=NOW + 90, finished_at=NOW + 91)))
        return found[-1]

    monkeypatch.setattr(traces, "_find", interrupted)
    assert await store.traces.get(rows[2].summary.trace_id, "owner-2") == rows[2]


def test_a_batch_is_neither_large_nor_of_a_long_time() -> None:
    chance = random.Random(4)
    rows = [
        lasting(id_of(began, chance), began, 1, events=b"x" * chance.choice([10, 1000, 200_000, 2 * BATCH_BYTES]))
        for began in sorted(NOW + chance.random() * 600 for _ in range(200))
    ]
    chance.shuffle(rows)
    batches = batches_of([row.summary for row in rows], [row.events for row in rows])
    assert sum(batch.count for batch in batches) == len(rows)
    got = {row.summary.trace_id: row for batch in batches for row in batch.rows()}
    assert got == {row.summary.trace_id: row for row in rows}
    for batch in batches:
        assert batch.newest_at - batch.oldest_at <= BATCH_S
        assert batch.size <= BATCH_BYTES or batch.count == 1
        assert batch.size == len(batch.events)
    assert batches_of([], []) == []


def test_an_id_says_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "time", lambda: NOW + 0.25)
    assert made_at(new_trace_id()) == NOW + 0.25
    with pytest.raises(ValueError, match="base 16"):
        made_at("x" * 32)


def of_before(number: int) -> dict[str, Any]:
    """A trace as it was kept in a row of its own."""
    began = NOW + number * (0.01 if number < 150 else 45.0)
    return {
        # At first ids were chance alone.
        "trace_id": f"{number * 7919 % 1000:032x}" if number % 4 else f"{int(began):08x}{number * 7919 % 1000:024x}",
        "owner": "app" if number % 3 else "app/eve",
        "key": "app",
        "user": None if number % 3 else "eve",
        "response_id": f"chatcmpl-{'a' * 32}" if number == 7 else None,
        "route": "订单",
        "model": "m",
        "backend": "b",
        "strategy": "rule",
        "status": 200,
        "started_at": began,
        "finished_at": began + 1,
        "seconds": 1.0,
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "version": "1-abc",
        "events": (b"[%d]" % number) * (100_000 if number % 50 == 1 else 1),
    }


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_traces_in_rows_of_their_own_are_moved(
    request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    if database == "postgresql":
        server: Postgres = request.getfixturevalue("postgres_server")
        url = server.database()
    store = SqlStore(url)
    rows = [of_before(number) for number in range(200)]
    async with store._database.transaction() as connection:
        await connection.run_sync(kept_before, rows)
    with capture_logs() as lines:
        if database == "postgresql":
            await store.upgrade()
        await store.open()
    assert [line["revision"] for line in lines] == (["0011"] if database == "sqlite" else [])
    for row in rows:
        events = row.pop("events")
        assert await store.traces.get(row["trace_id"], row["owner"]) == TraceRow(TraceSummary(**row), events)
    assert len(await store.traces.newest(None, limit=999)) == 200
    named = await store.traces.get(f"chatcmpl-{'a' * 32}", None)
    assert named is not None
    assert named.summary.trace_id == rows[7]["trace_id"]
    # And new ones stand beside them.
    await store.traces.add(batched(traced(new_trace_id(), started_at=NOW + 10**6, finished_at=NOW + 10**6)))
    assert len(await store.traces.newest(None, limit=999)) == 201
    async with store._database.reading() as reading:
        assert "traces" not in await reading.run_sync(lambda of: inspect(of).get_table_names())
        spans = (await reading.execute(select(trace_batches.c.first_id, trace_batches.c.last_id))).all()
    assert all(made_at(last) - made_at(first) <= SPAN_S for first, last in spans if first)
    await store.close()


async def test_large_traces_are_moved_one_by_one(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/x.db")
    async with store._database.transaction() as connection:
        for start in range(0, 60, 6):
            # Few at a time here too.
            rows = [{**of_before(number), "events": b"x" * 1_000_000} for number in range(start, start + 6)]
            await connection.run_sync(kept_before, rows)
    tracemalloc.start()
    await store.upgrade()
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 20_000_000
    assert len(await store.traces.newest(None, limit=999)) == 60
    await store.close()


def kept_before(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Tables of the last version that kept each trace in a row of its own, with these."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "gateway" / "store" / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "0011")
    names = [*rows[0], "size"]
    quoted = ", ".join(f'"{name}"' for name in names)
    adding = f"INSERT INTO traces ({quoted}) VALUES ({', '.join(':' + name for name in names)})"
    connection.execute(text(adding), [{**row, "size": len(row["events"])} for row in rows])
