"""What the database promises of runs: one holder under one epoch, and nothing written by anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.errors import StoreUnavailable
from gateway.store.run_records import RunRow
from gateway.store.sql import SqlStore
from gateway.store.store import JournalEntry
from gateway.store.turn_records import TurnRow
from tests.runs.stage import fresh_database


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "postgresql":
        store = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    else:
        await fresh_database(tmp_path / "hermes.db")
        store = SqlStore(f"sqlite:///{tmp_path / 'hermes.db'}")
    await store.open()
    yield store
    await store.close()


def row(number: int = 1, **more: Any) -> RunRow:
    given = {
        "id": f"run_{number}",
        "kind": "chat",
        "trace_id": str(number),
        "owner": "app",
        "created_at": 1.0,
        "due_at": 1.0,
    }
    return RunRow(**{**given, **more})


async def claimed(store: SqlStore, holder: str = "me", *, now: float = 10.0) -> RunRow:
    found = await store.runs.claim(["run_1"], holder, now=now, until=now + 5, per_key=None)
    assert len(found.held) == 1
    return found.held[0]


async def test_a_run_is_claimed_once_and_unknown_ones_are_told(store: SqlStore) -> None:
    await store.runs.add([row(), row(2)])
    orders = (["run_1", "run_9", "run_2", "run_1"], ["run_2", "run_1", "run_9"]) * 4
    found = await asyncio.gather(
        *(store.runs.claim(ids, f"w{n}", now=1, until=9, per_key=None) for n, ids in enumerate(orders))
    )
    held = [run for each in found for run in each.held]
    assert sorted((run.id, run.epoch, run.deliveries) for run in held) == [("run_1", 1, 1), ("run_2", 1, 1)]
    assert all(each.unknown == ["run_9"] for each in found)


async def test_claims_at_once_hold_no_more_of_a_key_than_may_be(store: SqlStore) -> None:
    await store.runs.add([row(number, key="k") for number in range(8)])
    found = await asyncio.gather(
        *(store.runs.claim([f"run_{n}"], f"w{n}", now=1, until=9, per_key=2) for n in range(8))
    )
    assert sum(len(each.held) for each in found) == 2


async def test_a_run_that_changes_hands_while_its_end_is_asked_for_is_ended_all_the_same(store: SqlStore) -> None:
    for number in range(20):
        await store.runs.add([row(number, id="run_1", trace_id=str(number))])
        held = await claimed(store)
        await asyncio.gather(
            store.runs.give_back(held, now=11.0, due_at=11.0, counted=False),
            store.runs.cancel("run_1", "app", now=11.0),
        )
        after = await store.runs.get("run_1", None)
        assert after is not None
        assert after.status in ("cancelled", "cancelling")
        if after.status == "cancelling":
            assert await store.runs.end(held, status="cancelled", now=12.0)
        assert await store.runs.prune(before=1e9) == 1


async def test_an_older_epoch_of_the_same_holder_writes_nothing(store: SqlStore) -> None:
    await store.runs.add([row()])
    old = await claimed(store)
    await store.runs.lapse(now=100.0, max_deliveries=9)
    new = await claimed(store, now=100.0)
    assert (old.holder, old.epoch < new.epoch) == (new.holder, True)
    assert not await store.runs.end(old, status="completed", now=101.0, answer=b"{}")
    assert not await store.runs.report(old, {"step": 1})
    assert await store.runs.give_back(old, now=101.0, due_at=101.0, counted=True) is None
    assert await store.runs.renew("me", until=200.0) == {"run_1": (new.epoch, "running")}
    assert await store.runs.end(new, status="completed", now=102.0, answer=b"{}")
    assert not await store.runs.end(new, status="failed", now=103.0)


async def test_the_end_of_a_run_and_what_follows_it_are_one_step(store: SqlStore) -> None:
    await store.runs.add([row()])
    held = await claimed(store)
    await store.runs.lapse(now=100.0, max_deliveries=9)
    assert not await store.runs.end(held, status="completed", now=101.0, followers=[row(2)])
    assert await store.runs.get("run_2", None) is None
    held = await claimed(store, now=100.0)
    assert await store.runs.end(held, status="completed", now=101.0, followers=[row(2)])
    assert await store.runs.get("run_2", None) is not None


async def test_what_was_given_back_while_its_end_was_asked_for_is_cancelled(store: SqlStore) -> None:
    await store.runs.add([row()])
    held = await claimed(store)
    asked = await store.runs.cancel("run_1", "app", now=11.0)
    assert asked is not None
    assert asked.status == "cancelling"
    assert await store.runs.to_cancel("me") == ["run_1"]
    assert await store.runs.give_back(held, now=12.0, due_at=12.0, counted=False) == "cancelled"


async def test_a_run_of_one_identity_is_added_once(store: SqlStore) -> None:
    first, second = await store.runs.add([row(1, idempotency_key="k"), row(2, idempotency_key="k")])
    assert (first.id, second.id) == ("run_1", "run_1")
    assert [each.id for each in await store.runs.add([row(1, body=b"other"), row(3)])] == ["run_1", "run_3"]
    kept = await store.runs.get("run_1", None)
    assert kept is not None
    assert kept.body == b""


async def test_lists_go_on_behind_a_run_and_keep_to_their_owner(store: SqlStore) -> None:
    await store.runs.add([row(n, created_at=float(n // 2), owner="app" if n else "other") for n in range(6)])
    found: list[str] = []
    after = None
    while page := await store.runs.newest("app", status=None, dead=None, limit=2, after=after):
        found += [each.id for each in page]
        after = page[-1].id
    assert found == ["run_5", "run_4", "run_3", "run_2", "run_1"]
    assert await store.runs.newest("app", status="running", dead=None, limit=9, after=None) == []


async def test_only_what_ended_long_ago_is_forgotten(store: SqlStore) -> None:
    await store.runs.add([row(1), row(2), row(3, created_at=90.0, due_at=90.0)])
    held = await claimed(store)
    await store.runs.end(held, status="completed", now=20.0)
    late = (await store.runs.claim(["run_3"], "me", now=91, until=99, per_key=None)).held[0]
    await store.runs.end(late, status="failed", now=95.0)
    assert await store.runs.prune(before=50.0) == 1
    assert await store.runs.get("run_1", None) is None
    assert await store.runs.get("run_2", None) is not None  # it waits still
    assert await store.runs.counts() == {"queued": 1, "failed": 1, "dead": 0}


async def test_an_answer_of_the_journal_needs_the_turn_it_belongs_to(store: SqlStore) -> None:
    await store.turns.begin(
        TurnRow(
            turn_id="t",
            owner="app",
            key="k",
            body_hash="h",
            holder="me|1",
            held_until=9.0,
            created_at=1.0,
            updated_at=1.0,
        )
    )
    entry = JournalEntry(turn_id="t", trace_id="t", owner="app", round=1, kind="answer", content=1, created_at=1.0)
    with pytest.raises(StoreUnavailable):
        await store.journal.append([entry], held_by="me|2")
    await store.journal.append([entry], held_by="me|1")
    assert len(await store.journal.of_turn("t", None)) == 1


def entry(number: int, kind: str = "answer") -> JournalEntry:
    return JournalEntry(turn_id="1", trace_id="1", owner="app", round=number, kind=kind, content={}, created_at=1.0)


async def kinds(store: SqlStore) -> list[tuple[int, str]]:
    return [(each.round, each.kind) for each in await store.journal.of_turn("1", None)]


async def test_a_run_begun_again_keeps_what_is_recorded_up_to_where_it_goes_on(store: SqlStore) -> None:
    await store.runs.add([row()])
    held = await claimed(store)
    await store.journal.append([entry(0, "decision"), entry(1), entry(1, "tool"), entry(2)])
    assert not await store.runs.retry("run_1", "app", now=11.0, forget_from=0), "it is under way"
    assert await store.runs.end(held, status="failed", now=11.0)
    assert not await store.runs.retry("run_1", "other", now=12.0, forget_from=0)
    assert len(await kinds(store)) == 4
    assert await store.runs.retry("run_1", "app", now=12.0, forget_from=2)
    assert await kinds(store) == [(0, "decision"), (1, "answer"), (1, "tool")]


async def test_a_step_is_recorded_by_who_holds_the_run_and_by_nobody_else(store: SqlStore) -> None:
    await store.runs.add([row()])
    old = await claimed(store)
    assert await store.runs.keep_step(old, "one", {"a": [1]}, now=11.0)
    await store.runs.lapse(now=100.0, max_deliveries=9)
    new = await claimed(store, now=100.0)
    assert not await store.runs.keep_step(old, "two", 2, now=101.0)
    assert await store.runs.keep_step(new, "two", None, now=101.0)
    assert await store.runs.steps(new) == {"one": {"a": [1]}, "two": None}


async def test_steps_of_a_run_that_may_go_on_are_not_forgotten(store: SqlStore) -> None:
    await store.runs.add([row()])
    held = await claimed(store)
    await store.journal.append([entry(1), msgspec.structs.replace(entry(1), turn_id="no run's")])
    assert await store.journal.prune(before=100.0) == 1
    assert await store.runs.end(held, status="failed", now=11.0)
    assert await store.journal.prune(before=100.0) == 0
    assert await store.runs.retry("run_1", "app", now=12.0)
    assert await store.runs.end(await claimed(store), status="completed", now=13.0)
    assert await store.journal.prune(before=100.0) == 1


async def test_a_key_means_one_thing_whether_a_run_or_a_turn_was_asked_for_with_it(store: SqlStore) -> None:
    def turn(number: int, key: str) -> TurnRow:
        return TurnRow(
            turn_id=f"t{number}",
            owner="app",
            key=key,
            body_hash="t",
            holder="me",
            held_until=9,
            created_at=50,
            updated_at=50,
        )

    await store.runs.add([row(1, idempotency_key="of a run")])
    found = await store.turns.begin(turn(1, "of a run"))
    assert found is not None
    assert (found.turn_id, found.body_hash) == ("run_1", "")
    assert await store.turns.begin(turn(2, "of a run"), keys_since=2.0) is None
    assert await store.turns.begin(turn(3, "of a turn")) is None
    [taken] = await store.runs.add([row(3, idempotency_key="of a turn")])
    assert (taken.id, taken.kind, taken.body_hash) == ("t3", "", "t")
    assert await store.runs.get("run_3", None) is None
    [added] = await store.runs.add([row(4, idempotency_key="of a turn", created_at=99.0)], keys_since=60.0)
    assert added.id == "run_4"


async def test_a_key_of_a_run_that_ended_is_free_again_after_its_time(store: SqlStore) -> None:
    await store.runs.add([row(1, idempotency_key="k")])
    held = await claimed(store)
    for since, taken in ((0.0, "run_1"), (2.0, "run_1")):
        [found] = await store.runs.add([row(2, idempotency_key="k")], keys_since=since)
        assert found.id == taken, "it is under way"
    assert await store.runs.end(held, status="completed", now=11.0)
    assert [each.id for each in await store.runs.add([row(2, idempotency_key="k")], keys_since=1.0)] == ["run_1"]
    assert [each.id for each in await store.runs.add([row(2, idempotency_key="k")], keys_since=2.0)] == ["run_2"]
