from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.deadlines import Deadlines


def here() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def waits(deadlines: Deadlines, seconds: float, ends: list[float] | None = None) -> None:
    """Wait for ever, or as long as may be; but not for ever."""
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(5):
            with deadlines.within(seconds):
                await asyncio.Event().wait()
    finally:
        if ends is not None:
            ends.append(asyncio.get_running_loop().time() - begun)


async def test_each_is_stopped_at_its_own_time_whichever_began_first() -> None:
    deadlines, ends = Deadlines(), list[float]()
    late = [waits(deadlines, seconds, ends) for seconds in (0.1, 0.02, 0.06)]
    found = await asyncio.gather(*late, return_exceptions=True)
    assert [type(error) for error in found] == [TimeoutError] * 3
    assert all(least - 0.002 <= end < 4 for end, least in zip(ends, (0.02, 0.06, 0.1), strict=True))


async def test_the_nearest_is_looked_at_although_one_that_is_far_began_first() -> None:
    deadlines, ends = Deadlines(), list[float]()
    far = asyncio.create_task(waits(deadlines, 60))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await waits(deadlines, 0.02, ends)
    far.cancel()
    await asyncio.wait([far])
    assert ends[0] < 4


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_what_is_late_from_the_beginning_is_stopped_where_it_first_waits(seconds: float) -> None:
    ends: list[float] = []
    with pytest.raises(TimeoutError):
        await waits(Deadlines(), seconds, ends)
    assert ends[0] < 4
    assert here().cancelling() == 0


async def test_what_is_over_in_time_is_left_alone() -> None:
    deadlines = Deadlines()
    with deadlines.within(0.01):
        await asyncio.sleep(0)
    with pytest.raises(KeyError), deadlines.within(0.01):
        raise KeyError
    # In the meantime the two have had their time.
    with pytest.raises(TimeoutError):
        await waits(deadlines, 0.03)
    assert here().cancelling() == 0


async def test_what_others_cancel_is_cancelled() -> None:
    task = asyncio.create_task(waits(Deadlines(), 4))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_what_others_cancel_while_it_is_stopped_is_cancelled() -> None:
    async def cancelled_too() -> None:
        with Deadlines().within(0.01):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                here().cancel()
                raise

    task = asyncio.create_task(cancelled_too())
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_an_outer_limit_is_not_taken_for_the_inner_one() -> None:
    outer, inner = Deadlines(), Deadlines()
    told: list[type[BaseException]] = []

    async def nested() -> None:
        with outer.within(0.01):
            try:
                await waits(inner, 4)
            except BaseException as error:
                told.append(type(error))
                raise

    with pytest.raises(TimeoutError):
        await nested()
    assert told == [asyncio.CancelledError]
