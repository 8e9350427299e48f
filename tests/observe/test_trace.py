"""Traces, written behind the turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.clock import SystemClock
from gateway.config.models import TracesConfig
from gateway.errors import StoreUnavailable
from gateway.observe.encoding import decode_events
from gateway.observe.events import Recorder
from gateway.observe.trace import NOBODY, TraceWriter
from gateway.security.masking.masking import Masking
from gateway.security.masking.messages import Conversation
from gateway.security.masking.placeholders import Mint
from gateway.store.memory import MemoryStore, MemoryTraces
from gateway.store.sql import SqlStore
from gateway.store.trace_records import TraceBatch
from tests.clocks import HandClock
from tests.observe.turns import turn


class SlowTraces(MemoryTraces):
    """Waits for `go` before it keeps anything; counts transactions; fails while `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.batches: list[int] = []
        self.away = False

    async def add(self, batches: Sequence[TraceBatch]) -> None:
        await self.go.wait()
        if self.away:
            raise StoreUnavailable("the database cannot be read or written")
        self.batches.append(sum(batch.count for batch in batches))
        await super().add(batches)


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.slow = SlowTraces()
        self.traces = self.slow


def named(number: int) -> str:
    return f"{number:032x}"


async def writer(
    store: MemoryStore | SqlStore, config: TracesConfig | None = None, max_waiting: int = 5000
) -> TraceWriter:
    made = TraceWriter(store, config or TracesConfig(), HandClock(), max_waiting=max_waiting)
    await made.open()
    return made


async def test_a_finished_turn_can_be_read_after_a_flush(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/x.db")
    await store.open()
    traces = TraceWriter(store, TracesConfig(), SystemClock())
    await traces.open()
    trace = turn(began=time.time())  # what is old goes
    traces.finished(trace)
    assert await traces.flush()
    row = await store.traces.get(trace.trace_id, "app")
    assert row is not None
    assert len(decode_events(row.events)) == len(trace.events)
    await traces.close()
    await store.close()


async def test_turns_that_end_together_share_a_transaction() -> None:
    store = SlowStore()
    traces = await writer(store)
    for number in range(1100):
        traces.finished(turn(named(number)))
    await traces.flush()
    assert store.slow.batches == [1100]
    assert (traces.written, traces.dropped) == (1100, 0)
    await traces.close()


async def test_what_comes_while_traces_are_written_gathers_for_the_next_time() -> None:
    store = SlowStore()
    store.slow.go.clear()
    traces = TraceWriter(store, TracesConfig(), HandClock(), gather_s=60)
    await traces.open()
    for number in range(3):
        traces.finished(turn(named(number)))
    flushed = asyncio.create_task(traces.flush())
    while traces._taken < 3:
        await asyncio.sleep(0)
    traces.finished(turn(named(3)))
    store.slow.go.set()
    assert await flushed
    for _ in range(10):
        await asyncio.sleep(0)
    traces.finished(turn(named(4)))
    assert await traces.flush()
    assert store.slow.batches == [3, 2]
    await traces.close()


async def test_many_are_written_before_their_time_is_over() -> None:
    store = SlowStore()
    traces = TraceWriter(store, TracesConfig(), HandClock(), max_waiting=20, gather_s=60)
    await traces.open()
    for number in range(11):
        traces.finished(turn(named(number)))
    async with asyncio.timeout(10):
        while not store.slow.batches:
            await asyncio.sleep(0)
    assert store.slow.batches == [11]
    await traces.close()


async def test_much_is_written_before_its_time_is_over() -> None:
    store = SlowStore()
    traces = TraceWriter(store, TracesConfig(), HandClock(), gather_s=60)
    await traces.open()
    for number in range(5):
        trace = turn(named(number))
        trace.events[0].data["messages"] = [b" " * 10_000_000]
        traces.finished(trace)
    async with asyncio.timeout(10):
        while sum(store.slow.batches) < 5:
            await asyncio.sleep(0.01)
    await traces.close()


async def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    store = SlowStore()
    store.slow.go.clear()
    traces = await writer(store, max_waiting=10)
    for number in range(25):
        traces.finished(turn(named(number)))
    assert traces.dropped == 15
    store.slow.go.set()
    await traces.close()
    assert traces.written == 10


async def test_large_requests_fill_the_queue_by_their_size() -> None:
    store = SlowStore()
    traces = TraceWriter(store, TracesConfig(), HandClock())
    trace = turn()
    for number in range(8):
        trace = turn(named(number))
        trace.events[0].data["messages"] = [b" " * 10_000_000]
        traces.finished(trace)
    assert traces.dropped == 2
    # Once written, they take no room.
    await traces.open()
    await traces.flush()
    traces.finished(trace)
    assert traces.dropped == 2
    await traces.close()


async def test_what_waits_is_written_at_the_end() -> None:
    store = SlowStore()
    traces = await writer(store)
    traces.finished(turn())
    await traces.close()
    assert store.slow.batches == [1]
    traces.finished(turn(named(2)))
    assert traces.dropped == 1


async def test_closing_is_bounded_when_the_store_hangs() -> None:
    store = SlowStore()
    store.slow.go.clear()
    traces = await writer(store)
    for number in range(300):
        traces.finished(turn(named(number)))
    await asyncio.wait_for(traces.close(timeout_s=0.3), 5)
    assert traces.written + traces.dropped == 300
    assert traces.dropped == 300


async def test_a_flush_is_bounded_too() -> None:
    store = SlowStore()
    store.slow.go.clear()
    traces = await writer(store)
    traces.finished(turn())
    assert not await traces.flush(timeout_s=0.2)
    store.slow.go.set()
    assert await traces.flush()
    await traces.close()


async def test_a_store_that_is_away_costs_traces_one_warning_and_nothing_else() -> None:
    store = SlowStore()
    store.slow.away = True
    traces = await writer(store)
    with capture_logs() as lines:
        for number in range(3):
            traces.finished(turn(named(number)))
            await traces.flush()
    assert [line["event"] for line in lines] == ["traces are being lost"]
    assert traces.dropped == 3
    store.slow.away = False
    traces.finished(turn(named(9)))
    await traces.flush()
    assert traces.written == 1
    await traces.close()


async def test_a_request_of_nobody_is_not_kept() -> None:
    store = SlowStore()
    traces = await writer(store)
    traces.finished(turn(owner=NOBODY))
    await traces.close()
    assert store.slow.batches == []
    assert traces.dropped == 0


@pytest.mark.parametrize(("share", "kept"), [(1.0, 400), (0.0, 0), (0.25, 100)])
async def test_a_sample_is_chosen_by_the_id(share: float, kept: int) -> None:
    store = SlowStore()
    traces = await writer(store, TracesConfig(sample=share))
    for number in range(400):
        traces.finished(turn(f"{number * (0xFFFFFFFF // 400):032x}"))
    await traces.close()
    assert abs(traces.written - kept) <= 2
    assert traces.dropped == 0


async def test_settings_of_another_generation_hold_from_then_on() -> None:
    store = SlowStore()
    traces = await writer(store, TracesConfig(sample=0))
    traces.configure(TracesConfig(content="none"))
    traces.finished(turn())
    await traces.close()
    row = await store.traces.get("a" * 32, "app")
    assert row is not None
    assert b"diagnosis" not in row.events


@pytest.mark.bench
async def test_a_long_conversation_costs_the_event_loop_a_few_microseconds() -> None:
    """It is encoded in a thread; a short one is encoded at once, which costs less than handing it over."""
    traces = TraceWriter(SlowStore(), TracesConfig(), HandClock(), max_waiting=20_000)
    trace = turn()
    trace.events[0].data["messages"].append(b'"' + b"x" * 2_000_000 + b'"')
    best = min(_timed(lambda: traces.finished(trace), 10) for _ in range(10))
    assert best < 50e-6


async def test_short_and_long_conversations_are_kept_alike() -> None:
    store = SlowStore()
    traces = await writer(store)
    for number, padding in enumerate((b"", b"x" * 200_000, b"")):
        trace = turn(named(number))
        trace.events[0].data["messages"].append(b'{"role":"user","content":"' + padding + b'"}')
        traces.finished(trace)
    await traces.flush()
    assert (traces.written, traces.dropped) == (3, 0)
    await traces.close()


def _timed(call: object, times: int) -> float:
    assert callable(call)
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times


async def test_a_trace_that_cannot_be_written_takes_no_other_with_it(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/x.db")
    await store.open()
    traces = TraceWriter(store, TracesConfig(), SystemClock())
    await traces.open()
    now = time.time()
    with capture_logs() as lines:
        traces.finished(turn(named(1), began=now))
        traces.finished(turn(named(2), began=now, model="half \ud800"))  # no JSON
        traces.finished(turn(named(3), began=now))
        assert await traces.flush()
        traces.finished(turn(named(4), began=now))
        assert await traces.flush()
    assert (traces.written, traces.dropped) == (3, 1)
    assert [line["trace_id"] for line in lines] == [named(2)]
    kept = [await store.traces.get(named(number), "app") for number in range(1, 5)]
    assert [row is not None for row in kept] == [True, False, True, True]
    await traces.close()
    await store.close()


def padded(trace: Recorder) -> Recorder:
    """With a request that is too large to be encoded at once."""
    trace.events[0].data["messages"].append(b'{"role":"user","content":"' + b"x" * 200_000 + b'"}')
    return trace


async def test_of_two_traces_of_one_turn_the_later_stays() -> None:
    store = SlowStore()
    traces = await writer(store)
    traces.finished(padded(turn(named(1), began=100.0, status=504)))
    traces.finished(turn(named(1), began=200.0))
    traces.finished(turn(named(2), began=100.0))
    traces.finished(padded(turn(named(2), began=200.0, status=504)))
    for number in range(600):  # more than one transaction takes
        traces.finished(turn(named(3 + number), began=150.0))
    assert await traces.flush()
    kept = [await store.traces.get(named(number), "app") for number in (1, 2)]
    assert [row.summary.status for row in kept if row is not None] == [200, 504]
    assert (traces.written, traces.dropped) == (604, 0)
    await traces.close()


class Vault:
    """Keeps values; fails while `failing`."""

    def __init__(self, failing: Exception | None = None) -> None:
        self.kept: list[str] = []
        self.failing = failing

    async def keep(self, values: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        if self.failing is not None:
            raise self.failing
        self.kept += [owner for owner, _ in values]


@pytest.mark.parametrize("failing", [None, StoreUnavailable("away"), ValueError("a defect")])
async def test_a_trace_with_private_values_is_kept_behind_them_alone(failing: Exception | None) -> None:
    store, vault = SlowStore(), Vault(failing)
    traces = TraceWriter(store, TracesConfig(), HandClock(), vault=vault)
    await traces.open()
    traces.finished(turn(named(1)))
    for number in (2, 3):
        private = turn(named(number), owner="eve")
        private.private = Conversation(Masking(None, Mint(b"x")))
        traces.finished(private)
    with capture_logs() as lines:
        assert await traces.flush()
    assert store.slow.batches == ([3] if failing is None else [1])
    assert vault.kept == (["eve", "eve"] if failing is None else [])
    assert (traces.written, traces.dropped) == ((3, 0) if failing is None else (1, 2))
    assert len(lines) == (2 if isinstance(failing, ValueError) else failing is not None)
    await traces.close()
