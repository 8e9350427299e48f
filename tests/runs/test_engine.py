"""Runs from asking to end, with one process that executes them itself and with several over a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import redis
import structlog

from gateway.errors import (
    BackgroundUnavailable,
    ConfigStale,
    IdempotencyConflict,
    InvalidRequest,
    QueueFull,
    RunEnded,
    UpstreamUnavailable,
)
from gateway.runs.run import Attempt, Done
from gateway.store.run_records import Priority, RunRow
from tests.runs.stage import BRIEF, PACE, Scripted, done, house
from tests.valkey import wire

BOTH = pytest.mark.parametrize("shared", [False, True], ids=["embedded", "valkey"])


class Gate:
    """A handler that waits until it is let go; what it was told in between."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.stopped: list[str] = []

    async def __call__(self, run: RunRow, attempt: Attempt) -> Done:
        self.begun.append(run.id)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.stopped.append(run.id)
            raise
        self.ended.append(run.id)
        return Done(b'{"done": true}', {"model": "m"})

    async def busy(self, count: int = 1) -> None:
        async with asyncio.timeout(30):
            while len(self.begun) < count:
                await asyncio.sleep(0.01)


@BOTH
async def test_a_run_is_executed_and_its_answer_kept(shared: bool, tmp_path: Path) -> None:
    async with house(tmp_path, shared=shared) as at:
        engine = at.engine(done)
        row = await engine.runs.submit(at.new())
        assert row.status == "queued"
        over = await at.over(row.id)
        assert (over.status, over.answer, over.deliveries, over.error) == ("completed", b'{"done": true}', 1, None)
        assert over.started_at is not None
        assert over.finished_at is not None
        async with asyncio.timeout(20):
            while not at.counted.endings:  # it is counted once it is written down
                await asyncio.sleep(0.005)
        assert at.counted.endings == ["completed"]
        assert await engine.runs.get(row.id, "somebody else") is None


@BOTH
async def test_runs_that_arrive_together_are_all_taken_on_and_no_more_at_once_than_may_be(
    shared: bool, tmp_path: Path
) -> None:
    now = most = 0

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        return Done(b"{}")

    async with house(tmp_path, shared=shared, concurrency=4) as at:
        engine = at.engine(execute)
        rows = await asyncio.gather(*(engine.runs.submit(at.new()) for _ in range(60)))
        assert len({row.id for row in rows}) == 60
        for row in rows:
            assert (await at.over(row.id)).status == "completed"
        assert most == 4


@BOTH
async def test_high_priority_goes_first(shared: bool, tmp_path: Path) -> None:
    order: list[Priority] = []

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        order.append(run.priority)
        return Done(b"{}")

    async with house(tmp_path, shared=shared, concurrency=1) as at:
        engine = at.engine(execute, start=False)
        lanes: list[Priority] = ["low", "normal", "high", "normal", "high"]
        rows = [await engine.runs.submit(at.new(priority=lane)) for lane in lanes]
        engine.start()
        for row in rows:
            await at.over(row.id)
        assert order == ["high", "high", "normal", "normal", "low"]


@BOTH
async def test_a_key_has_no_more_runs_at_once_than_may_be_and_all_of_them_end(shared: bool, tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=shared, per_key=2) as at:
        engine = at.engine(gate)
        rows = [await engine.runs.submit(at.new(key="one")) for _ in range(5)]
        other = await engine.runs.submit(at.new(key="two"))
        await gate.busy(3)
        await asyncio.sleep(0.3)
        assert len(gate.begun) == 3
        assert other.id in gate.begun
        gate.open.set()
        for row in rows:
            assert (await at.over(row.id)).status == "completed"


@BOTH
async def test_a_delayed_run_is_begun_when_it_is_due_and_not_before(shared: bool, tmp_path: Path) -> None:
    async with house(tmp_path, shared=shared) as at:
        engine = at.engine(done)
        due = time.time() + 1.0
        row = await engine.runs.submit(at.new(not_before=due))
        over = await at.over(row.id)
        assert over.started_at is not None
        assert over.started_at >= due


@BOTH
async def test_a_full_queue_takes_no_more(shared: bool, tmp_path: Path) -> None:
    async with house(tmp_path, shared=shared, queue_max=3) as at:
        engine = at.engine(done, executes=False)
        results = await asyncio.gather(*(engine.runs.submit(at.new()) for _ in range(5)), return_exceptions=True)
        assert Counter(type(each).__name__ for each in results) == {"RunRow": 3, "QueueFull": 2}
        with pytest.raises(QueueFull) as caught:
            await engine.runs.submit(at.new())
        assert caught.value.retry_after_s
        assert len(await engine.runs.newest(None, limit=100, after=None)) == 3


@BOTH
async def test_what_waits_for_its_time_or_its_key_fills_the_queue_too(shared: bool, tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=shared, queue_max=3, per_key=1) as at:
        engine = at.engine(gate)

        async def full() -> list[RunRow]:
            """Ask until no more are taken: what waits aside is counted once a second."""
            rows = []
            async with asyncio.timeout(30):
                with contextlib.suppress(QueueFull):
                    while True:
                        rows.append(await engine.runs.submit(at.new(not_before=time.time() + 1000)))
                        await asyncio.sleep(0.6)
            return rows

        first, second = [await engine.runs.submit(at.new(key="one")) for _ in range(2)]
        await gate.busy()
        async with asyncio.timeout(30):
            while {(await at.row(each.id)).waits_for for each in (first, second)} != {"queue", "key"}:
                await asyncio.sleep(0.02)
        later = await full()
        assert 2 <= len(later) <= 5
        for row in later:
            await engine.runs.cancel(row.id, None)
        await asyncio.sleep(1.2)
        assert await full()


@BOTH
async def test_the_same_request_is_one_run(shared: bool, tmp_path: Path) -> None:
    async with house(tmp_path, shared=shared) as at:
        engine = at.engine(done)
        first, second = await asyncio.gather(
            *(engine.runs.submit(at.new(idempotency_key="k", body=b"1")) for _ in range(2))
        )
        assert first.id == second.id
        again = await engine.runs.submit(at.new(idempotency_key="k", body=b"1"))
        assert again.id == first.id
        with pytest.raises(IdempotencyConflict):
            await engine.runs.submit(at.new(idempotency_key="k", body=b"2"))
        assert (await engine.runs.submit(at.new(idempotency_key="k", body=b"2", owner="other"))).id != first.id
        plain = await engine.runs.submit(at.new(body=b"3"))
        assert (await engine.runs.submit(at.new(body=b"3", retried=True))).id == plain.id
        assert (await engine.runs.submit(at.new(body=b"3"))).id != plain.id


# --- Failing -------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_failed_attempt_is_made_again_and_what_fails_always_is_given_up(shared: bool, tmp_path: Path) -> None:
    attempts: list[int] = []

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        attempts.append(attempt.number)
        if run.body == b"once" and attempt.number == 2:
            return Done(b"{}")
        raise UpstreamUnavailable("the backend is away", retryable=True)

    async with house(tmp_path, shared=shared, max_deliveries=3) as at:
        engine = at.engine(execute)
        once = await at.over((await engine.runs.submit(at.new(body=b"once"))).id)
        assert (once.status, once.deliveries, once.dead) == ("completed", 2, False)
        attempts.clear()
        always = await at.over((await engine.runs.submit(at.new(body=b"always"))).id)
        assert (always.status, always.dead, always.deliveries) == ("failed", True, 3)
        assert always.error["message"] == "the backend is away"
        assert attempts == [1, 2, 3]
        assert [row.id for row in await engine.runs.newest(None, dead=True, limit=10, after=None)] == [always.id]
        assert (await at.store.runs.counts())["dead"] == 1
        assert "dead" in at.counted.endings
        # An operator begins it again, with as many attempts before it.
        assert (await engine.runs.retry(always.id, "app")).status == "queued"
        assert (await at.over(always.id)).deliveries == 3
        with pytest.raises(RunEnded):
            await engine.runs.retry(once.id, "app")


@BOTH
async def test_what_cannot_get_better_fails_at_once(shared: bool, tmp_path: Path) -> None:
    async def execute(run: RunRow, attempt: Attempt) -> Done:
        raise InvalidRequest("no such thing", param="model")

    async with house(tmp_path, shared=shared) as at:
        over = await at.over((await at.engine(execute).runs.submit(at.new())).id)
        assert (over.status, over.dead, over.deliveries) == ("failed", False, 1)
        assert (over.error["param"], over.error["status"]) == ("model", 400)


async def test_a_version_that_is_not_proved_costs_no_delivery(tmp_path: Path) -> None:
    seen = 0

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        nonlocal seen
        seen += 1
        if seen < 3:
            raise ConfigStale("not yet")
        return Done(b"{}")

    async with house(tmp_path, shared=False, max_deliveries=1) as at:
        over = await at.over((await at.engine(execute).runs.submit(at.new())).id)
        assert (over.status, over.deliveries) == ("completed", 1)


async def test_bad_messages_and_bad_runs_do_not_hold_up_good_ones(tmp_path: Path) -> None:
    async def execute(run: RunRow, attempt: Attempt) -> Done:
        if run.body.startswith(b"bad"):
            raise RuntimeError("a secret of the inside")
        return Done(b"{}")

    async with house(tmp_path, shared=True, max_deliveries=3) as at:
        assert at.server is not None
        engine = at.engine(execute)
        await at.over((await engine.runs.submit(at.new())).id)
        with redis.Redis(port=at.server.port) as client:
            client.xadd("hermes:{runs}:normal", {"payload": "not JSON"})
            client.xadd("hermes:{runs}:normal", {"payload": json.dumps({"no": "run"})})
            client.xadd(
                "hermes:{runs}:normal", {"run": "run_nobody", "trace": "", "parent": "", "type": "chat", "time": "1"}
            )
        bad = await engine.runs.submit(at.new(body=b"bad" + b"x" * 20_000_000))
        started = time.monotonic()
        good = [await engine.runs.submit(at.new()) for _ in range(100)]
        for row in good:
            assert (await at.over(row.id)).status == "completed"
        assert time.monotonic() - started < 30
        over = await at.over(bad.id)
        assert (over.status, over.dead, over.deliveries) == ("failed", True, 3)
        assert "secret" not in json.dumps(over.error)
        assert at.counted.drops == 3
        queue = at.queue()
        async with asyncio.timeout(10):
            while await queue.size():
                await asyncio.sleep(0.05)


async def test_a_run_of_a_type_that_nobody_executes_fails_loudly(tmp_path: Path) -> None:
    async with house(tmp_path, shared=True) as at:
        over = await at.over((await at.engine(done).runs.submit(at.new(kind="unheard-of"))).id)
        assert (over.status, over.error["code"]) == ("failed", "unknown_run_type")


# --- Leases --------------------------------------------------------------------------------------------------------


async def test_a_long_run_is_executed_once_while_its_worker_lives(tmp_path: Path) -> None:
    begun: list[str] = []

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        begun.append(run.id)
        for step in range(10):
            await asyncio.sleep(0.5)
            await attempt.report({"step": step})
        return Done(b"{}")

    async with house(tmp_path, shared=True) as at:
        # Longer than what a busy machine may stand still, shorter than the run.
        engines = [at.engine(execute, pace=PACE._replace(lease_s=4.0)) for _ in range(3)]
        row = await engines[0].runs.submit(at.new())
        over = await at.over(row.id)
        assert (over.status, over.deliveries, len(begun)) == ("completed", 1, 1)
        assert over.progress == {"step": 9}


@BOTH
async def test_a_dead_workers_run_is_taken_over(shared: bool, tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    second.open.set()
    async with house(tmp_path, shared=shared) as at:
        dying = at.engine(first)
        row = await dying.runs.submit(at.new())
        await first.busy()
        at.kill(dying)
        at.engine(second)
        over = await at.over(row.id)
        assert (over.status, over.deliveries, second.begun) == ("completed", 2, [row.id])


@BOTH
@pytest.mark.parametrize("how", ["killed", "told to stop"])
async def test_a_run_that_was_under_way_goes_before_those_that_wait(how: str, shared: bool, tmp_path: Path) -> None:
    first = Gate()
    order: list[str] = []

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        order.append(run.id)
        return Done(b"{}")

    async with house(tmp_path, shared=shared, concurrency=1) as at:
        dying = at.engine(first)
        rows = [await dying.runs.submit(at.new(priority="low"))]
        await first.busy()
        rows += [await dying.runs.submit(at.new()) for _ in range(4)]
        if how == "killed":
            at.kill(dying)
        else:
            await dying.drain(0.0)
        taking = at.engine(execute, start=False)
        await taking._keeper.look()  # nobody begins anything before the dead one is known for dead
        taking.start()
        for row in rows:
            await at.over(row.id)
        assert order[0] == rows[0].id


async def test_a_worker_of_another_machine_is_given_its_time_and_then_its_runs_are_taken_over(tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    second.open.set()
    async with house(tmp_path, shared=True) as at:
        dying = at.engine(first, pace=BRIEF)
        row = await dying.runs.submit(at.new())
        await first.busy()
        at.kill(dying)
        at.dead.clear()  # nobody here can know
        at.engine(second)
        held_until = (await at.row(row.id)).held_until
        over = await at.over(row.id)
        assert over.deliveries == 2
        assert over.finished_at is not None
        assert over.finished_at >= held_until


async def test_a_run_whose_workers_all_die_is_given_up(tmp_path: Path) -> None:
    async with house(tmp_path, shared=True, max_deliveries=2) as at:
        row = None
        for _ in range(2):
            gate = Gate()
            dying = at.engine(gate)
            row = row or await dying.runs.submit(at.new())
            await gate.busy()
            at.kill(dying)
        at.engine(done)
        assert row is not None
        over = await at.over(row.id)
        assert (over.status, over.dead, over.error["code"]) == ("failed", True, "run_abandoned")


async def test_a_worker_that_stood_still_notices_that_its_run_is_somebody_elses_B063(tmp_path: Path) -> None:
    slow, quick = Gate(), Gate()
    quick.open.set()
    async with house(tmp_path, shared=True) as at:
        paused = at.engine(slow, pace=BRIEF)
        row = await paused.runs.submit(at.new())
        await slow.busy()
        await at.stop_still(paused)
        at.engine(quick)
        over = await at.over(row.id)
        assert (over.status, over.deliveries, quick.ended) == ("completed", 2, [row.id])
        assert (slow.begun, slow.stopped) == ([row.id], [])
        at.go_on(paused)
        async with asyncio.timeout(30):
            while not slow.stopped:
                await asyncio.sleep(0.02)
        assert await at.row(row.id) == over


async def change(folder: Path, what: str) -> None:
    """Have every run that is held be otherwise."""

    def write() -> None:
        with closing(sqlite3.connect(folder / "hermes.db", timeout=20)) as database, database:
            database.execute(f"UPDATE runs SET {what} WHERE status = 'running'")

    await asyncio.to_thread(write)


# --- The queue goes away -------------------------------------------------------------------------------------------


async def test_an_emptied_server_loses_no_run_and_says_little(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=True, concurrency=2) as at:
        assert at.server is not None
        engine = at.engine(gate, pace=PACE._replace(missed_s=1000.0))
        rows = [await engine.runs.submit(at.new()) for _ in range(30)]
        await gate.busy(2)
        with structlog.testing.capture_logs() as logs:
            at.server.empty()
            later = await engine.runs.submit(at.new())
            gate.open.set()
            for row in (*rows, later):
                over = await at.over(row.id)
                assert (over.status, over.deliveries) == ("completed", 1)
            cpu = time.process_time()
            await asyncio.sleep(2)
            assert time.process_time() - cpu < 1.0
        assert len(logs) < 10


async def test_a_lost_stream_is_made_anew(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=True, concurrency=1) as at:
        assert at.server is not None
        engine = at.engine(gate)
        rows = [await engine.runs.submit(at.new()) for _ in range(5)]
        await gate.busy(1)
        with redis.Redis(port=at.server.port) as client:
            client.delete("hermes:{runs}:normal")
        gate.open.set()
        for row in rows:
            assert (await at.over(row.id)).status == "completed"


async def test_a_run_that_never_got_into_the_queue_is_found(tmp_path: Path) -> None:
    async with house(tmp_path, shared=True) as at:
        engine = at.engine(done)
        await at.over((await engine.runs.submit(at.new())).id)
        # Its process died between the database and the queue.
        lost = RunRow(
            id="run_lost", kind="chat", trace_id="0" * 32, owner="app", created_at=time.time(), due_at=time.time()
        )
        await at.store.runs.add([lost])
        assert (await at.over("run_lost")).status == "completed"


async def test_without_the_server_no_run_is_taken_on_and_with_it_all_goes_on(tmp_path: Path) -> None:
    async with house(tmp_path, shared=True) as at:
        assert at.server is not None
        async with wire(at.server) as to_server:
            engine = at.engine(done, url=to_server.url)
            before = await engine.runs.submit(at.new())
            await at.over(before.id)
            to_server.cut()
            with structlog.testing.capture_logs() as logs:
                with pytest.raises(BackgroundUnavailable):
                    await engine.runs.submit(at.new())
                assert len(await engine.runs.newest(None, limit=10, after=None)) == 1
                async with asyncio.timeout(20):
                    while engine.worker.reachable:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(2)
            assert len(logs) < 10
            to_server.mend()
            after: RunRow | None = None
            async with asyncio.timeout(20):
                while after is None:
                    with contextlib.suppress(BackgroundUnavailable):
                        after = await engine.runs.submit(at.new())
                    await asyncio.sleep(0.1)
            assert after is not None
            assert (await at.over(after.id)).status == "completed"


# --- Cancelling ----------------------------------------------------------------------------------------------------


@BOTH
async def test_a_queued_run_is_cancelled_at_once_and_never_begun(shared: bool, tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=shared, concurrency=1) as at:
        engine = at.engine(gate)
        first, second = [await engine.runs.submit(at.new()) for _ in range(2)]
        await gate.busy()
        assert (await engine.runs.cancel(second.id, "app")).status == "cancelled"
        gate.open.set()
        await at.over(first.id)
        last = await engine.runs.submit(at.new())
        await at.over(last.id)
        assert second.id not in gate.begun


@BOTH
async def test_a_running_run_is_cancelled_wherever_it_runs_and_only_told_so_once_it_is_true(
    shared: bool, tmp_path: Path
) -> None:
    gate = Gate()
    async with house(tmp_path, shared=shared) as at:
        at.engine(gate)
        asked = at.engine(done, executes=False)
        row = await asked.runs.submit(at.new())
        await gate.busy()
        at.writing.add(row.trace_id)  # one of its writing tools has begun
        assert (await asked.runs.cancel(row.id, "app")).status == "cancelling"
        async with asyncio.timeout(20):
            while not gate.stopped:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert (await asked.runs.cancel(row.id, "app")).status == "cancelling"
        at.writing.clear()
        assert (await at.over(row.id)).status == "cancelled"
        assert (await asked.runs.cancel(row.id, "app")).status == "cancelled"


async def test_what_was_whole_before_it_was_stopped_has_completed(tmp_path: Path) -> None:
    """A response is kept before its run ends: between both, cancelling comes too late."""

    class Kept(Scripted):
        async def came_of(self, run: RunRow) -> Done | None:
            return Done(b'{"whole": true}') if run.body == b"whole" else None

    gate = Gate()
    async with house(tmp_path, shared=False) as at:
        engine = at.engine(gate, handler=Kept(gate))
        for body, status in ((b"whole", "completed"), (b"half", "cancelled")):
            row = await engine.runs.submit(at.new(body=body))
            await gate.busy()
            await engine.runs.cancel(row.id, None)
            over = await at.over(row.id)
            assert (over.status, over.answer) == (status, b'{"whole": true}' if status == "completed" else None)
            gate.begun.clear()


@BOTH
async def test_what_has_ended_stays_and_a_foreign_run_is_none(shared: bool, tmp_path: Path) -> None:
    async with house(tmp_path, shared=shared) as at:
        engine = at.engine(done)
        row = await engine.runs.submit(at.new())
        await at.over(row.id)
        assert (await engine.runs.cancel(row.id, "app")).status == "completed"
        with pytest.raises(Exception, match="no run"):
            await engine.runs.cancel(row.id, "somebody else")


async def test_a_run_to_be_cancelled_whose_worker_dies_is_cancelled_and_not_begun_again(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=True) as at:
        dying = at.engine(gate)
        row = await dying.runs.submit(at.new())
        await gate.busy()
        at.kill(dying)
        other = Gate()
        engine = at.engine(other)
        await engine.runs.cancel(row.id, "app")
        over = await at.over(row.id)
        # Either it was taken from the dead before, or not at all.
        assert over.status == "cancelled"


# --- Stopping ------------------------------------------------------------------------------------------------------


@BOTH
async def test_what_fits_the_grace_ends_and_the_rest_is_handed_back_without_costing_a_delivery(
    shared: bool, tmp_path: Path
) -> None:
    async def execute(run: RunRow, attempt: Attempt) -> Done:
        if not second:
            await (asyncio.sleep(60) if run.body == b"long" else stopped.wait())
        return Done(b"{}")

    second = False
    stopped = asyncio.Event()
    async with house(tmp_path, shared=shared, max_deliveries=1) as at:
        stopping = at.engine(execute)
        short, long = [await stopping.runs.submit(at.new(body=body)) for body in (b"short", b"long")]
        await at.until(long.id, "running")
        await at.until(short.id, "running")
        started = time.monotonic()
        draining = stopping.drain(6.0)
        await asyncio.sleep(0.1)
        stopped.set()
        await draining
        assert time.monotonic() - started < 20
        assert (await at.row(short.id)).status == "completed"
        handed = await at.row(long.id)
        assert (handed.status, handed.deliveries) == ("queued", 0)
        queued = await stopping.runs.submit(at.new())
        await asyncio.sleep(0.3)
        assert (await at.row(queued.id)).status == "queued"  # nothing is taken after the signal
        second = True
        at.engine(execute)
        assert (await at.over(long.id)).status == "completed"


async def test_after_a_restart_unfinished_runs_go_on_without_a_server(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, shared=False, concurrency=1) as at:
        engine = at.engine(gate)
        rows = [await engine.runs.submit(at.new()) for _ in range(4)]
        await gate.busy()
        at.kill(engine)
    async with house(tmp_path, shared=False) as at:
        await change(tmp_path, "holder = 'another boot'")
        at.dead.add("another boot")
        at.engine(done)
        for row in rows:
            assert (await at.over(row.id)).status == "completed"


async def test_workers_that_are_killed_at_random_lose_nothing_and_leave_nothing_locked(tmp_path: Path) -> None:
    ended: Counter[str] = Counter()

    async def execute(run: RunRow, attempt: Attempt) -> Done:
        await asyncio.sleep(0.03)
        ended[run.id] += 1
        return Done(b"{}")

    async with house(tmp_path, shared=True, concurrency=3, max_deliveries=50) as at:
        assert at.server is not None
        steady = [at.engine(execute, pace=PACE) for _ in range(2)]
        rows = [await steady[0].runs.submit(at.new()) for _ in range(60)]
        for _ in range(8):
            victim = at.engine(execute)
            await asyncio.sleep(0.15)
            at.kill(victim)
        for row in rows:
            assert (await at.over(row.id)).status == "completed"
        queue = at.queue()
        async with asyncio.timeout(20):
            while await queue.size():
                await asyncio.sleep(0.1)
        with redis.Redis(port=at.server.port) as client:
            assert {key.decode() for key in client.scan_iter()} == {
                *(f"hermes:{{runs}}:{name}" for name in ("known", "high", "normal", "low"))
            }
