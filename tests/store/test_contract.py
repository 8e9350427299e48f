"""What every store promises, proved for the database and for its twin in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.store.memory import MemoryStore
from gateway.store.sql import SqlStore
from gateway.store.store import JournalEntry, KeyRow, Store, TraceRow


@pytest.fixture(params=["memory", "file", "sqlite-memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "file":
        made = SqlStore(f"sqlite:///{tmp_path}/deep/down/hermes.db")
    else:
        made = SqlStore("sqlite:///:memory:")
    await made.open()
    yield made
    await made.close()


def trace(number: int, owner: str = "app", **more: object) -> TraceRow:
    values: dict[str, object] = {
        "trace_id": f"{number:032x}",
        "owner": owner,
        "key": owner,
        "status": 200,
        "started_at": 1000.0 + number,
        "finished_at": 1001.0 + number,
        "seconds": 1.0,
        "events": b'[{"seq":0}]',
    }
    return TraceRow(**{**values, **more})  # type: ignore[arg-type]


def entry(
    round_number: int, kind: str = "answer", position: int = 0, turn: str = "t1", owner: str = "app"
) -> JournalEntry:
    return JournalEntry(
        turn_id=turn,
        trace_id="0" * 32,
        owner=owner,
        round=round_number,
        kind=kind,
        position=position,
        content={"text": "订单", "n": [1, None, 2.5]},
        created_at=1000.0 + round_number,
    )


def key(number: int, owner: str = "admin", **more: object) -> KeyRow:
    values: dict[str, object] = {
        "id": f"key_{number}",
        "name": f"n{number}",
        "digest": f"{number:064x}",
        "prefix": "hg-1234",
        "owner": owner,
        "created_at": 1000.0 + number,
    }
    return KeyRow(**{**values, **more})  # type: ignore[arg-type]


async def test_a_trace_comes_back_as_it_was(store: Store) -> None:
    row = trace(
        1,
        user="eve",
        response_id="chatcmpl-1",
        route="订单",
        model="m",
        backend="b",
        strategy="rule",
        prompt_tokens=3,
        completion_tokens=4,
        version="1-abc",
        events=b"[]" * 10_000,
    )
    await store.traces.add([row])
    for id_ in (row.trace_id, f"req_{row.trace_id}", "chatcmpl-1"):
        assert await store.traces.get(id_, "app") == row


async def test_nobody_reads_another_owners_trace(store: Store) -> None:
    await store.traces.add([trace(1, response_id="r"), trace(2, "app/eve")])
    for owner in ("other", "app/eve", "", "ap", "app%", "a_p"):
        assert await store.traces.get(f"{1:032x}", owner) is None
        assert await store.traces.get("r", owner) is None
    assert [row.trace_id for row in await store.traces.newest("app", limit=9)] == [f"{1:032x}"]
    assert await store.traces.newest("other", limit=9) == []
    assert len(await store.traces.newest(None, limit=9)) == 2
    assert await store.traces.get("r", None) is not None


async def test_pages_of_traces_are_newest_first_and_complete(store: Store) -> None:
    # Several begin at one instant: the id decides then.
    await store.traces.add([trace(number, started_at=1000.0 + number // 3) for number in range(10)])
    seen: list[str] = []
    after = None
    while page := await store.traces.newest("app", limit=3, after=after):
        seen += [row.trace_id for row in page]
        after = page[-1].trace_id
    assert seen == [f"{number:032x}" for number in reversed(range(10))]
    assert all(row.events == b"" for row in await store.traces.newest("app", limit=3))


async def test_a_page_after_somebody_elses_trace_is_empty(store: Store) -> None:
    await store.traces.add([trace(1), trace(2, "other")])
    assert await store.traces.newest("app", limit=3, after=f"{2:032x}") == []
    assert await store.traces.newest("app", limit=3, after="nothing") == []


async def test_adding_a_trace_again_replaces_it(store: Store) -> None:
    await store.traces.add([trace(1)])
    await store.traces.add([trace(1, status=500), trace(2)])
    found = await store.traces.get(f"{1:032x}", "app")
    assert found is not None
    assert found.status == 500
    await store.traces.add([])
    assert len(await store.traces.newest(None, limit=9)) == 2


async def test_old_traces_go(store: Store) -> None:
    await store.traces.add([trace(number) for number in range(1200)])
    assert await store.traces.prune(before=2000, max_bytes=10**9) == 1000
    assert len(await store.traces.newest(None, limit=5000)) == 200
    assert await store.traces.prune(before=2000, max_bytes=10**9) == 0


async def test_the_oldest_traces_beyond_the_size_go(store: Store) -> None:
    await store.traces.add([trace(number, events=b"x" * 100) for number in range(10)])
    assert await store.traces.prune(before=0, max_bytes=350) == 7
    assert [row.started_at for row in await store.traces.newest(None, limit=9)] == [1009, 1008, 1007]


async def test_a_turns_steps_come_back_in_order(store: Store) -> None:
    steps = [entry(1), entry(1, "tool", 0), entry(1, "tool", 1), entry(2)]
    await store.journal.append(steps[2:])
    await store.journal.append([steps[1], steps[0]])
    await store.journal.append([entry(1, turn="t2")])
    assert await store.journal.of_turn("t1", "app") == steps


async def test_a_step_is_written_once_and_a_batch_wholly_or_not_at_all(store: Store) -> None:
    await store.journal.append([entry(1)])
    with pytest.raises(StoreUnavailable):
        await store.journal.append([entry(2), entry(1)])
    assert await store.journal.of_turn("t1", "app") == [entry(1)]


async def test_nobody_reads_another_owners_journal(store: Store) -> None:
    await store.journal.append([entry(1)])
    assert await store.journal.of_turn("t1", "other") == []
    assert len(await store.journal.of_turn("t1", None)) == 1


async def test_old_steps_go(store: Store) -> None:
    await store.journal.append([entry(number) for number in range(5)])
    assert await store.journal.prune(before=1003) == 3
    assert [found.round for found in await store.journal.of_turn("t1", "app")] == [3, 4]


async def test_a_key_comes_back_as_it_was(store: Store) -> None:
    row = key(1, team="t", roles=("admin",), tags=("vip",), models=(), routes=None, tools=("x", "y"), expires_at=5000.0)
    assert not await store.keys.ever_created()
    await store.keys.add(row)
    assert list(await store.keys.active(now=2000)) == [row]
    assert await store.keys.ever_created()


async def test_a_key_and_its_digest_are_there_once(store: Store) -> None:
    await store.keys.add(key(1))
    for twin in (key(1, digest="f" * 64), key(2, digest=key(1).digest)):
        with pytest.raises(StoreUnavailable):
            await store.keys.add(twin)


async def test_a_revoked_or_ended_key_is_not_active_and_stays_known(store: Store) -> None:
    await store.keys.add(key(1))
    await store.keys.add(key(2, expires_at=2000.0))
    assert await store.keys.revoke("key_1", None, 1500)
    assert not await store.keys.revoke("key_1", None, 1600)
    assert not await store.keys.revoke("nothing", None, 1600)
    assert list(await store.keys.active(now=2000)) == []
    assert [(row.id, row.revoked_at) for row in await store.keys.every(None)] == [("key_2", None), ("key_1", 1500)]
    assert await store.keys.ever_created()


async def test_nobody_sees_or_ends_another_owners_key(store: Store) -> None:
    await store.keys.add(key(1, "app"))
    assert await store.keys.every("other") == []
    assert not await store.keys.revoke("key_1", "other", 1500)
    assert await store.keys.revoke("key_1", "app", 1500)
