"""The events of a response on their way: to readers now, to the store behind them, to readers who come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.clock import SystemClock
from gateway.errors import StoreUnavailable
from gateway.store.memory import MemoryStore
from gateway.store.response_records import EventBatch, ResponseRow
from gateway.turn import response_log
from gateway.turn.response_log import ResponseLog, packed, unpacked


class Gated:
    """A store that writes when it is let."""

    def __init__(self) -> None:
        self.inner = MemoryStore().responses
        self.gate = asyncio.Event()
        self.away = False

    async def append(self, id: str, holder: str, events: Sequence[EventBatch], *, until: float) -> bool:  # noqa: A002 - the seam's
        await self.gate.wait()
        if self.away:
            raise StoreUnavailable("away")
        return await self.inner.append(id, holder, events, until=until)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.fixture
async def store() -> AsyncIterator[Gated]:
    made = Gated()
    row = ResponseRow(id="r", owner="app", status="in_progress", holder="me", created_at=1.0, updated_at=1.0)
    await made.inner.add(row)
    yield made
    made.gate.set()


def log_over(store: Gated | None, *, durable: bool = False) -> ResponseLog:
    made = ResponseLog("r", "me", store, SystemClock(), durable=durable)  # type: ignore[arg-type]
    made.start()
    return made


async def read(log: ResponseLog, after: int = -1, *, most: int = 10_000) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(10):
        async for frames in log.follow(after, 60.0):
            found += frames
            if len(found) >= most:
                break
    return found


def frames_of(count: int, size: int = 1) -> list[bytes]:
    return [str(number).encode().zfill(size) for number in range(count)]


async def test_reader_sees_events_before_they_are_kept(store: Gated) -> None:
    log = log_over(store)
    log.add(frames_of(3))
    assert await read(log, most=3) == frames_of(3)
    assert await read(log, 1, most=1) == frames_of(3)[2:]


async def test_events_that_others_may_go_on_from_are_seen_once_they_are_kept(store: Gated) -> None:
    log = log_over(store, durable=True)
    log.add(frames_of(3))
    reading = asyncio.create_task(read(log, most=3))
    await asyncio.sleep(0.1)
    assert not reading.done()
    store.gate.set()
    assert await reading == frames_of(3)
    assert [batch.last for batch in await store.inner.events("r", after=-1, limit=10)] == [2]


async def test_old_events_are_read_from_the_store(store: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_log, "_RECENT_BYTES", 100)
    store.gate.set()
    log = log_over(store)
    log.add(frames_of(50, 10))
    async with asyncio.timeout(10):
        while log.recent > 10:
            await asyncio.sleep(0.01)
    log.add(frames_of(60, 10)[50:])
    await log.stop()
    await log.flush()
    log.end()
    assert await read(log) == frames_of(60, 10)
    assert await read(log, 20) == frames_of(60, 10)[21:]


async def test_maker_waits_for_a_store_that_is_too_slow(store: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_log, "_AHEAD_BYTES", 10)
    log = log_over(store)
    log.add(frames_of(20))
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    store.gate.set()
    async with asyncio.timeout(10):
        await waiting


async def test_maker_waits_for_a_reader_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_log, "_AHEAD_BYTES", 10)
    log = log_over(None)
    log.add(frames_of(20))
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await read(log, most=20) == frames_of(20)
    async with asyncio.timeout(10):
        await waiting
    assert log.recent == 0


async def test_what_a_store_missed_is_written_with_the_next(store: Gated) -> None:
    store.gate.set()
    store.away = True
    log = log_over(store)
    log.add(frames_of(2))
    await asyncio.sleep(0.4)
    store.away = False
    log.add(frames_of(4)[2:])
    async with asyncio.timeout(10):
        while not (batches := await store.inner.events("r", after=-1, limit=10)):
            await asyncio.sleep(0.01)
    await log.stop()
    assert (batches[0].first, log.unkept()) == (0, [] if batches[0].last == 3 else [packed(2, frames_of(4)[2:])])


async def test_reader_in_silence_is_given_a_sign(store: Gated) -> None:
    log = log_over(store)
    async with asyncio.timeout(10):
        async for frames in log.follow(-1, 0.01):
            assert frames == ()
            break


async def test_deleted_response_ends_for_whoever_wants_its_past(store: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_log, "_RECENT_BYTES", 0)
    store.gate.set()
    log = log_over(store)
    log.add(frames_of(5))
    async with asyncio.timeout(10):
        while log.recent:
            await asyncio.sleep(0.01)
    await store.inner.delete("r", None)
    assert await read(log) == []


def test_batches_are_opened_behind_a_number() -> None:
    batch = packed(3, [b"c", b"d", b"e"])
    assert (batch.first, batch.last) == (3, 5)
    assert [unpacked(batch, after) for after in (-1, 2, 3, 5)] == [
        [b"c", b"d", b"e"],
        [b"c", b"d", b"e"],
        [b"d", b"e"],
        [],
    ]


@pytest.mark.parametrize("reader", [False, True], ids=["nobody reads", "its reader leaves"])
async def test_maker_of_a_deleted_response_waits_for_nobody(
    store: Gated, monkeypatch: pytest.MonkeyPatch, reader: bool
) -> None:
    monkeypatch.setattr(response_log, "_AHEAD_BYTES", 100)
    monkeypatch.setattr(response_log, "_WRITE_EVERY_S", 0.001)
    log = log_over(store)
    await store.inner.delete("r", "app")
    batches = log.follow(-1, 60.0)
    log.add([b"a" * 50])
    if reader:
        assert await anext(batches) == [b"a" * 50]
    log.add([b"b" * 100])
    waiting = asyncio.create_task(log.room())
    store.gate.set()
    if reader:
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await batches.aclose()
    await asyncio.wait([waiting], timeout=5)
    assert waiting.done()
    log.add([b"c"])
    assert log.next == 3
    await log.stop()
    log.end()
