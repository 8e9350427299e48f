"""Counters: the same promises of those in this process and of those in a real server, and step by step the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import StoreUnavailable
from gateway.security.counters import Counters, Entry, Exit, Given, Hold, Paid, Slot, Stay, Take, Verdict
from gateway.security.memory_counters import MemoryCounters
from gateway.store.valkey_counters import ValkeyCounters
from tests.clocks import HandClock
from tests.valkey import Server, valkey, wire

LEASE_S = 25.0


@dataclass
class Bench:
    """Counters and a way to move their time."""

    counters: Counters
    clock: HandClock

    def move(self, seconds: float) -> None:
        self.clock.at += seconds
        if isinstance(self.counters, ValkeyCounters):
            self.counters.ahead_ms += round(seconds * 1000)

    async def left(self, *exits: Exit) -> None:
        """Let turns out, and wait until that is counted."""
        for each in exits:
            self.counters.leave(each)
        if isinstance(self.counters, ValkeyCounters):
            assert self.counters._sending is not None
            await asyncio.wait_for(asyncio.shield(self.counters._sending), 30)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey() as it:
        yield it


@pytest.fixture(params=["memory", "valkey"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    clock = HandClock()
    counters: Counters
    if request.param == "memory":
        counters = MemoryCounters(clock, lease_s=LEASE_S)
    else:
        server: Server = request.getfixturevalue("server")
        server.empty()
        counters = ValkeyCounters(server.url, "t:", lease_s=LEASE_S)
    yield Bench(counters, clock)
    await counters.close()


def take(limit: int, amount: float = 1, name: str = "r") -> Take:
    return Take(name, limit, amount)


async def test_a_bucket_gives_what_it_holds_and_says_when_there_is_more(bench: Bench) -> None:
    began = time.monotonic()

    def refilled() -> float:
        """What a real server may have given back meanwhile, three in a minute, with what times are rounded to."""
        return (time.monotonic() - began) / 20 + 0.01

    for number in range(3):
        verdict = await bench.counters.enter(Entry(f"{number}", [take(3)]))
        assert verdict.outcome == "in"
        assert 2 - number - 0.01 <= verdict.left[0] <= 2 - number + refilled()
    refused = await bench.counters.enter(Entry("x", [take(3)]))
    assert (refused.outcome, refused.kind, refused.index) == ("refused", "take", 0)
    assert 20_000 * (1 - refilled()) <= refused.wait_ms <= 20_001
    bench.move(refused.wait_ms / 1000 - 2)
    assert (await bench.counters.enter(Entry("x", [take(3)]))).outcome == "refused"
    bench.move(2)
    assert (await bench.counters.enter(Entry("x", [take(3)]))).outcome == "in"


async def test_the_first_request_of_a_limit_of_one_is_let_in_B090(bench: Bench) -> None:
    entry = Entry("a", [take(1)], [Slot("s", 1)])
    assert (await bench.counters.enter(entry)).outcome == "in"


@pytest.mark.parametrize(
    ("needs", "end"),
    [
        ({"slots": [Slot("s", 1)]}, {"slots": ["s"]}),
        ({"holds": [Hold("p", 10, 10, initial=0)]}, {"paid": [Paid("p", 10, 0)]}),
        ({"takes": [take(10, 10)]}, {"given": [Given("r", 10, -10)]}),
    ],
)
async def test_who_asks_right_behind_the_end_of_a_turn_is_not_refused_by_what_that_held(
    bench: Bench, needs: dict[str, Any], end: dict[str, Any]
) -> None:
    for number in range(20):
        assert (await bench.counters.enter(Entry(f"{number}", **needs))).outcome == "in"
        assert (await bench.counters.enter(Entry("second", **needs))).outcome == "refused"
        bench.counters.leave(Exit(f"{number}", **end))


async def test_what_is_larger_than_a_bucket_takes_all_of_it(bench: Bench) -> None:
    assert (await bench.counters.enter(Entry("a", [take(100, 5000)]))).outcome == "in"
    assert (await bench.counters.enter(Entry("b", [take(100, 1)]))).outcome == "refused"
    await bench.left(Exit("a", [Given("r", 100, -90)]))
    assert (await bench.counters.enter(Entry("b", [take(100, 1)]))).outcome == "in"


async def test_a_debt_is_worked_off(bench: Bench) -> None:
    await bench.counters.enter(Entry("a", [take(60, 10)]))
    await bench.left(Exit("a", [Given("r", 60, 110)]))
    refused = await bench.counters.enter(Entry("b", [take(60)]))
    assert refused.wait_ms == pytest.approx(61_000, abs=1000)
    bench.move(61)
    assert (await bench.counters.enter(Entry("b", [take(60)]))).outcome == "in"


async def test_what_one_limit_refuses_costs_nothing_in_the_others_B090(bench: Bench) -> None:
    entry = Entry("a", [take(10), take(1000, 50, "t")], [Slot("s", 1)], [Hold("m", 100, 10, initial=0)])
    assert (await bench.counters.enter(entry)).outcome == "in"
    for number in range(9):
        other = Entry(f"b{number}", entry.takes, entry.slots, entry.holds)
        refused = await bench.counters.enter(other)
        assert (refused.outcome, refused.kind) == ("refused", "slot")
        assert refused.left[0] == pytest.approx(9, abs=0.1)
        assert (list(refused.busy), list(refused.spent), list(refused.held)) == ([1], [0], [10])
    dear = Entry("c", [take(10)], (), [Hold("m", 100, 91, initial=0)])
    assert (await bench.counters.enter(dear)).kind == "hold"
    await bench.left(Exit("a", [Given("t", 1000, -40)], ["s"], [Paid("m", 10, 7)]))
    again = await bench.counters.enter(Entry("k", entry.takes, entry.slots, entry.holds))
    assert again.outcome == "in"
    assert again.left[0] == pytest.approx(8, abs=0.1)
    assert (list(again.busy), list(again.spent), list(again.held)) == ([1], [7], [10])


async def test_places_are_as_many_as_there_are_however_many_ask_at_once(bench: Bench) -> None:
    found = await asyncio.gather(*(bench.counters.enter(Entry(str(n), (), [Slot("s", 5)])) for n in range(50)))
    assert sum(verdict.outcome == "in" for verdict in found) == 5


async def test_money_is_not_set_aside_twice_however_many_ask_at_once_B079(bench: Bench) -> None:
    entry = Entry("", (), (), [Hold("m", 100, 10, initial=85)])
    found = await asyncio.gather(*(bench.counters.enter(Entry(str(n), holds=entry.holds)) for n in range(50)))
    assert sum(verdict.outcome == "in" for verdict in found) == 1
    (winner,) = (number for number, verdict in enumerate(found) if verdict.outcome == "in")
    # It fails: all of it is there again.
    await bench.left(Exit(str(winner), paid=[Paid("m", 10, 0)]))
    again = await bench.counters.enter(Entry("again", holds=entry.holds))
    assert (again.outcome, list(again.spent), list(again.held)) == ("in", [85], [10])


async def test_a_counter_that_does_not_know_asks_what_was_spent(bench: Bench) -> None:
    unknown = await bench.counters.enter(Entry("a", [take(1)], [Slot("s", 1)], [Hold("m", 100, 10), Hold("n", 9, 1)]))
    assert (unknown.outcome, list(unknown.spent)) == ("unknown", [-1, -1])
    holds = [Hold("m", 100, 10, initial=80), Hold("n", 9, 1, initial=0)]
    known = await bench.counters.enter(Entry("a", [take(1)], [Slot("s", 1)], holds))
    assert (known.outcome, list(known.spent), list(known.held)) == ("in", [80, 0], [10, 1])
    # Who comes later with another figure is not believed: what was counted since would be lost.
    later = await bench.counters.enter(Entry("b", holds=[Hold("m", 100, 10, initial=0)]))
    assert (later.outcome, list(later.spent)) == ("in", [80])


async def test_what_a_dead_process_held_lapses_B079(bench: Bench) -> None:
    entry = Entry("dead", (), [Slot("s", 1)], [Hold("m", 100, 60, initial=30)])
    assert (await bench.counters.enter(entry)).outcome == "in"
    next_one = Entry("next", entry.takes, entry.slots, entry.holds)
    bench.move(LEASE_S - 5)
    assert (await bench.counters.enter(next_one)).outcome == "refused"
    bench.move(6)
    found = await bench.counters.enter(next_one)
    assert (found.outcome, list(found.spent), list(found.held), list(found.busy)) == ("in", [30], [60], [1])
    # It was not dead after all: what it spent counts, and what the other holds stays held.
    await bench.left(Exit("dead", slots=["s"], paid=[Paid("m", 60, 5)]))
    last = await bench.counters.enter(Entry("last", (), [Slot("s", 2)], [Hold("m", 100, 1)]))
    assert (list(last.spent), list(last.held), list(last.busy)) == ([35], [61], [2])


async def test_who_gives_word_keeps_what_it_holds(bench: Bench) -> None:
    entry = Entry("slow", (), [Slot("s", 1)], [Hold("m", 100, 60, initial=30)])
    await bench.counters.enter(entry)
    for _ in range(5):
        bench.move(LEASE_S - 5)
        await bench.counters.renew([Stay("slow", ["s"], [("m", 60)])])
    assert (await bench.counters.enter(Entry("x", slots=entry.slots))).outcome == "refused"
    found = await bench.counters.enter(Entry("y", holds=[Hold("m", 100, 5)]))
    assert list(found.held) == [65]
    # Word that comes too late takes everything back.
    bench.move(LEASE_S + 5)
    await bench.counters.enter(Entry("z", holds=[Hold("m", 100, 1)]))
    await bench.counters.renew([Stay("slow", ["s"], [("m", 60)])])
    assert list((await bench.counters.enter(Entry("w", holds=[Hold("m", 100, 1)]))).held) == [62]


async def test_a_turn_that_goes_on_sets_more_aside_in_the_place_of_what_it_had(bench: Bench) -> None:
    await bench.counters.enter(Entry("a", holds=[Hold("m", 100, 40, initial=0)]))
    more = await bench.counters.enter(Entry("a", holds=[Hold("m", 100, 70, old=40)]))
    assert (more.outcome, list(more.held)) == ("in", [70])
    refused = await bench.counters.enter(Entry("a", holds=[Hold("m", 100, 101, old=70)]))
    assert (refused.outcome, list(refused.held)) == ("refused", [70])
    await bench.left(Exit("a", paid=[Paid("m", 70, 66)]))
    assert list((await bench.counters.enter(Entry("b", holds=[Hold("m", 100, 1)]))).spent) == [66]


async def test_a_lower_limit_holds_at_once_B089(bench: Bench) -> None:
    for number in range(5):
        assert (await bench.counters.enter(Entry(str(number), [take(100)]))).outcome == "in"
    assert (await bench.counters.enter(Entry("x", [take(5)]))).outcome == "refused"


LIMITS = {"a": 6, "b": 12}
STEP = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from("ab"), st.integers(1, 8), st.booleans(), st.integers(0, 40)),
    st.tuples(st.just("leave"), st.integers(-5, 5), st.integers(0, 40)),
    st.tuples(st.just("more"), st.integers(0, 60)),
    st.tuples(st.just("renew")),
    st.tuples(st.just("move"), st.sampled_from([10, 20, 40])),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=20))
async def test_both_kinds_answer_alike_whatever_happens_and_spending_never_passes_the_budget(
    server: Server, steps: list[Any]
) -> None:
    server.empty()
    clock = HandClock()
    shared = ValkeyCounters(server.url, "t:", lease_s=LEASE_S)
    both = [Bench(MemoryCounters(clock, lease_s=LEASE_S), clock), Bench(shared, HandClock())]
    try:
        open_: list[tuple[Entry, int]] = []
        for number, step in enumerate(steps):
            if step[0] == "move":
                for bench in both:
                    bench.move(step[1])
            elif step[0] == "enter":
                _, name, amount, placed, money = step
                entry = Entry(
                    f"turn{number}",
                    [Take(name, LIMITS[name], amount)],
                    [Slot("s", 2)] if placed else [],
                    [Hold("m", 100, money, initial=0)],
                )
                first, second = [await bench.counters.enter(entry) for bench in both]
                _alike(first, second)
                if first.outcome == "in":
                    assert first.spent[0] + first.held[0] <= 100 or money == 0
                    open_.append((entry, money))
            elif step[0] == "renew":
                for bench in both:
                    await bench.counters.renew(
                        [Stay(e.id, [s.name for s in e.slots], [("m", money)]) for e, money in open_]
                    )
            elif open_:
                entry, money = open_.pop(0)
                if step[0] == "more":
                    more = Entry(entry.id, holds=[Hold("m", 100, money + step[1], old=money)])
                    first, second = [await bench.counters.enter(more) for bench in both]
                    _alike(first, second)
                    open_.append((entry, money + step[1] if first.outcome == "in" else money))
                else:
                    (bucket,) = entry.takes
                    paid = Paid("m", money, min(step[2], money))
                    given_ = Given(bucket.name, bucket.limit, step[1])
                    for bench in both:
                        await bench.left(Exit(entry.id, [given_], [s.name for s in entry.slots], [paid]))
    finally:
        await shared.close()


def _alike(first: Verdict, second: Verdict) -> None:
    assert (first.outcome, first.kind, first.index) == (second.outcome, second.kind, second.index)
    assert (list(first.busy), list(first.spent), list(first.held)) == (
        list(second.busy),
        list(second.spent),
        list(second.held),
    )
    assert list(first.left) == pytest.approx(list(second.left), abs=0.5)


async def test_a_server_that_is_cut_off_is_unavailable_and_comes_back(server: Server) -> None:
    server.empty()
    async with wire(server) as way:
        counters = ValkeyCounters(way.url, "t:")
        assert (await counters.enter(Entry("a", [take(5)]))).outcome == "in"
        way.cut()
        with pytest.raises(StoreUnavailable):
            await counters.enter(Entry("b", [take(5)]))
        counters.leave(Exit("a"))
        way.mend()
        found: Verdict | None = None
        async with asyncio.timeout(30):
            while found is None:
                with contextlib.suppress(StoreUnavailable):
                    found = await counters.enter(Entry("c", [take(5)]))
                await asyncio.sleep(0.05)
        assert found.left[0] == pytest.approx(3, abs=0.5)
        # Scripts that the server has forgotten are sent again.
        server.forget_scripts()
        assert (await counters.enter(Entry("d", [take(5)]))).outcome == "in"
        await counters.close()


async def test_who_gives_up_waiting_takes_no_answer_from_another(server: Server) -> None:
    server.empty()
    counters = ValkeyCounters(server.url, "t:")
    await counters.enter(Entry("warm", [take(5, name="warm")]))
    asked = [asyncio.create_task(counters.enter(Entry(str(n), [take(100 + n, name=f"n{n}")]))) for n in range(40)]
    await asyncio.sleep(0)
    for task in asked[::2]:
        task.cancel()
    found = await asyncio.gather(*asked, return_exceptions=True)
    for number, verdict in enumerate(found):
        if number % 2:
            assert isinstance(verdict, Verdict)
            assert verdict.left[0] == pytest.approx(99 + number, abs=0.5)
    await counters.close()
