"""Effects happen once: whoever comes second waits, is told, asks the probe, or says that nobody knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gateway.errors import EffectSettled, NotFound, StoreUnavailable
from gateway.observe.events import Recorder
from gateway.store.memory_turns import MemoryEffects
from gateway.store.turn_records import EffectRow, EffectStatus
from gateway.tools.ledger import LINGER_S, EffectPlace, Ledger, effect_key, told_key
from gateway.tools.outcome import Done
from gateway.tools.settling import Settling
from gateway.tools.spec import ToolSpec, make_spec
from tests.clocks import SteppingClock

TOLD = '{"ok":true,"result":"paid"}'
TRACE_ID = "0" * 32


def pay(declared: Callable[[Mapping[str, Any]], Any] | None = None) -> ToolSpec:
    return make_spec(
        name="pay",
        description="Pays.",
        parameters={"type": "object"},
        provider="p",
        origin="-",
        timeout_s=10,
        writes=True,
        effect_key=declared,
    )


def place(turn_id: str = "t1", number: int = 1, position: int = 0, owner: str = "app") -> EffectPlace:
    return EffectPlace(owner, turn_id, TRACE_ID, number, position)


class Store(MemoryEffects):
    """A store that can be away.

    Attributes:
        refuses: how many of the next calls of each name fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, int] = {}

    def _go(self, name: str) -> None:
        if self.refuses.get(name, 0):
            self.refuses[name] -= 1
            raise StoreUnavailable("away")

    async def start(self, row: EffectRow) -> EffectRow | None:
        self._go("start")
        return await super().start(row)

    async def finish(
        self,
        id: str,  # noqa: A002 - the store's word
        *,
        status: EffectStatus,
        content: str,
        note: str | None,
        now: float,
        undo: str | None = None,
    ) -> bool:
        self._go("finish")
        return await super().finish(id, status=status, content=content, note=note, now=now, undo=undo)

    async def rows(self) -> list[EffectRow]:
        return [*await self.newest(None, limit=100)]


@dataclass
class Desk:
    """Processes over one ledger; `living` are those that run."""

    store: Store = field(default_factory=Store)
    clock: SteppingClock = field(default_factory=SteppingClock)
    living: set[str] = field(default_factory=lambda: {"one", "two"})
    made: list[str] = field(default_factory=list)
    record: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.record = Recorder(TRACE_ID, "app", self.clock)
        self.ledgers: dict[str, Ledger] = {}

    def ledger(self, name: str = "one") -> Ledger:
        return self.ledgers.setdefault(name, Ledger(self.store, self.clock, name, self.living.__contains__))

    async def perform(
        self,
        at: EffectPlace,
        by: str = "one",
        *,
        spec: ToolSpec | None = None,
        amount: int = 1,
        done: Done | None = None,
        until: asyncio.Event | None = None,
        probe: Callable[[Mapping[str, Any]], tuple[bool, str]] | None = None,
    ) -> Done:
        spec = spec or pay()
        arguments = {"amount": amount}

        async def run() -> Done:
            self.made.append(f"{by} {amount}")
            if until is not None:
                await until.wait()
            return done or Done(True, TOLD)

        async def asked(arguments: Mapping[str, Any]) -> tuple[bool, str]:
            assert probe is not None
            return probe(arguments)

        key = effect_key(at, spec, arguments)
        return await self.ledger(by).perform(
            at, spec, arguments, key, run, asked if probe is not None else None, self.record
        )

    async def died(self, at: EffectPlace, by: str = "one", **more: Any) -> None:
        """A process begins an effect and is gone before it ends."""
        never = asyncio.Event()
        task = asyncio.create_task(self.perform(at, by, until=never, **more))
        await until(lambda: bool(self.made))
        await self.ledger(by).close(0)
        await asyncio.wait([task])
        self.living.discard(by)
        assert [row.status for row in await self.store.rows()] == ["started"]

    def kinds(self) -> list[str]:
        return [event.type for event in self.record.events]


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not ready():
            await asyncio.sleep(0)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_an_effect_is_written_down_before_and_after_and_told_to_who_comes_again(desk: Desk) -> None:
    gate = asyncio.Event()
    first = asyncio.create_task(desk.perform(place(), until=gate))
    await until(lambda: bool(desk.made))
    assert [(row.status, row.content) for row in await desk.store.rows()] == [("started", None)]
    gate.set()
    assert await first == Done(True, TOLD)
    assert [(row.status, row.content) for row in await desk.store.rows()] == [("done", TOLD)]
    assert await desk.perform(place(), "two") == Done(True, TOLD, replayed=True)
    assert desk.made == ["one 1"]
    assert desk.kinds() == ["effect.started", "effect.finished", "effect.found"]


async def test_calls_of_other_places_and_owners_are_effects_of_their_own(desk: Desk) -> None:
    for at in (place(), place(position=1), place(number=2), place("t2"), place(owner="other")):
        await desk.perform(at)
    assert len(desk.made) == len(await desk.store.rows()) == 5


async def test_who_comes_second_in_this_process_joins_the_running_effect(desk: Desk) -> None:
    gate = asyncio.Event()
    tasks = [asyncio.create_task(desk.perform(place(), until=gate)) for _ in range(3)]
    await until(lambda: bool(desk.made))
    gate.set()
    assert [(done.ok, done.replayed) for done in await asyncio.gather(*tasks)] == [
        (True, False),
        (True, True),
        (True, True),
    ]
    assert desk.made == ["one 1"]


async def test_another_process_waits_for_a_living_holder(desk: Desk) -> None:
    gate = asyncio.Event()
    first = asyncio.create_task(desk.perform(place(), until=gate))
    await until(lambda: bool(desk.made))
    second = asyncio.create_task(desk.perform(place(), "two"))
    began = desk.clock.at
    await until(lambda: desk.clock.at > began + 1)
    assert not second.done()
    gate.set()
    assert await second == Done(True, TOLD, replayed=True)
    assert await first == Done(True, TOLD)
    assert desk.made == ["one 1"]


async def test_a_holder_that_is_silent_beyond_its_time_is_not_waited_for(desk: Desk) -> None:
    gate = asyncio.Event()
    first = asyncio.create_task(desk.perform(place(), until=gate))
    await until(lambda: bool(desk.made))
    told = await desk.perform(place(), "two")
    assert (told.ok, told.uncertain) == (False, True)
    gate.set()
    await first
    # It came to an end after all, and that is what is known from now on.
    assert (await desk.perform(place(), "two")).ok
    assert desk.made == ["one 1"]


async def test_without_a_probe_the_effect_of_a_dead_holder_is_unknown_and_never_made_again(desk: Desk) -> None:
    await desk.died(place())
    for _ in range(2):
        told = await desk.perform(place(), "two")
        assert (told.ok, told.uncertain) == (False, True)
        assert "not known" in json.loads(told.content)["error"]
    assert [row.status for row in await desk.store.rows()] == ["unknown"]
    assert desk.made == ["one 1"]
    assert desk.kinds().count("effect.unknown") == 2


async def test_a_probe_that_found_it_ends_the_effect_as_done(desk: Desk) -> None:
    await desk.died(place())
    told = await desk.perform(place(), "two", probe=lambda arguments: (True, TOLD))
    assert told == Done(True, TOLD, replayed=True)
    assert [(row.status, row.note) for row in await desk.store.rows()] == [("done", "probe")]
    assert desk.made == ["one 1"]


async def test_a_probe_that_found_nothing_lets_the_effect_of_a_dead_holder_be_made(desk: Desk) -> None:
    await desk.died(place())
    assert await desk.perform(place(), "two", probe=lambda arguments: (False, "")) == Done(True, TOLD)
    assert [(row.status, row.holder) for row in await desk.store.rows()] == [("done", "two")]
    assert desk.made == ["one 1", "two 1"]


async def test_a_probe_that_fails_leaves_it_unknown_and_says_why(desk: Desk) -> None:
    def probe(arguments: Mapping[str, Any]) -> tuple[bool, str]:
        raise ConnectionError("the bank is closed")

    await desk.died(place())
    told = await desk.perform(place(), "two", probe=probe)
    assert told.uncertain
    assert "the bank is closed" in told.content
    assert desk.made == ["one 1"]


async def test_a_probe_is_asked_about_what_was_begun_not_about_the_new_call(desk: Desk) -> None:
    seen: list[Any] = []

    def probe(arguments: Mapping[str, Any]) -> tuple[bool, str]:
        seen.append(arguments)
        return True, TOLD

    spec = pay(lambda arguments: "order 7")
    await desk.died(place(), spec=spec, amount=1)
    assert (await desk.perform(place("t2"), "two", spec=spec, amount=2, probe=probe)).ok
    assert seen == [{"amount": 1}]


async def test_what_was_given_up_in_a_living_process_may_still_be_at_work(desk: Desk) -> None:
    """A thread that nobody can stop may take effect after the probe has looked."""
    gave_up = Done(False, '{"ok":false,"error":"no answer"}', "no answer", uncertain=True)
    await desk.perform(place(), done=gave_up)
    assert [row.status for row in await desk.store.rows()] == ["unknown"]
    told = await desk.perform(place(), probe=lambda arguments: (False, ""))
    assert (told.ok, told.uncertain, desk.made) == (False, True, ["one 1"])
    # What it found is believed at once; and that it found nothing, once nothing can be left of the call.
    assert (await desk.perform(place(), "two", probe=lambda arguments: (True, TOLD))).ok
    await desk.perform(place("t2"), done=gave_up)
    desk.clock.at += 15 + LINGER_S
    assert (await desk.perform(place("t2"), probe=lambda arguments: (False, ""))).ok
    assert desk.made == ["one 1", "one 1", "one 1"]


async def test_where_it_cannot_be_begun_nothing_is_made(desk: Desk) -> None:
    desk.store.refuses["start"] = 1
    with pytest.raises(StoreUnavailable):
        await desk.perform(place())
    assert desk.made == []
    assert (await desk.perform(place())).ok


async def test_the_end_is_written_down_though_the_store_was_away_for_a_moment(desk: Desk) -> None:
    desk.store.refuses["finish"] = 4
    assert await desk.perform(place()) == Done(True, TOLD)
    assert [row.status for row in await desk.store.rows()] == ["done"]


async def test_an_end_that_could_not_be_written_down_is_told_now_and_unknown_later(desk: Desk) -> None:
    desk.store.refuses["finish"] = 5
    assert await desk.perform(place()) == Done(True, TOLD)
    assert (await desk.perform(place())).uncertain
    assert desk.made == ["one 1"]


async def test_a_caller_that_goes_leaves_the_effect_to_itself(desk: Desk) -> None:
    gate = asyncio.Event()
    caller = asyncio.create_task(desk.perform(place(), until=gate))
    await until(lambda: bool(desk.made))
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert desk.ledger().running == 1
    again = asyncio.create_task(desk.perform(place()))
    await asyncio.sleep(0)
    gate.set()
    assert await again == Done(True, TOLD, replayed=True)
    assert [row.status for row in await desk.store.rows()] == ["done"]
    assert desk.made == ["one 1"]


@pytest.mark.parametrize("running", [True, False])
async def test_other_arguments_in_the_same_place_are_not_run(desk: Desk, running: bool) -> None:
    gate = asyncio.Event()
    first = asyncio.create_task(desk.perform(place(), until=gate))
    await until(lambda: bool(desk.made))
    if not running:
        gate.set()
        await first
    told = await desk.perform(place(), amount=2)
    assert (told.ok, told.uncertain) == (False, True)
    gate.set()
    await first
    assert desk.made == ["one 1"]


async def test_a_declared_key_names_one_effect_whatever_turn_and_words_it_comes_in(desk: Desk) -> None:
    spec = pay(lambda arguments: "order 7")
    assert (await desk.perform(place(), spec=spec, amount=1)).ok
    again = await desk.perform(place("t2"), "two", spec=spec, amount=2)
    assert again.replayed
    assert "done before, with other arguments" in again.content, "the model must not take it for what it asked for"
    assert "note" not in (await desk.perform(place("t2"), "two", spec=spec, amount=1)).content
    assert (await desk.perform(place("t3", owner="other"), spec=spec)).replayed is False
    # Without a value it is a call like any other.
    await desk.perform(place("t4"), spec=pay(lambda arguments: None))
    assert desk.made == ["one 1", "one 1", "one 1"]


async def test_a_failure_is_told_again_to_its_own_turn_and_no_obstacle_to_another(desk: Desk) -> None:
    spec = pay(lambda arguments: "order 7")
    refused = Done(False, '{"ok":false,"error":"refused"}', "refused")
    await desk.perform(place(), spec=spec, done=refused)
    told = await desk.perform(place(), spec=spec)
    assert (told.ok, told.error, told.replayed) == (False, "refused", True)
    assert (await desk.perform(place("t2"), spec=spec)).ok
    assert len(desk.made) == 2


async def test_a_tool_that_ended_its_turn_ends_it_again(desk: Desk) -> None:
    await desk.perform(place(), done=Done(False, '{"ok":false,"error":"stop"}', "stop", fatal="stop"))
    assert (await desk.perform(place())).fatal == "stop"


async def test_of_two_that_begin_it_anew_one_does(desk: Desk) -> None:
    await desk.died(place())
    desk.living.add("three")
    gate = asyncio.Event()
    tasks = [
        asyncio.create_task(desk.perform(place(), by, until=gate, probe=lambda arguments: (False, "")))
        for by in ("two", "three")
    ]
    await until(lambda: len(desk.made) > 1)
    gate.set()
    told = await asyncio.gather(*tasks)
    assert len(desk.made) == 2
    assert sum(done.ok for done in told) >= 1


def test_what_a_tool_is_told_to_be_idempotent_by_is_the_effects_own() -> None:
    spec = pay(lambda arguments: "order 7")
    keys = {
        told_key(at.owner, effect_key(at, spec, {}), at.turn_id, at.round, at.position)
        for at in (place(), place("t2"), place(number=3))
    }
    assert len(keys) == 1
    other = place(owner="other")
    assert told_key("other", effect_key(other, spec, {}), "t1", 1, 0) not in keys
    assert told_key("app", effect_key(place(), pay(), {}), "t1", 1, 0) == "t1.1.0"


async def test_what_was_begun_and_never_ended_is_on_the_operators_list(desk: Desk) -> None:
    settling = Settling(desk.store, desk.clock)
    await desk.died(place())
    assert await settling.newest(status="unknown", limit=10, after=None) == []
    desk.clock.at += 15 + LINGER_S + 1
    (row,) = await settling.newest(status="unknown", limit=10, after=None)
    assert "not known" in json.loads(row.content or "")["error"]


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        ("done", msgspec.UNSET, {"ok": True, "result": None}),
        ("done", {"id": 7}, {"ok": True, "result": {"id": 7}}),
        ("failed", msgspec.UNSET, {"ok": False, "error": "the bank says so"}),
        ("failed", "not enough", {"ok": False, "error": "not enough"}),
    ],
)
async def test_what_an_operator_said_is_told_to_a_turn_that_asks_again(
    desk: Desk, status: Any, content: Any, told: Any
) -> None:
    settling = Settling(desk.store, desk.clock)
    await desk.died(place())
    await desk.perform(place(), "two")
    (row,) = await desk.store.rows()
    settled = await settling.settle(row.id, status, "the bank says so", "ops", content)
    assert (settled.status, settled.note) == (status, "ops: the bank says so")
    done = await desk.perform(place(), "two")
    assert (done.ok, json.loads(done.content), done.uncertain) == (status == "done", told, False)
    assert desk.made == ["one 1"]
    with pytest.raises(EffectSettled):
        await settling.settle(row.id, "failed", "no", "ops")
    with pytest.raises(NotFound):
        await settling.settle("eff_none", "failed", "no", "ops")


async def test_what_runs_is_not_settled(desk: Desk) -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(desk.perform(place(), until=gate))
    await until(lambda: bool(desk.made))
    (row,) = await desk.store.rows()
    with pytest.raises(EffectSettled):
        await Settling(desk.store, desk.clock).settle(row.id, "failed", "no", "ops")
    gate.set()
    await task
