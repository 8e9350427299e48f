from __future__ import annotations

import asyncio

import pytest

from gateway.clock import SystemClock
from gateway.config.models import ToolLimitConfig
from gateway.tools.guards.places import Busy, Places
from tests.clocks import HandClock


async def test_no_more_calls_at_a_time_than_allowed_and_places_come_free() -> None:
    places = Places(SystemClock())
    limit = ToolLimitConfig(concurrency=2)
    inside = most = 0

    async def call() -> None:
        nonlocal inside, most
        async with places.taken("a", limit, 5):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.wait_for(asyncio.gather(*(call() for _ in range(10))), 5)
    assert most == 2


async def test_who_would_wait_too_long_is_told_and_others_are_not_kept() -> None:
    places = Places(SystemClock())
    limit = ToolLimitConfig(concurrency=1)
    async with places.taken("a", limit, 5):
        with pytest.raises(Busy, match="`a` is busy: 1 calls at a time"):
            async with places.taken("a", limit, 0.01):
                pass
        async with places.taken("b", limit, 0.01):
            pass
    async with places.taken("a", limit, 0.01):
        pass


async def test_calls_in_a_minute_are_counted_and_the_next_waits_for_its_turn() -> None:
    clock = HandClock()
    places = Places(clock)
    limit = ToolLimitConfig(per_min=2)
    for _ in range(2):
        async with places.taken("a", limit, 5) as waited_s:
            assert waited_s == 0
    with pytest.raises(Busy, match="2 calls a minute; try again in 60 s"):
        async with places.taken("a", limit, 5):
            pass
    clock.at += 57
    async with places.taken("a", limit, 5) as waited_s:
        assert waited_s == pytest.approx(3)


async def test_who_leaves_before_its_turn_has_not_called() -> None:
    clock = HandClock()
    places = Places(clock)
    limit = ToolLimitConfig(per_min=1)
    gate = asyncio.Event()

    async def wait(seconds: float) -> None:
        await gate.wait()

    async def call() -> None:
        async with places.taken("a", limit, 90):
            pass

    await call()
    clock.sleep = wait  # type: ignore[method-assign]
    leaving = asyncio.create_task(call())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    clock.at += 61
    async with places.taken("a", limit, 0) as waited_s:
        assert waited_s == 0
