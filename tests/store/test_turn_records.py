"""What the stores of joinable turns, effects and hidden rounds promise, for the database and its twin in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.store.memory import MemoryStore
from gateway.store.sql import SqlStore
from gateway.store.store import Store
from gateway.store.turn_records import EffectRow, HiddenRow, TurnRow


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqlStore(f"sqlite:///{tmp_path}/hermes.db")
    await made.open()
    yield made
    await made.close()


def turn(number: int, key: str | None = None, owner: str = "app", **more: object) -> TurnRow:
    values: dict[str, object] = {
        "turn_id": f"{number:032x}",
        "owner": owner,
        "key": key,
        "body_hash": "b" * 64,
        "holder": "one",
        "held_until": 50.0,
        "created_at": 10.0 + number,
        "updated_at": 10.0 + number,
    }
    return TurnRow(**{**values, **more})  # type: ignore[arg-type]


def effect(number: int, key: str | None = None, owner: str = "app", **more: object) -> EffectRow:
    values: dict[str, object] = {
        "id": f"eff_{number}",
        "effect_key": key or f"{number:064x}",
        "owner": owner,
        "turn_id": "t1",
        "trace_id": "0" * 32,
        "round": 1,
        "position": number,
        "tool": "pay",
        "spec_hash": "s" * 64,
        "arguments": '{"to":"订"}',
        "arguments_hash": "a" * 64,
        "holder": "one",
        "held_until": 50.0,
        "started_at": 10.0 + number,
    }
    return EffectRow(**{**values, **more})  # type: ignore[arg-type]


def hidden(anchor: str, text: str, call_ids: tuple[str, ...] = (), owner: str = "app", at: float = 1.0) -> HiddenRow:
    messages = msgspec.json.encode([{"role": "assistant", "content": text}])
    return HiddenRow(
        owner=owner,
        anchor=anchor,
        visible="v" * 64,
        digest=f"{hash(text):x}",
        messages=messages,
        call_ids=call_ids,
        created_at=at,
    )


async def test_a_key_has_one_turn_of_an_owner(store: Store) -> None:
    first = turn(1, "k")
    assert await store.turns.begin(first) is None
    assert await store.turns.begin(turn(2, "k")) == first
    assert await store.turns.begin(turn(3, "k", "other")) is None
    assert await store.turns.by_key("app", "k") == first
    assert await store.turns.by_key("nobody", "k") is None
    assert await store.turns.begin(turn(4)) is None
    assert await store.turns.begin(turn(5)) is None, "without a key nothing clashes"


async def test_of_many_that_begin_one_key_at_once_one_does(store: Store) -> None:
    found = await asyncio.gather(*(store.turns.begin(turn(number, "k")) for number in range(8)))
    winners = [number for number, seen in enumerate(found) if seen is None]
    assert len(winners) == 1
    assert {seen.turn_id for seen in found if seen is not None} == {f"{winners[0]:032x}"}


async def test_of_a_request_and_its_retry_one_begins(store: Store) -> None:
    first, retry = turn(1), turn(2, retried=True)
    found = await asyncio.gather(store.turns.begin(first, since=11.0), store.turns.begin(retry, since=11.0))
    assert sorted(found, key=lambda row: row is None) == [first if found[1] else retry, None]
    # To a first request another one is none of its business, nor is a retry that was begun before it was asked.
    assert await store.turns.begin(turn(5), since=13.0) is None
    assert await store.turns.begin(turn(6, owner="other"), since=0.0) is None
    assert await store.turns.begin(turn(7, "k"), since=13.0) is None
    # To a retry those that were delivered are none.
    for number in (1, 2, 5):
        await store.turns.delivered(f"{number:032x}")
    assert await store.turns.begin(turn(8, retried=True), since=0.0) is None
    assert await store.turns.begin(turn(9), since=0.0) is not None


async def test_a_turn_is_found_by_what_was_asked_until_it_is_delivered(store: Store) -> None:
    for row in (turn(1), turn(2), turn(3, "k"), turn(4, owner="other"), turn(5, body_hash="c" * 64)):
        await store.turns.begin(row)

    async def found() -> list[str]:
        return [row.turn_id[-1] for row in await store.turns.by_body("app", "b" * 64, since=11.0)]

    assert await found() == ["2", "1"]
    await store.turns.delivered(f"{2:032x}")
    assert await found() == ["1"]
    assert await store.turns.by_body("app", "b" * 64, since=11.5) == []


async def test_one_of_two_takes_a_turn_over_and_the_one_before_can_end_it_no_more(store: Store) -> None:
    row = turn(1)
    await store.turns.begin(row)
    assert await store.turns.take(row.turn_id, "two", seen=row, until=90.0, now=60.0)
    assert not await store.turns.take(row.turn_id, "three", seen=row, until=90.0, now=60.0)
    end = {"status": "answered", "http_status": 200, "answer": b"{}", "meta": {"route": "订"}, "now": 61.0}
    assert not await store.turns.keep(row.turn_id, "one", until=99.0)
    assert not await store.turns.end(row.turn_id, "one", **end)  # type: ignore[arg-type]
    assert await store.turns.keep(row.turn_id, "two", until=99.0)
    assert await store.turns.end(row.turn_id, "two", **end)  # type: ignore[arg-type]
    ended = await store.turns.get(row.turn_id, "app")
    assert ended is not None
    assert (ended.status, ended.answer, ended.meta, ended.held_until) == ("answered", b"{}", {"route": "订"}, 99.0)
    assert await store.turns.get(row.turn_id, "other") is None
    assert not await store.turns.keep(row.turn_id, "two", until=100.0), "it is over"
    assert await store.turns.prune(before=12.0) == 1
    assert await store.turns.get(row.turn_id, None) is None


async def test_an_effect_key_has_one_effect_of_an_owner(store: Store) -> None:
    first = effect(1, "e" * 64)
    assert await store.effects.start(first) is None
    assert await store.effects.start(effect(2, "e" * 64)) == first
    assert await store.effects.start(effect(3, "e" * 64, "other")) is None


async def test_an_effect_ends_once(store: Store) -> None:
    await store.effects.start(effect(1))
    assert await store.effects.finish("eff_1", status="unknown", content="?", note=None, now=20.0)
    assert await store.effects.finish("eff_1", status="done", content="ok", note="settled", now=21.0)
    assert not await store.effects.finish("eff_1", status="failed", content="no", note=None, now=22.0)
    row = await store.effects.get("eff_1", "app")
    assert row is not None
    assert (row.status, row.content, row.note, row.finished_at) == ("done", "ok", "settled", 21.0)
    assert await store.effects.get("eff_1", "other") is None


async def test_an_effect_that_did_not_happen_is_begun_again_by_one(store: Store) -> None:
    await store.effects.start(effect(1, "e" * 64))
    await store.effects.finish("eff_1", status="failed", content="no", note=None, now=20.0)
    seen = await store.effects.get("eff_1", None)
    assert seen is not None
    again = effect(9, trace_id="1" * 32, holder="two", started_at=30.0)
    assert await store.effects.restart("eff_1", seen=seen, row=again)
    assert not await store.effects.restart("eff_1", seen=seen, row=again)
    row = await store.effects.get("eff_1", None)
    assert row is not None
    assert (row.status, row.holder, row.effect_key, row.content) == ("started", "two", "e" * 64, None)


async def test_effects_are_listed_newest_first_by_owner_and_status(store: Store) -> None:
    for number in range(6):
        await store.effects.start(effect(number, owner="app" if number else "other"))
    await store.effects.finish("eff_3", status="unknown", content="?", note=None, now=20.0)
    await store.effects.finish("eff_4", status="done", content="!", note=None, now=20.0)
    assert [row.id for row in await store.effects.newest("app", limit=2)] == ["eff_5", "eff_4"]
    assert [row.id for row in await store.effects.newest("app", limit=9, after="eff_4")] == ["eff_3", "eff_2", "eff_1"]
    assert [row.id for row in await store.effects.newest(None, status="unknown", limit=9)] == ["eff_3"]
    assert await store.effects.newest("app", limit=9, after="eff_0") == []
    assert [row.id for row in await store.effects.of_turn("t1", "app")] == [f"eff_{n}" for n in range(1, 6)]
    assert await store.effects.prune(before=30.0) == 1
    assert await store.effects.get("eff_3", None) is not None, "what is not known is not forgotten"


async def test_hidden_rounds_are_found_by_anchor_and_by_call_id_of_the_owner_alone(store: Store) -> None:
    await store.hidden.keep([hidden("x" * 64, "one", ("c1", "c2"))])
    await store.hidden.keep([hidden("x" * 64, "one", ("c1", "c2"))])
    await store.hidden.keep([hidden("x" * 64, "two")])
    await store.hidden.keep([hidden("y" * 64, "three", ("c3",))])
    await store.hidden.keep([hidden("x" * 64, "four", ("c1",), owner="other")])

    async def texts(anchors: list[str], call_ids: list[str], owner: str = "app") -> list[str]:
        rows = await store.hidden.find(owner, anchors, call_ids)
        return [msgspec.json.decode(row.messages)[0]["content"] for row in rows]

    assert await texts(["x" * 64], []) == ["two", "one"]
    assert await texts(["x" * 64], ["c3"]) == ["three", "two", "one"]
    assert await texts([], ["c2"]) == ["one"]
    assert await texts([], ["c1"], "other") == ["four"]
    assert await texts([], []) == []
    (row,) = await store.hidden.find("app", [], ["c2"])
    assert row.call_ids == ("c1", "c2")


async def test_a_call_id_that_comes_again_names_both(store: Store) -> None:
    await store.hidden.keep([hidden("x" * 64, "one", ("call_1", "call_2"))])
    await store.hidden.keep([hidden("y" * 64, "two", ("call_1",))])
    assert [row.anchor[0] for row in await store.hidden.find("app", [], ["call_1"])] == ["y", "x"]
    assert [row.anchor[0] for row in await store.hidden.find("app", [], ["call_2"])] == ["x"]


async def test_old_hidden_rounds_go_with_their_calls(store: Store) -> None:
    await store.hidden.keep([hidden("x" * 64, "old", ("c1",), at=1.0)])
    await store.hidden.keep([hidden("y" * 64, "new", ("c2",), at=9.0)])
    assert await store.hidden.prune(before=5.0) == 1
    assert await store.hidden.find("app", ["x" * 64], ["c1"]) == []
    assert len(await store.hidden.find("app", [], ["c2"])) == 1
