"""Approvals in both databases: asked once, decided once, whoever races; what is recorded with a decision is there or is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.store.approval_records import ApprovalRow
from gateway.store.audit_records import AuditEntry
from gateway.store.compensation_records import CompensationRow
from gateway.store.run_records import RunRow
from gateway.store.sql import SqlStore

ENTRY = AuditEntry(at=1.0, actor="ops", owner="app", action="approval.approved", subject="apr_1")
ROW = ApprovalRow(
    id="apr_1",
    owner="app",
    key="app",
    turn_id="t1",
    trace_id="t1",
    round=1,
    position=0,
    call_id="c1",
    tool="pay",
    name="pay",
    spec_hash="s",
    arguments="{}",
    arguments_hash="h",
    headers={"x-shop": "1"},
    why=("deletes",),
    code="123456",
    version="1",
    created_at=1.0,
    expires_at=100.0,
)


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        made = SqlStore(f"sqlite:///{tmp_path / 'x.db'}")
    else:
        made = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    await made.open()
    yield made
    await made.close()


def run(name: str) -> RunRow:
    return RunRow(id=name, kind="approval", trace_id=name, owner="app", waits_for="time", created_at=1.0, due_at=1.0)


async def test_call_asks_once_and_is_decided_once(store: SqlStore) -> None:
    assert await store.approvals.ask(ROW, [run("told")], ENTRY) == ROW
    again = await store.approvals.ask(msgspec.structs.replace(ROW, id="apr_2"), [run("told again")], ENTRY)
    assert again == ROW
    assert await store.runs.get("told again", None) is None

    async def decide(number: int) -> bool:
        done = await store.approvals.decide(
            "apr_1",
            "approved",
            by=f"ops {number}",
            reason=None,
            code="123456",
            now=2.0,
            run=run(f"run {number}"),
            undo=None,
            entry=ENTRY,
        )
        return done.done

    assert sorted(await asyncio.gather(*(decide(number) for number in range(6)))) == [False] * 5 + [True]
    found = await store.approvals.get("apr_1", "app")
    assert found is not None
    runs = [each.id for each in await store.runs.newest(None, status=None, dead=None, limit=20, after=None)]
    assert sorted(runs) == sorted(["told", str(found.run_id)])
    assert (await store.audit.verify()).entries == 2
    assert await store.approvals.finish("apr_1", ok=True, content="{}", now=3.0, undo=None, entry=ENTRY)
    assert not await store.approvals.finish("apr_1", ok=False, content="{}", now=4.0, undo=None, entry=ENTRY)
    await store.approvals.told(["apr_1"], now=5.0)
    found = await store.approvals.get("apr_1", "app")
    assert found is not None
    assert (found.ok, found.finished_at, found.told_at, found.headers) == (True, 3.0, 5.0, {"x-shop": "1"})
    assert await store.approvals.prune(before=3.0) == 0
    assert await store.approvals.prune(before=3.5) == 1


async def test_wrong_codes_lock_and_what_is_late_is_not_decided(store: SqlStore) -> None:
    await store.approvals.ask(ROW, [], ENTRY)

    async def approve(code: str | None, now: float) -> tuple[bool, bool, str]:
        done = await store.approvals.decide(
            "apr_1", "approved", by="ops", reason=None, code=code, now=now, run=run("r"), undo=run("u"), entry=ENTRY
        )
        assert done.row is not None
        return done.done, done.wrong_code, done.row.status

    assert await approve("123456", 100.0) == (False, False, "pending")  # it has expired by then
    assert await approve(None, 2.0) == (False, True, "pending")
    assert await approve("1", 2.0) == (False, True, "pending")
    assert await approve("1", 2.0) == (False, True, "locked")
    assert await approve("123456", 2.0) == (False, False, "locked")
    assert await store.runs.get("r", None) is None
    assert await store.runs.get("u", None) is not None


async def test_run_that_was_laid_aside_is_woken_and_one_that_ended_is_not_approved(store: SqlStore) -> None:
    waits = msgspec.structs.replace(run("run_t1"), kind="chat", due_at=100.0)
    await store.runs.add([waits])
    await store.approvals.ask(ROW, [], ENTRY)
    await store.approvals.wake("t1", now=2.0)
    assert await store.runs.next_due() == 2.0
    await store.runs.cancel("run_t1", None, now=3.0)
    done = await store.approvals.decide(
        "apr_1", "approved", by="ops", reason=None, code="123456", now=4.0, run=run("r"), undo=None, entry=ENTRY
    )
    assert done.row is not None
    assert (done.done, done.row.status) == (False, "withdrawn")
    assert await store.runs.get("r", None) is None


async def test_effect_is_owed_once_and_what_was_not_undone_stays(store: SqlStore) -> None:
    row = CompensationRow(
        effect_id="e1",
        owner="app",
        turn_id="t1",
        run_id="r1",
        position=0,
        tool="undo",
        undoes="do",
        arguments="{}",
        created_at=1.0,
    )
    await store.compensations.owe([row])
    await store.compensations.owe([msgspec.structs.replace(row, run_id="r2")])
    assert await store.compensations.of_turn("t1", "app") == [row]
    failed = msgspec.structs.replace(row, made_id="e2", status="failed", attempts=4, error="no", finished_at=2.0)
    await store.compensations.change(failed)
    assert await store.compensations.of_effects(["e2"]) == [failed]
    assert await store.compensations.prune(before=10.0) == 0
    assert await store.compensations.settle("e2", status="done", error=None, now=3.0)
    assert not await store.compensations.settle("e9", status="done", error=None, now=3.0)
    assert await store.compensations.prune(before=10.0) == 1
