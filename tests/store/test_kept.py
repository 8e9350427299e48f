"""Routes of conversations: the same tests for this process's memory and for a real Valkey server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.store.kept import KEPT_S, KeptRoutes, MemoryKept
from gateway.store.valkey_kept import ValkeyKept
from tests.routing.tables import HandClock
from tests.valkey import Server, valkey, wire


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey() as running:
        yield running


@pytest.fixture(params=["memory", "valkey"])
async def kept(request: Any, server: Server) -> AsyncIterator[KeptRoutes]:
    clock = SystemClock()
    made: KeptRoutes = MemoryKept(clock.monotonic)
    if request.param == "valkey":
        server.empty()
        made = ValkeyKept(server.url, "test:", clock.monotonic)
    yield made
    await made.close()


async def test_the_first_place_that_has_a_route_is_answered(kept: KeptRoutes) -> None:
    assert await kept.find(()) is None
    assert await kept.find(("a", "b")) is None
    await kept.keep("b", "orders")
    assert await kept.find(("a", "b")) == "orders"
    await kept.keep("a", "music")
    assert await kept.find(("a", "b")) == "music"
    await kept.keep("a", "orders")
    assert await kept.find(("a",)) == "orders"


async def test_memory_forgets_a_conversation_that_rested_too_long_and_stays_bounded() -> None:
    clock = HandClock()
    kept = MemoryKept(clock.monotonic)
    await kept.keep("a", "orders")
    clock.time += KEPT_S - 1
    assert await kept.find(("a",)) == "orders"
    await kept.keep("a", "orders")
    clock.time += 2
    assert await kept.find(("a",)) == "orders"
    clock.time += KEPT_S
    assert await kept.find(("a",)) is None
    for number in range(50_100):
        await kept.keep(str(number), "orders")
    assert await kept.find(("0",)) is None
    assert await kept.find(("50099",)) == "orders"


async def test_the_server_forgets_too(server: Server) -> None:
    kept = ValkeyKept(server.url, "test:", SystemClock().monotonic)
    await kept.keep("a", "orders")
    [key] = [key async for key in kept._redis.scan_iter("test:*sticky*a")]
    assert KEPT_S - 60 < await kept._redis.ttl(key) <= KEPT_S
    await kept.close()


async def test_a_server_that_is_away_is_left_alone_for_a_while(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    async with wire(server) as way:
        kept = ValkeyKept(way.url, "test:", clock.monotonic)
        await kept.keep("a", "orders")
        way.cut()
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                assert await kept.find(("a",)) is None
                await kept.keep("a", "music")
        assert len(caplog.records) == 1
        assert way.url not in caplog.text
        way.mend()
        assert await kept.find(("a",)) is None
        clock.time += 10
        assert await kept.find(("a",)) == "orders"
        await kept.close()
