"""Places at a backend: never more than there are, none lost, first come first served."""

from __future__ import annotations

import asyncio

from gateway.backends.places import Places, wait_for_place

SOON_S = 5.0


async def started() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_without_a_limit_there_is_always_a_place() -> None:
    places = Places(None)
    assert all(places.take() for _ in range(1000))
    assert (places.busy, places.queue_is_full) == (1000, False)


async def test_who_waits_longest_gets_the_next_place_and_nobody_overtakes() -> None:
    places, order = Places(1), list[int]()
    assert places.take()

    async def caller(number: int) -> None:
        assert await wait_for_place([places], SOON_S) is places
        order.append(number)

    waiting = [asyncio.create_task(caller(number)) for number in range(3)]
    await started()
    assert (places.waiting, places.take()) == (3, False)
    for _ in waiting:
        places.release()
        assert not places.take(), "the place went to the one who waited"
        await started()
    assert (order, places.busy) == ([0, 1, 2], 1)
    places.release()
    assert (places.busy, places.take()) == (0, True)


async def test_waiting_at_two_backends_takes_one_place_only() -> None:
    one, two = Places(1), Places(1)
    assert one.take()
    assert two.take()
    task = asyncio.create_task(wait_for_place([one, two], SOON_S))
    await started()
    two.release()
    one.release()
    assert await task is two
    assert (one.busy, two.busy, one.waiting, two.waiting) == (0, 1, 0, 0)


async def test_waiting_ends_with_its_time_and_leaves_nothing() -> None:
    places = Places(1)
    places.take()
    assert await wait_for_place([places], 0.01) is None
    assert (places.waiting, places.busy) == (0, 1)


async def test_place_that_is_handed_over_in_the_moment_of_cancellation_is_not_lost() -> None:
    places = Places(1)
    places.take()
    first = asyncio.create_task(wait_for_place([places], SOON_S))
    second = asyncio.create_task(wait_for_place([places], SOON_S))
    await started()
    places.release()
    first.cancel()
    assert await second is places
    places.release()
    assert (places.busy, places.waiting, first.cancelled()) == (0, 0, True)


async def test_queue_is_bounded() -> None:
    places = Places(1)
    places.take()
    tasks = [asyncio.create_task(wait_for_place([places], SOON_S)) for _ in range(16)]
    await started()
    assert places.queue_is_full
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not places.queue_is_full
