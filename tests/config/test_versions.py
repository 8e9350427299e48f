"""Generations: swap, leases, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from gateway.config.versions import Version, Versioned
from gateway.errors import ConfigError, ConfigStale, Problem, StoreUnavailable
from tests.clocks import HandClock


@dataclass(frozen=True)
class Generation:
    version: Version


class World:
    """A versioned value whose next builds are scripted, and what was closed."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.closed: list[int] = []
        self.script: list[Callable[[int, Generation], Awaitable[Generation]]] = []
        self.versions = Versioned(Generation(Version(1, "a" * 64)), self.build, self.close, self.clock)

    async def build(self, generation: int, current: Generation) -> Generation:
        return await self.script.pop(0)(generation, current)

    async def close(self, value: Generation) -> None:
        self.closed.append(value.version.generation)

    def will_build(self, digest: str) -> None:
        async def build(generation: int, _current: Generation) -> Generation:
            return Generation(Version(generation, digest))

        self.script.append(build)

    def will_keep(self) -> None:
        async def keep(_generation: int, current: Generation) -> Generation:
            return current

        self.script.append(keep)

    def will_refuse(self, line: int) -> None:
        async def refuse(_generation: int, _current: Generation) -> Generation:
            raise ConfigError((Problem("gateway.yaml", line, "wrong"),))

        self.script.append(refuse)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_version_shows_generation_and_twelve_digits() -> None:
    assert str(Version(7, "0123456789abcdef" * 4)) == "7-0123456789ab"


async def test_a_reload_makes_the_next_generation_the_active_one() -> None:
    world = World()
    world.will_build("b" * 64)
    world.clock.at += 5
    found = await world.versions.reload()
    assert found is world.versions.current
    assert str(found.version) == "2-bbbbbbbbbbbb"
    assert world.versions.changed_at == world.clock.at


async def test_a_reload_that_changes_nothing_keeps_the_version() -> None:
    world = World()
    world.will_keep()
    world.will_build("c" * 64)
    assert (await world.versions.reload()).version.generation == 1
    assert (await world.versions.reload()).version.generation == 2
    await settle()
    assert world.closed == [1]


async def test_a_refused_reload_leaves_the_old_generation_and_says_why_until_one_succeeds() -> None:
    world = World()
    world.will_refuse(3)
    world.will_refuse(4)
    world.will_build("b" * 64)
    for line in (3, 4):
        world.clock.at += 1
        with capture_logs() as lines, pytest.raises(ConfigError):
            await world.versions.reload()
        assert [(told["log_level"], told["version"], told["problems"]) for told in lines] == [
            ("error", "1-aaaaaaaaaaaa", [f"gateway.yaml:{line}: wrong"])
        ]
        assert world.versions.current.version.generation == 1
        assert world.versions.last_error is not None
        assert world.versions.last_error.at == world.clock.at
        assert [problem.line for problem in world.versions.last_error.problems] == [line]
    assert world.versions.failures == 2
    # A refused attempt uses up no number.
    assert (await world.versions.reload()).version.generation == 2
    assert world.versions.last_error is None
    assert world.versions.failures == 2


async def test_an_error_also_ends_when_the_old_files_are_back() -> None:
    world = World()
    world.will_refuse(3)
    world.will_keep()
    with pytest.raises(ConfigError):
        await world.versions.reload()
    await world.versions.reload()
    assert world.versions.last_error is None


async def test_an_unused_generation_is_closed_after_the_swap() -> None:
    world = World()
    world.will_build("b" * 64)
    await world.versions.reload()
    await settle()
    assert world.closed == [1]


async def test_a_generation_in_use_is_closed_after_its_last_user_and_once() -> None:
    world = World()
    first, second = world.versions.acquire(), world.versions.acquire()
    world.will_build("b" * 64)
    await world.versions.reload()
    assert first.value.version.generation == 1
    world.versions.release(first)
    await settle()
    assert world.closed == []
    world.versions.release(second)
    await settle()
    assert world.closed == [1]


async def test_using_the_active_generation_up_does_not_close_it() -> None:
    world = World()
    world.versions.release(world.versions.acquire())
    await settle()
    assert world.closed == []


async def test_reloads_run_one_at_a_time_and_each_reads_after_it_was_called() -> None:
    world = World()
    order: list[str] = []
    go = asyncio.Event()

    async def slow(generation: int, _current: Generation) -> Generation:
        order.append("begin first")
        await go.wait()
        order.append("end first")
        return Generation(Version(generation, "b" * 64))

    async def quick(generation: int, current: Generation) -> Generation:
        order.append(f"begin second after {current.version.generation}")
        return Generation(Version(generation, "c" * 64))

    world.script += [slow, quick]
    reloads = [asyncio.create_task(world.versions.reload()) for _ in range(2)]
    await settle()
    assert world.versions.current.version.generation == 1
    go.set()
    await asyncio.wait_for(asyncio.gather(*reloads), 5)
    assert order == ["begin first", "end first", "begin second after 2"]
    assert world.versions.current.version.generation == 3


async def test_closing_closes_the_active_generation_and_waits_for_older_ones() -> None:
    world = World()
    lease = world.versions.acquire()
    world.will_build("b" * 64)
    await world.versions.reload()
    world.versions.release(lease)
    await world.versions.close()
    assert sorted(world.closed) == [1, 2]
    await world.versions.close()
    assert sorted(world.closed) == [1, 2]


async def test_a_turn_that_ends_after_closing_does_not_close_twice() -> None:
    world = World()
    lease = world.versions.acquire()
    await world.versions.close()
    world.versions.release(lease)
    await settle()
    assert world.closed == [1]


async def test_a_reload_that_fails_for_another_reason_is_told_too() -> None:
    world = World()

    async def fail(_generation: int, _current: Generation) -> Generation:
        raise StoreUnavailable("the keys cannot be read")

    world.script.append(fail)
    with pytest.raises(StoreUnavailable):
        await world.versions.reload()
    assert world.versions.last_error is not None
    assert [problem.message for problem in world.versions.last_error.problems] == ["the keys cannot be read"]


async def test_a_generation_that_does_not_close_cleanly_is_told_and_harms_nobody() -> None:
    world = World()

    async def fail(_value: Generation) -> None:
        raise RuntimeError("stuck")

    world.versions._close = fail
    world.will_build("b" * 64)
    with capture_logs() as lines:
        await world.versions.reload()
        await settle()
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "an older generation was not closed cleanly"
    ]
    assert world.versions.current.version.generation == 2


async def test_nothing_is_taken_where_the_guard_says_no_but_it_can_be_looked_at() -> None:
    world = World()
    allowed = True

    def guard() -> None:
        if not allowed:
            raise ConfigStale("not now")

    versions = Versioned(Generation(Version(1, "a" * 64)), world.build, world.close, world.clock, guard=guard)
    versions.release(versions.acquire())
    assert versions.serving is versions.current
    allowed = False
    with pytest.raises(ConfigStale):
        versions.acquire()
    with pytest.raises(ConfigStale):
        _ = versions.serving
    assert versions.current.version.generation == 1
    # A turn that did not begin holds nothing back.
    world.will_build("b" * 64)
    await versions.reload()
    await settle()
    assert world.closed == [1]


async def test_who_wants_to_know_is_told_of_each_generation_once_it_is_active() -> None:
    world = World()
    told: list[tuple[int, int]] = []

    def took_over(value: Generation) -> None:
        told.append((value.version.generation, versions.current.version.generation))

    versions = Versioned(Generation(Version(1, "a" * 64)), world.build, world.close, world.clock, took_over=took_over)
    world.will_build("b" * 64)
    world.will_keep()
    await versions.reload()
    await versions.reload()
    assert told == [(2, 2)]


async def test_a_swap_from_elsewhere_takes_any_number_and_leaves_its_failures_to_who_asked() -> None:
    world = World()

    async def fail(_current: Generation) -> Generation:
        raise ConfigError((Problem("active", 0, "cannot be proved"),))

    async def ninth(_current: Generation) -> Generation:
        return Generation(Version(9, "b" * 64))

    with pytest.raises(ConfigError):
        await world.versions.swap_in(fail)
    assert (world.versions.last_error, world.versions.failures) == (None, 0)
    assert (await world.versions.swap_in(ninth)).version.generation == 9
    world.will_build("c" * 64)
    assert (await world.versions.reload()).version.generation == 10
