"""What every store promises, proved for the database and for its twin in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StoreUnavailable
from gateway.store.key_records import KeyRow, SecretRow
from gateway.store.memory import MemoryStore
from gateway.store.sql import SqlStore
from gateway.store.store import JournalEntry, Store
from gateway.store.trace_records import TraceRow
from gateway.store.usage_records import UsageRow
from tests.traces import batched, traced


@pytest.fixture(params=["memory", "file", "sqlite-memory", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "file":
        made = SqlStore(f"sqlite:///{tmp_path}/deep/down/hermes.db")
    elif request.param == "postgresql":
        made = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    else:
        made = SqlStore("sqlite:///:memory:")
    await made.open()
    yield made
    await made.close()


def trace(number: int, owner: str = "app", **more: Any) -> TraceRow:
    times = {"started_at": 1000.0 + number, "finished_at": 1001.0 + number}
    return traced(f"{number:032x}", owner, **{**times, "events": b'[{"seq":0}]', **more})


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


def secret(number: int, **more: object) -> SecretRow:
    values: dict[str, object] = {"digest": f"{number:064x}", "prefix": "hg-1234", "created_at": 1000.0 + number}
    return SecretRow(**{**values, **more})  # type: ignore[arg-type]


def key(number: int, **more: object) -> KeyRow:
    values: dict[str, object] = {
        "id": f"key_{number}",
        "name": f"n{number}",
        "owner": "admin",
        "created_at": 1000.0 + number,
        "secrets": (secret(number),),
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
    await store.traces.add(batched(row))
    for id_ in (row.summary.trace_id, f"req_{row.summary.trace_id}", "chatcmpl-1"):
        assert await store.traces.get(id_, "app") == row


async def test_nobody_reads_another_owners_trace(store: Store) -> None:
    await store.traces.add(batched(trace(1, response_id="r"), trace(2, "app/eve")))
    for owner in ("other", "app/eve", "", "ap", "app%", "a_p"):
        assert await store.traces.get(f"{1:032x}", owner) is None
        assert await store.traces.get("r", owner) is None
    assert [row.trace_id for row in await store.traces.newest("app", limit=9)] == [f"{1:032x}"]
    assert await store.traces.newest("other", limit=9) == []
    assert len(await store.traces.newest(None, limit=9)) == 2
    assert await store.traces.get("r", None) is not None


async def test_pages_of_traces_are_newest_first_and_complete(store: Store) -> None:
    # Several begin at one instant: the id decides then.
    await store.traces.add(batched(*[trace(number, started_at=1000.0 + number // 3) for number in range(10)]))
    seen: list[str] = []
    after = None
    while page := await store.traces.newest("app", limit=3, after=after):
        seen += [row.trace_id for row in page]
        after = page[-1].trace_id
    assert seen == [f"{number:032x}" for number in reversed(range(10))]


async def test_a_page_after_somebody_elses_trace_is_empty(store: Store) -> None:
    await store.traces.add(batched(trace(1), trace(2, "other")))
    assert await store.traces.newest("app", limit=3, after=f"{2:032x}") == []
    assert await store.traces.newest("app", limit=3, after="nothing") == []


async def test_adding_a_trace_again_replaces_it(store: Store) -> None:
    await store.traces.add(batched(trace(1)))
    await store.traces.add(batched(trace(1, status=500), trace(2)))
    found = await store.traces.get(f"{1:032x}", "app")
    assert found is not None
    assert found.summary.status == 500
    await store.traces.add([])
    assert len(await store.traces.newest(None, limit=9)) == 2


async def test_old_traces_go(store: Store) -> None:
    await store.traces.add(batched(*map(trace, range(1200))))
    assert await store.traces.prune(before=2000, max_bytes=2048 * 1024 * 1024) == 1000
    assert len(await store.traces.newest(None, limit=5000)) == 200
    assert await store.traces.prune(before=2000, max_bytes=10**9) == 0


async def test_the_oldest_traces_beyond_the_size_go(store: Store) -> None:
    await store.traces.add(batched(*[trace(number, events=b"x" * 100) for number in range(10)]))
    assert await store.traces.prune(before=0, max_bytes=350) == 7
    assert [row.started_at for row in await store.traces.newest(None, limit=9)] == [1009, 1008, 1007]


async def test_of_traces_of_one_moment_those_beyond_the_size_go_alone(store: Store) -> None:
    rows = [trace(number, events=b"x" * 100, started_at=5.0) for number in range(1300)]
    await store.traces.add(batched(*rows))
    assert await store.traces.prune(before=0, max_bytes=20_000) == 1100
    kept = [row.trace_id for row in await store.traces.newest(None, limit=2000)]
    assert kept == [f"{number:032x}" for number in range(1299, 1099, -1)]
    assert await store.traces.prune(before=0, max_bytes=20_000) == 0


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
    row = key(
        1,
        team="t",
        roles=("admin",),
        tags=("vip",),
        models=(),
        routes=None,
        tools=("x", "y"),
        limits={"requests_per_min": 5},
        budgets={"day": 0.5},
        expires_at=5000.0,
    )
    assert not await store.keys.ever_created()
    await store.keys.add(row)
    assert await store.keys.find(secret(1).digest) == row == await store.keys.get("key_1")
    assert await store.keys.find(secret(2).digest) is None
    assert await store.keys.ever_created()


async def test_a_key_and_its_digest_are_there_once(store: Store) -> None:
    await store.keys.add(key(1))
    for twin in (key(1, secrets=(secret(9),)), key(2, secrets=(secret(1),))):
        with pytest.raises(StoreUnavailable):
            await store.keys.add(twin)
    assert await store.keys.get("key_2") is None


async def test_a_revoked_key_stays_known_and_cannot_be_changed(store: Store) -> None:
    await store.keys.add(key(1))
    await store.keys.add(key(2))
    assert await store.keys.any_active(2000)
    assert await store.keys.revoke("key_1", 1500)
    assert not await store.keys.revoke("key_1", 1600)
    assert not await store.keys.revoke("nothing", 1600)
    assert await store.keys.change("key_1", {"blocked": False}) is None
    assert await store.keys.rotate("key_1", secret(7), old_until=2000) is None
    assert [(row.id, row.revoked_at) for row in await store.keys.every()] == [("key_2", None), ("key_1", 1500)]
    assert await store.keys.any_active(2000)
    changed = await store.keys.change("key_2", {"expires_at": 1999.0, "roles": ("metrics",), "models": None})
    assert changed is not None
    assert changed == await store.keys.get("key_2")
    assert (changed.roles, changed.expires_at) == (("metrics",), 1999.0)
    assert not await store.keys.any_active(2000)
    assert await store.keys.ever_created()


async def test_an_exchanged_secret_ends_and_the_new_one_does_not(store: Store) -> None:
    await store.keys.add(key(1, expires_at=9000.0))
    rotated = await store.keys.rotate("key_1", secret(2), old_until=3000)
    assert rotated is not None
    assert [(each.digest, each.expires_at) for each in rotated.secrets] == [
        (secret(2).digest, None),
        (secret(1).digest, 3000),
    ]
    again = await store.keys.rotate("key_1", secret(3), old_until=5000)
    assert again is not None
    # One that ends sooner is not given more time.
    assert [each.expires_at for each in again.secrets] == [None, 5000, 3000]
    old, new = await store.keys.find(secret(1).digest), await store.keys.find(secret(3).digest)
    assert old is not None
    assert new is not None
    assert (old.ends_at(), new.ends_at()) == (3000, 9000)


async def test_keys_are_listed_in_pages(store: Store) -> None:
    for number in range(5):
        await store.keys.add(key(number, created_at=1000.0 + number // 2))
    found: list[str] = []
    after: str | None = None
    while page := await store.keys.every(limit=2, after=after):
        found += [row.id for row in page]
        assert all(row.secrets for row in page)
        after = page[-1].id
    assert found == ["key_4", "key_3", "key_2", "key_1", "key_0"]
    assert await store.keys.every(after="nothing") == []


def used(day: str, **more: object) -> UsageRow:
    values: dict[str, object] = {"day": day, "owner": "app/eve", "key": "app", "user": "eve", "turns": 1, "cost": 10}
    return UsageRow(**{**values, **more})  # type: ignore[arg-type]


async def test_usage_is_added_up_and_told_apart(store: Store) -> None:
    await store.usage.add([used("2025-01-31", model="m"), used("2025-01-31", model="m", prompt_tokens=2**40)])
    await store.usage.add([used("2025-01-31", model="m", cost=5, unpriced=1), used("2025-02-01", model="n", team="t")])
    await store.usage.add([used("2025-02-01", owner="b", key="b", user="", tags='["vip","x"]', cost=100)])
    found = await store.usage.sums(["day", "model"])
    assert [(row.day, row.model, row.turns, row.cost, row.unpriced) for row in found] == [
        ("2025-01-31", "m", 3, 25, 1),
        ("2025-02-01", "", 1, 100, 0),
        ("2025-02-01", "n", 1, 10, 0),
    ]
    assert found[0].prompt_tokens == 2**40
    assert [(row.key, row.cost) for row in await store.usage.sums(["key"], owner="app/eve")] == [("app", 35)]
    assert [row.cost for row in await store.usage.sums([])] == [135]
    assert [row.day for row in await store.usage.sums(["day"], since="2025-02-01", until="2025-02-01")] == [
        "2025-02-01"
    ]
    assert await store.usage.spent("owner", "app/eve") == 35
    assert await store.usage.spent("owner", "app/eve", since="2025-02-01") == 10
    assert await store.usage.spent("key", "app", until="2025-01-31") == 25
    assert await store.usage.spent("team", "t") == 10
    assert await store.usage.spent("tag", "vip") == 100
    assert await store.usage.spent("tag", "vi") == 0
    assert await store.usage.prune(before="2025-02-01")
    assert await store.usage.spent("owner", "app/eve") == 10
