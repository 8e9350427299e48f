"""A repeated request finds its turn: waits for it, gets its answer, or goes on where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.chat.blocks import Message, Text
from gateway.config.models import IdempotencyConfig
from gateway.errors import IdempotencyConflict, StoreUnavailable, UpstreamTimeout, UpstreamUnavailable
from gateway.store.memory import MemoryJournal
from gateway.store.memory_turns import MemoryTurns
from gateway.store.store import JournalEntry
from gateway.store.turn_records import TurnRow
from gateway.tools.outcome import Outcome
from gateway.turn.joining import HELD_S, JOIN_S, Asked, Joinable, JoinElsewhere, Joining, RecordedRound, Replay
from tests.clocks import SteppingClock

CONFIG = IdempotencyConfig()


class Turns(MemoryTurns):
    """A store that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    def _go(self) -> None:
        if self.away:
            raise StoreUnavailable("away")

    async def begin(
        self, row: TurnRow, *, since: float | None = None, hasty: bool = False, keys_since: float = 0.0
    ) -> TurnRow | None:
        self._go()
        return await super().begin(row, since=since, hasty=hasty)

    async def by_body(self, owner: str, body_hash: str, *, since: float) -> Sequence[TurnRow]:
        self._go()
        return await super().by_body(owner, body_hash, since=since)

    async def keep(self, turn_id: str, holder: str, *, until: float) -> bool:
        self._go()
        return await super().keep(turn_id, holder, until=until)


class Journal(MemoryJournal):
    """A journal that can be away."""

    away = False

    async def append(self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False) -> None:
        if self.away:
            raise StoreUnavailable("away")
        await super().append(entries, held_by=held_by, hasty=hasty)


def asked(key: str | None = "k1", body: bytes = b"pay", *, retried: bool = False, owner: str = "app") -> Asked:
    return Asked(owner, body, key, retried)


@dataclass
class House:
    """Two processes over one store; `living` are those that run."""

    turns: Turns = field(default_factory=Turns)
    journal: Journal = field(default_factory=Journal)
    clock: SteppingClock = field(default_factory=SteppingClock)
    living: set[str] = field(default_factory=lambda: {"one", "two"})
    count: int = 0

    def __post_init__(self) -> None:
        self.joinings = {name: self.joining(name) for name in ("one", "two")}

    def joining(self, name: str) -> Joining:
        return Joining(
            self.turns, self.journal, self.clock, name, lambda holder: holder.partition("|")[0] in self.living
        )

    async def enter(
        self, request: Asked, by: str = "one", *, config: IdempotencyConfig = CONFIG, wait_s: float = 100
    ) -> Joinable | Replay:
        self.count += 1
        deadline = self.clock.monotonic() + wait_s
        return await self.joinings[by].enter(request, f"{self.count:032x}", config, deadline)

    async def new(self, request: Asked, by: str = "one", **more: Any) -> Joinable:
        entered = await self.enter(request, by, **more)
        assert isinstance(entered, Joinable)
        return entered

    async def answer(self, turn: Joinable, by: str = "one", body: bytes = b"paid") -> None:
        await self.joinings[by].before_writes(turn)
        await self.joinings[by].answered(turn, body, {"route": "r"})
        self.joinings[by].leave(turn)

    async def close(self) -> None:
        for each in self.joinings.values():
            await each.close()


@pytest.fixture
async def house() -> Any:
    made = House()
    yield made
    made.turns.away = made.journal.away = False
    await made.close()


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not ready():
            await asyncio.sleep(0)


def said(text: str) -> RecordedRound:
    return RecordedRound(Message("assistant", (Text(text),)), "tool_calls", None)


async def test_an_answered_turn_is_told_again_to_who_has_its_key(house: House) -> None:
    first = await house.new(asked())
    await house.answer(first)
    for by in ("one", "two"):
        assert await house.enter(asked(), by) == Replay(first.turn_id, b"paid", {"route": "r"})
    # Another owner's key of the same name is another key.
    assert isinstance(await house.enter(asked(owner="other")), Joinable)


@pytest.mark.parametrize("state", ["running here", "running there", "answered", "failed"])
async def test_a_key_with_another_body_is_a_conflict(house: House, state: str) -> None:
    first = await house.new(asked())
    if state == "answered":
        await house.answer(first)
    elif state == "failed":
        house.joinings["one"].leave(first)
        await house.close()
    by = "two" if state == "running there" else "one"
    with pytest.raises(IdempotencyConflict):
        await house.enter(asked(body=b"pay more"), by)


async def test_a_retry_in_this_process_waits_for_the_turn_and_gets_its_answer(house: House) -> None:
    first = await house.new(asked())
    second = asyncio.create_task(house.enter(asked()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    await house.answer(first)
    assert isinstance(await second, Replay)


async def test_another_process_waits_for_a_living_holder_and_gets_its_answer(house: House) -> None:
    first = await house.new(asked())
    await house.joinings["one"].before_writes(first)
    second = asyncio.create_task(house.enter(asked(), "two"))
    began = house.clock.at
    # The holder gives signs of life, so that its time alone does not end.
    await until(lambda: house.clock.at > began + 4 * HELD_S or second.done())
    assert not second.done()
    await house.answer(first)
    assert isinstance(await second, Replay)


async def test_the_turn_of_a_dead_process_is_taken_over_at_once_with_its_rounds(house: House) -> None:
    first = await house.new(asked())
    house.joinings["one"].note_answer(first, 1, said("one"), "t")
    house.joinings["one"].note_outcomes(first, 1, [Outcome("c", "look", True, "{}")], "t")
    house.joinings["one"].note_answer(first, 2, said("two"), "t")
    await house.joinings["one"].before_writes(first)
    house.joinings["one"].note_outcomes(first, 2, [Outcome("c", "pay", True, "{}")], "t")
    house.living.remove("one")
    began = house.clock.at
    second = await house.new(asked(), "two")
    assert house.clock.at - began < HELD_S
    assert second.turn_id == first.turn_id
    assert {number: each.message.text for number, each in second.recorded.items()} == {1: "one", 2: "two"}
    assert [sorted(each.outcomes) for each in second.recorded.values()] == [[0], []]
    # What the first still had to say comes too late.
    with pytest.raises(StoreUnavailable):
        await house.joinings["one"].answered(first, b"late", None)
    await house.answer(second, "two")
    assert await house.enter(asked(), "two") == Replay(first.turn_id, b"paid", {"route": "r"})
    house.joinings["one"].leave(first)


async def test_a_holder_that_gives_no_sign_of_life_loses_the_turn_and_learns_it_before_it_writes(house: House) -> None:
    first = await house.new(asked())
    began = house.clock.at
    second = await house.new(asked(), "two")
    assert house.clock.at - began >= HELD_S
    with pytest.raises(JoinElsewhere):
        await house.joinings["one"].before_writes(first)
    await house.answer(second, "two")


async def test_who_held_on_in_time_may_write(house: House) -> None:
    first = await house.new(asked())
    house.clock.at += 2 * HELD_S
    await house.joinings["one"].before_writes(first)
    second = asyncio.create_task(house.enter(asked(), "two"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    await house.answer(first)
    await second


async def test_a_turn_that_ended_without_an_answer_is_taken_over_at_once(house: House) -> None:
    first = await house.new(asked())
    house.joinings["one"].note_answer(first, 1, said("one"), "t")
    await house.joinings["one"].before_writes(first)
    house.joinings["one"].leave(first, 502)
    await house.close()
    began = house.clock.at
    second = await house.new(asked(), "two")
    assert (second.turn_id, list(second.recorded), house.clock.at) == (first.turn_id, [1], began)


async def test_one_of_two_takes_a_turn_over_and_the_other_waits(house: House) -> None:
    first = await house.new(asked())
    await house.joinings["one"].before_writes(first)
    house.living = {"two", "three"}
    house.joinings["three"] = house.joining("three")
    tasks = {by: asyncio.create_task(house.enter(asked(), by)) for by in ("two", "three")}
    await until(lambda: any(task.done() for task in tasks.values()))
    (by,) = [name for name, task in tasks.items() if task.done()]
    taken = tasks[by].result()
    assert isinstance(taken, Joinable)
    await house.answer(taken, by)
    other = "two" if by == "three" else "three"
    assert isinstance(await tasks[other], Replay)
    house.joinings["one"].leave(first)


async def test_who_waits_does_so_until_its_deadline(house: House) -> None:
    first = await house.new(asked())
    await house.joinings["one"].before_writes(first)
    began = house.clock.at
    with pytest.raises(UpstreamTimeout):
        await house.enter(asked(), "two", wait_s=7)
    assert 7 <= house.clock.at - began < 20
    with pytest.raises(UpstreamTimeout):
        await house.enter(asked(), "one", wait_s=0)
    house.joinings["one"].leave(first)


async def test_a_key_is_free_again_after_its_time_and_nobody_elses_turn_goes_with_it(house: House) -> None:
    short = IdempotencyConfig(ttl_s=60)
    await house.answer(await house.new(asked(), config=short))
    other = await house.new(asked(None, b"other"))
    await house.joinings["one"].before_writes(other)
    house.clock.at += 59
    assert isinstance(await house.enter(asked(), config=short), Replay)
    house.clock.at += 2
    again = await house.new(asked(body=b"pay more"), config=short)
    assert again.recorded == {}
    assert await house.turns.get(other.turn_id, None) is not None
    house.joinings["one"].leave(other)


@pytest.mark.parametrize(
    ("first", "second", "joins"),
    [
        (asked(None), asked(None, retried=True), True),
        (asked(None), asked(None), False),
        (asked(None), asked(None, b"other", retried=True), False),
        (asked(None), asked(None, retried=True, owner="other"), False),
        (asked("k1"), asked(None, retried=True), False),
    ],
)
async def test_without_a_key_the_sdk_s_retry_of_the_same_words_joins(
    house: House, first: Asked, second: Asked, joins: bool
) -> None:
    await house.answer(await house.new(first))
    assert isinstance(await house.enter(second, "two"), Replay) is joins


async def test_a_retry_joins_neither_what_was_delivered_nor_what_is_long_ago_nor_where_it_is_switched_off(
    house: House,
) -> None:
    retry = asked(None, retried=True)
    await house.answer(await house.new(asked(None)))
    assert isinstance(await house.enter(retry, config=IdempotencyConfig(join_sdk_retries=False)), Joinable)
    house.clock.at += JOIN_S - 1
    assert isinstance(await house.enter(retry, "two"), Replay)
    house.clock.at += 2
    assert isinstance(await house.enter(retry, "two"), Joinable)
    given = await house.new(asked(None, b"other"))
    await house.answer(given)
    house.joinings["one"].delivered(given)
    await house.close()
    assert isinstance(await house.enter(asked(None, b"other", retried=True)), Joinable)


async def test_a_retry_that_finds_the_first_attempt_writing_joins_it_instead_of_writing_too(house: House) -> None:
    first = await house.new(asked(None))
    second = await house.new(asked(None, retried=True), "two")
    await house.joinings["one"].before_writes(first)
    with pytest.raises(JoinElsewhere):
        await house.joinings["two"].before_writes(second)
    house.joinings["two"].leave(second)
    await house.answer(first)
    assert isinstance(await house.enter(asked(None, retried=True), "two"), Replay)


@pytest.mark.parametrize("delivered", [False, True])
async def test_a_first_request_that_finds_its_own_retry_writing_writes_nothing(house: House, delivered: bool) -> None:
    first = await house.new(asked(None))
    house.clock.at += 2
    retry = await house.new(asked(None, retried=True), "two")
    if delivered:
        await house.answer(retry, "two")
        house.joinings["two"].delivered(retry)
        await house.close()
    else:
        await house.joinings["two"].before_writes(retry)
    with pytest.raises(UpstreamUnavailable):
        await house.joinings["one"].before_writes(first)
    house.joinings["one"].leave(first)
    # What another first request begins, or a retry from before this one was asked, is none of its business.
    house.clock.at += 2
    second = await house.new(asked(None))
    third = await house.new(asked(None), "two")
    await house.joinings["one"].before_writes(second)
    await house.joinings["two"].before_writes(third)


@pytest.mark.parametrize("retried", [False, True])
async def test_where_retries_are_not_joined_everybody_writes(house: House, retried: bool) -> None:
    apart = IdempotencyConfig(join_sdk_retries=False)
    first = await house.new(asked(None), config=apart)
    second = await house.new(asked(None, retried=True), "two", config=apart)
    for by, turn in (("two", second), ("one", first)) if retried else (("one", first), ("two", second)):
        await house.joinings[by].before_writes(turn)


async def test_without_a_key_nothing_is_written_before_a_turn_writes(house: House) -> None:
    first = await house.new(asked(None))
    house.joinings["one"].note_answer(first, 1, said("one"), "t")
    await house.joinings["one"].answered(first, b"read", None)
    house.joinings["one"].leave(first)
    await house.close()
    assert await house.turns.get(first.turn_id, None) is None
    assert await house.journal.of_turn(first.turn_id, None) == []


async def test_while_the_store_is_away_nothing_is_begun_and_nothing_may_be_written(house: House) -> None:
    first = await house.new(asked(None))
    house.turns.away = True
    for request in (asked(), asked(None, b"more", retried=True)):
        with pytest.raises(StoreUnavailable):
            await house.enter(request)
    # Who has no key and retries nothing may read.
    assert isinstance(await house.enter(asked(None, b"other")), Joinable)
    with pytest.raises(StoreUnavailable):
        await house.joinings["one"].before_writes(first)
    house.turns.away = False
    house.journal.away = True
    house.joinings["one"].note_answer(first, 1, said("one"), "t")
    with pytest.raises(StoreUnavailable):
        await house.joinings["one"].before_writes(first)
    house.journal.away = False
    # Nothing in hand was lost.
    await house.joinings["one"].before_writes(first)
    assert [entry.round for entry in await house.journal.of_turn(first.turn_id, None)] == [1]
    house.joinings["one"].leave(first)


async def test_rounds_behind_a_gap_never_happened(house: House) -> None:
    first = await house.new(asked())
    for number in (1, 3):
        house.joinings["one"].note_answer(first, number, said(str(number)), "t")
    house.joinings["one"].note_outcomes(first, 2, [Outcome("c", "look", True, "{}")], "t")
    await house.joinings["one"].before_writes(first)
    house.joinings["one"].leave(first)
    await house.close()
    assert list((await house.new(asked(), "two")).recorded) == [1]


def run(pin: Any) -> Asked:
    return Asked("app", b"pay", "k1", retried=False, durable=True, pin=pin)


async def test_what_decides_a_run_is_recorded_before_anything_else_and_once(house: House) -> None:
    first = await house.new(run({"route": "r"}))
    assert await house.joinings["two"].pin_of(first.turn_id, "app") == {"route": "r"}
    assert await house.joinings["two"].pin_of(first.turn_id, "somebody else") is None
    house.joinings["one"].leave(first)
    await house.close()
    # Who knows it goes on, as does who has decided the same.
    for pin in (None, {"route": "r"}):
        again = await house.new(run(pin), "two")
        assert (again.turn_id, again.recorded) == (first.turn_id, {})
        house.joinings["two"].leave(again)
        await house.close()
    assert len(await house.journal.of_turn(first.turn_id, None)) == 1


async def test_who_has_decided_a_run_otherwise_meanwhile_does_not_go_on(house: House) -> None:
    first = await house.new(run({"route": "r"}))
    house.joinings["one"].leave(first)
    await house.close()
    with pytest.raises(StoreUnavailable) as caught:
        await house.enter(run({"route": "other"}), "two")
    assert caught.value.retryable
    # Nobody is in the way of whoever comes next.
    assert isinstance(await house.enter(run(None), "one", wait_s=1), Joinable)


async def test_a_run_whose_decision_cannot_be_recorded_is_not_begun(house: House) -> None:
    house.journal.away = True
    with pytest.raises(StoreUnavailable):
        await house.enter(run({"route": "r"}))
    house.journal.away = False
    assert isinstance(await house.enter(run({"route": "r"}), wait_s=1), Joinable)


async def test_a_failed_take_over_leaves_nobody_waiting(house: House) -> None:
    first = await house.new(asked())
    house.joinings["one"].leave(first)
    await house.close()

    async def broken(turn_id: str, owner: str | None) -> list[JournalEntry]:
        raise StoreUnavailable("away")

    whole, house.journal.of_turn = house.journal.of_turn, broken  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await house.enter(asked())
    await house.close()
    house.journal.of_turn = whole  # type: ignore[method-assign]
    assert isinstance(await house.enter(asked(), wait_s=1), Joinable)
