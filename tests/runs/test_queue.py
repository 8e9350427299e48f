"""What every queue of runs does, in memory and in a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis

from gateway.clock import SystemClock
from gateway.errors import StoreUnavailable
from gateway.runs.memory_queue import MemoryQueue
from gateway.runs.queue import Queue
from gateway.runs.valkey_queue import ValkeyQueue
from gateway.store.run_records import Priority, Queued
from tests.valkey import Server, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey() as it:
        yield it


def message(number: int, priority: Priority = "normal") -> Queued:
    return Queued(f"run_{number:032x}", f"{number:032x}", None, "chat", priority)


@asynccontextmanager
async def queue_of(kind: str, server: Server, idle_s: float = 10.0) -> AsyncIterator[Queue]:
    queue: Queue
    if kind == "memory":
        queue = MemoryQueue(SystemClock())
    else:
        server.empty()
        queue = ValkeyQueue(server.url, "hermes:", SystemClock(), idle_s=idle_s)
    try:
        assert await queue.is_new()
        yield queue
    finally:
        await queue.close()


BOTH = pytest.mark.parametrize("kind", ["memory", "valkey"])


@BOTH
async def test_what_is_put_is_taken_once_and_forgotten_when_it_is_done(kind: str, server: Server) -> None:
    async with queue_of(kind, server) as queue:
        await queue.put([message(1), message(2), message(3)])
        assert await queue.size() == 3
        first = await queue.take(2, 0)
        second = await queue.take(2, 0)
        assert [each.message for each in (*first, *second)] == [message(1), message(2), message(3)]
        assert await queue.size() == 3
        await queue.done(first)
        await queue.done(second)
        assert await queue.size() == 0
        assert await queue.take(2, 0) == []


@BOTH
async def test_higher_lanes_go_first_and_the_lowest_is_never_starved(kind: str, server: Server) -> None:
    async with queue_of(kind, server) as queue:
        await queue.put([message(900, "low"), *(message(n) for n in range(100)), message(800, "high")])
        order = []
        for _ in range(30):
            taken = await queue.take(1, 0)
            await queue.done(taken)
            order += [each.message.priority for each in taken if each.message is not None]
        assert order[0] == "high"
        assert "low" in order
        assert order.count("normal") == 28


@BOTH
async def test_a_taker_that_waits_is_woken_by_what_is_put(kind: str, server: Server) -> None:
    async with queue_of(kind, server) as queue:
        for number in range(20):
            waiting = asyncio.create_task(queue.take(4, 20))
            await asyncio.sleep(0)
            await queue.put([message(number, "low")])
            async with asyncio.timeout(20):
                taken = await waiting
            assert [each.message for each in taken] == [message(number, "low")]
            await queue.done(taken)


@BOTH
async def test_the_oldest_message_of_each_lane_is_known(kind: str, server: Server) -> None:
    async with queue_of(kind, server) as queue:
        assert await queue.oldest() == {}
        now = SystemClock().now()
        await queue.put([message(1, "low")])
        oldest = await queue.oldest()
        assert list(oldest) == ["low"]
        assert abs(oldest["low"] - now) < 5


async def test_what_a_dead_reader_took_is_read_by_another(server: Server) -> None:
    async with queue_of("valkey", server, idle_s=0.2) as dead:
        await dead.put([message(1)])
        assert len(await dead.take(1, 0)) == 1
        other = ValkeyQueue(server.url, "hermes:", SystemClock(), idle_s=0.2)
        async with asyncio.timeout(20):
            while not (taken := await other.take(1, 0.05)):
                pass
        assert [each.message for each in taken] == [message(1)]
        await other.done(taken)
        await other.close()


@pytest.mark.parametrize("lost", ["everything", "one stream"])
async def test_a_queue_that_was_emptied_says_so_once_and_works_on(lost: str, server: Server) -> None:
    async with queue_of("valkey", server) as queue:
        assert not await queue.is_new()
        await queue.put([message(1)])
        if lost == "everything":
            server.empty()
        else:
            with redis.Redis(port=server.port) as client:
                client.delete("hermes:{runs}:normal")
        assert await queue.take(1, 0) == []
        assert await queue.is_new()
        assert not await queue.is_new()
        await queue.put([message(2)])
        assert [each.message for each in await queue.take(1, 5)] == [message(2)]


async def test_a_waiting_taker_survives_that_the_queue_is_emptied(server: Server) -> None:
    async with queue_of("valkey", server) as queue:
        waiting = asyncio.create_task(queue.take(1, 3))
        await asyncio.sleep(0.2)
        server.empty()
        await queue.is_new()
        await queue.put([message(1)])
        async with asyncio.timeout(20):
            taken = await waiting or await queue.take(1, 0)
        assert [each.message for each in taken] == [message(1)]


@pytest.mark.parametrize(
    "fields",
    [
        {"junk": "not json"},
        {"run": "", "trace": "", "parent": "", "type": "", "time": ""},
        {"run": b"\xff\xfe", "trace": "a", "parent": "", "type": "chat", "time": "1"},
        {"run": "run_" + "a" * 5000, "trace": "a", "parent": "", "type": "chat", "time": "1"},
        {"run": "run_1", "trace": "a", "parent": "", "type": "chat"},
    ],
)
async def test_what_is_no_message_is_handed_out_as_such(fields: dict[str, str | bytes], server: Server) -> None:
    async with queue_of("valkey", server) as queue:
        with redis.Redis(port=server.port) as client:
            client.xadd("hermes:{runs}:normal", fields)
        await queue.put([message(1)])
        bad, good = await queue.take(2, 0)
        assert bad.message is None
        assert bad.why
        assert good.message == message(1)
        await queue.done([bad, good])
        assert await queue.size() == 0


async def test_no_key_is_left_for_runs_that_ended(server: Server) -> None:
    async with queue_of("valkey", server) as queue:
        with redis.Redis(port=server.port) as client:
            before = set(client.scan_iter())
            for round_ in range(5):
                await queue.put([message(round_ * 10 + n) for n in range(10)])
                while taken := await queue.take(5, 0):
                    await queue.done(taken)
            assert set(client.scan_iter()) == before
            assert client.xinfo_consumers("hermes:{runs}:normal", "workers")[0]["pending"] == 0


async def test_a_queue_out_of_reach_is_told_as_such() -> None:
    queue = ValkeyQueue("redis://127.0.0.1:1", "hermes:", SystemClock())
    for ask in (queue.size, queue.is_new, queue.oldest, lambda: queue.take(1, 1), lambda: queue.put([message(1)])):
        with pytest.raises(StoreUnavailable):
            await ask()
    await queue.close()
