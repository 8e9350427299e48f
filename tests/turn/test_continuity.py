"""Hidden rounds come back where they belong, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.errors import StoreUnavailable
from gateway.store.memory_turns import MemoryHidden
from gateway.store.turn_records import HiddenRow
from gateway.turn import continuity as continuity_module
from gateway.turn.continuity import Behind, Continuity
from tests.clocks import HandClock


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def said(text: str, *calls: str) -> Message:
    return Message("assistant", (*((Text(text),) if text else ()), *(ToolCall(each, "open", "{}") for each in calls)))


def result(call_id: str, text: str = "ok") -> Message:
    return Message("tool", (ToolResult(call_id, text),))


ROUNDS = (said("", "ours"), result("ours", "7"), said("It is 7."))
OTHER = (said("", "ours"), result("ours", "8"), said("It is 7."))


async def back(
    continuity: Continuity, owner: str, session: str | None, messages: tuple[Message, ...]
) -> tuple[Message, ...]:
    """What the backend gets to see; how it is written does not matter here."""
    found = await continuity.restored(owner, session, messages)
    return tuple(Message(message.role, message.blocks, message.name) for message in found)


class Hidden(MemoryHidden):
    """A store that can be slow or away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.go = asyncio.Event()
        self.go.set()
        self.found = 0

    async def keep(self, rows: Sequence[HiddenRow]) -> None:
        await self.go.wait()
        if self.away:
            raise StoreUnavailable("away")
        await super().keep(rows)

    async def find(self, owner: str, anchors: Sequence[str], call_ids: Sequence[str]) -> Sequence[HiddenRow]:
        self.found += 1
        if self.away:
            raise StoreUnavailable("away")
        return await super().find(owner, anchors, call_ids)


@pytest.fixture
def store() -> Hidden:
    return Hidden()


@pytest.fixture
async def continuity(store: Hidden) -> Any:
    made = Continuity(store, HandClock())
    yield made
    await made.close()


async def test_the_rounds_behind_a_message_stand_in_its_place_in_every_later_request(continuity: Continuity) -> None:
    asked = (system("be kind"), user("what is it?"))
    await continuity.keep(Behind("o", None, asked, said("It is 7."), ROUNDS))
    later: tuple[Message, ...] = (*asked, said("It is 7."), user("sure?"))
    for _ in range(2):
        assert await back(continuity, "o", None, later) == (*asked, *ROUNDS, *later[3:])
        later = (*later, said("Yes."), user("and now?"))


@pytest.mark.parametrize(
    ("owner", "session", "messages"),
    [
        ("other", None, (user("a"), said("It is 7."))),
        ("o", "s2", (user("a"), said("It is 7."))),
        ("o", None, (user("a"), said("It is 7."))),
        ("o", "s1", (user("b"), said("It is 7."))),
        ("o", "s1", (user("a"), said("It is 8."))),
        ("o", "s1", (system("now"), user("a"), said("It is 7."))),
        ("o", "s1", (user("a"),)),
    ],
)
async def test_another_thread_gets_nothing(
    continuity: Continuity, owner: str, session: str | None, messages: tuple[Message, ...]
) -> None:
    await continuity.keep(Behind("o", "s1", (user("a"),), said("It is 7."), ROUNDS))
    assert await back(continuity, "o", "s1", (user("a"), said("It is 7."))) == (user("a"), *ROUNDS)
    assert await back(continuity, owner, session, messages) == messages


async def test_a_message_with_calls_is_found_by_their_ids_where_the_words_before_it_have_changed(
    continuity: Continuity,
) -> None:
    visible = said("Wait.", "theirs-1", "theirs-2")
    hidden = (said("Wait.", "ours", "theirs-1", "theirs-2"), result("ours"))
    await continuity.keep(Behind("o", None, (system("it is noon"), user("a")), visible, hidden))
    later = (system("it is one"), user("a"), visible, result("theirs-1"), result("theirs-2"))
    assert await back(continuity, "o", None, later) == (*later[:2], *hidden, *later[3:])
    # Its own words have to be the same, and all of its calls.
    for changed in (said("Go.", "theirs-1", "theirs-2"), said("Wait.", "theirs-1"), said("Wait.", "theirs-1", "x")):
        other = (system("it is one"), user("a"), changed)
        assert await back(continuity, "o", None, other) == other


def asks(arguments: str, text: str = "Wait.", *, name: str = "open", call_id: str = "theirs") -> Message:
    return Message("assistant", (*((Text(text),) if text else ()), ToolCall(call_id, name, arguments)))


@pytest.mark.parametrize("moved", [False, True], ids=["the same past", "another system prompt"])
@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (asks('{"b":[1,{"c":2}],"a":"\u00e9"}'), True),  # compact, as JavaScript writes it, other key order
        (asks('{"a": "\\u00e9", "b": [1.0, {"c": 2e0}]}'), True),  # as Python escapes it, or another number form
        (asks('{"a":"é","b":[1,{"c":2}]}', "Wait.\n"), True),
        (asks('{"a":"é","b":[1,{"c":2}]}', call_id="other"), False),
        (asks('{"a":"é","b":[1,{"c":3}]}'), False),
        (asks('{"a":"é","b":[1,{"c":2}]}', name="shut"), False),
        (asks('{"a":"é","b":[1,{"c":2}]}', "Go on."), False),
    ],
)
async def test_a_client_may_write_a_message_otherwise_but_not_another_one(
    continuity: Continuity, sent: Message, found: bool, moved: bool
) -> None:
    visible = asks('{"a": "é", "b": [1, {"c": 2.0}]}')
    ours = ToolCall("ours", "look", "{}")
    hidden = (Message("assistant", (*visible.blocks, ours)), result("ours"))
    await continuity.keep(Behind("o", None, (system("it is noon"), user("a")), visible, hidden))
    later = (system("it is one" if moved else "it is noon"), user("a"), sent, result("theirs"))
    expected = (*later[:2], *hidden, *later[3:]) if found else later
    assert await back(continuity, "o", None, later) == expected


@pytest.mark.parametrize("past", ["it is noon", "it is one"])
async def test_a_client_may_drop_the_words_beside_its_calls(continuity: Continuity, past: str) -> None:
    visible = asks('{"a":1}')
    hidden = (asks('{"a": 1}'), result("ours"))
    await continuity.keep(Behind("o", None, (system("it is noon"), user("a")), visible, hidden))
    later = (system(past), user("a"), asks('{"a": 1}', ""), result("theirs"))
    assert await back(continuity, "o", None, later) == (*later[:2], *hidden, later[3])
    changed = (*later[:2], asks('{"a": 2}', ""), later[3])
    assert await back(continuity, "o", None, changed) == changed


async def test_results_may_come_in_any_order(continuity: Continuity) -> None:
    calls = said("", "one", "two")
    asked = (user("a"), calls, result("one", "1"), result("two", "2"))
    await continuity.keep(Behind("o", None, asked, said("It is 7."), ROUNDS))
    later = (*asked[:2], asked[3], asked[2], said("It is 7."), user("b"))
    assert await back(continuity, "o", None, later) == (*later[:4], *ROUNDS, later[5])
    other = (*asked[:3], result("two", "3"), *later[4:])
    assert await back(continuity, "o", None, other) == other


async def test_ids_that_are_made_from_places_name_nothing(continuity: Continuity) -> None:
    visible = said("", "call_1_open")
    hidden = (said("", "ours", "call_1_open"), result("ours"))
    await continuity.keep(Behind("o", None, (user("a"),), visible, hidden, named=False))
    later = (user("a"), visible, result("call_1_open"))
    assert await back(continuity, "o", None, later) == (user("a"), *hidden, later[2])
    # Somebody else's first call has the same id.
    other = (user("b"), *later[1:])
    assert await back(continuity, "o", None, other) == other


async def test_what_this_process_gave_bare_is_known_to_be(continuity: Continuity) -> None:
    asked = (user("a"),)
    assert continuity.is_bare("o", None, asked)
    later = (*asked, said("Hello."), user("b"))
    assert not continuity.is_bare("o", None, later)
    continuity.bare("o", None, asked, said("Hello."))
    assert continuity.is_bare("o", None, later)
    for owner, session in (("other", None), ("o", "s")):
        assert not continuity.is_bare(owner, session, later)
    # One message that is not known is enough to look.
    assert not continuity.is_bare("o", None, (*later, said("It is 7."), user("c")))
    assert not continuity.is_bare("o", None, (system("Be brief."), *later))
    # The same words with rounds behind them: then these are looked for.
    await continuity.keep(Behind("o", None, asked, said("Hello."), ROUNDS))
    assert not continuity.is_bare("o", None, later)
    assert await back(continuity, "o", None, later) == (*asked, *ROUNDS, later[2])


async def test_of_what_was_given_bare_the_oldest_is_forgotten(
    continuity: Continuity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuity_module, "_BARE", 2)
    for name in "abc":
        continuity.bare("o", None, (user(name),), said("Hello."))
    known = [continuity.is_bare("o", None, (user(name), said("Hello."), user("?"))) for name in "abc"]
    assert known == [False, True, True]


async def test_what_is_not_found_is_looked_for_until_nobody_can_be_writing_it_any_more(store: Hidden) -> None:
    clock = HandClock()
    here, there = Continuity(store, clock), Continuity(store, clock)
    later = (user("a"), said("It is 7."))
    for number in (1, 2):
        assert await back(here, "o", None, later) == later
        assert store.found == number
        clock.at += 50
    await there.keep(Behind("o", None, later[:1], later[1], ROUNDS))
    for _ in range(2):
        assert await back(here, "o", None, later) == (user("a"), *ROUNDS)
        clock.at += 500
    bare = (user("b"), said("It is 7."))
    await back(here, "o", None, bare)
    clock.at += 500
    found = store.found
    assert await back(here, "o", None, bare) == bare
    assert store.found == found


async def test_two_different_rounds_behind_one_message_are_nobodys(continuity: Continuity) -> None:
    asked = (user("a"),)
    await continuity.keep(Behind("o", None, asked, said("It is 7."), ROUNDS))
    await continuity.keep(Behind("o", None, asked, said("It is 7."), ROUNDS))
    later = (*asked, said("It is 7."), user("b"))
    assert await back(continuity, "o", None, later) == (*asked, *ROUNDS, user("b"))
    await continuity.keep(Behind("o", None, asked, said("It is 7."), OTHER))
    assert await back(continuity, "o", None, later) == later


async def test_a_branch_has_the_rounds_of_its_own_past(continuity: Continuity) -> None:
    asked = (user("a"),)
    await continuity.keep(Behind("o", None, asked, said("It is 7."), ROUNDS))
    branches = {}
    for text, hidden in (("b", ROUNDS), ("c", OTHER)):
        before = (*asked, said("It is 7."), user(text))
        await continuity.keep(Behind("o", None, before, said("It is 7."), hidden))
        branches[text] = ((*before, said("It is 7.")), hidden)
    for text, (messages, hidden) in branches.items():
        assert await back(continuity, "o", None, messages) == (*asked, *ROUNDS, user(text), *hidden)


async def test_what_is_kept_soon_is_found_at_once_and_written_behind(continuity: Continuity, store: Hidden) -> None:
    store.go.clear()
    asked = (user("a"),)
    continuity.keep_soon(Behind("o", None, asked, said("It is 7."), ROUNDS))
    later = (*asked, said("It is 7."))
    assert await back(continuity, "o", None, later) == (*asked, *ROUNDS)
    assert await back(continuity, "other", None, later) == later
    store.go.set()
    await continuity.flush()
    assert await back(Continuity(store, HandClock()), "o", None, later) == (*asked, *ROUNDS)


async def test_a_store_that_is_away_is_told_where_it_matters(continuity: Continuity, store: Hidden) -> None:
    store.away = True
    asked = (user("a"),)
    with pytest.raises(StoreUnavailable):
        await continuity.keep(
            Behind("o", None, asked, said("", "theirs"), (said("", "ours", "theirs"), result("ours")))
        )
    with pytest.raises(StoreUnavailable):
        await back(continuity, "o", None, (*asked, said("x")))
    with pytest.raises(StoreUnavailable):
        await continuity.taken("o", ["call_0"])
    # What can be done without is lost, and nobody waits for it.
    continuity.keep_soon(Behind("o", None, asked, said("It is 7."), ROUNDS))
    await continuity.flush()
    store.away = False
    later = (*asked, said("It is 7."))
    assert await back(continuity, "o", None, later) == later


async def test_a_conversation_without_an_answer_asks_no_store(continuity: Continuity, store: Hidden) -> None:
    store.away = True
    assert await back(continuity, "o", None, (user("a"),)) == (user("a"),)
    assert store.found == 0


async def test_expired_rounds_leave_a_valid_conversation(continuity: Continuity, store: Hidden) -> None:
    asked = (user("a"),)
    await continuity.keep(Behind("o", None, asked, said("It is 7."), ROUNDS))
    await store.prune(before=2_000_000_000)
    later = (*asked, said("It is 7."))
    assert await back(continuity, "o", None, later) == later


async def test_an_id_that_names_another_call_of_this_owner_is_taken(continuity: Continuity, store: Hidden) -> None:
    assert await continuity.taken("o", ["call_0", "call_0"]) == set()
    assert await continuity.taken("o", ["call_0", "call_1"]) == {"call_0"}
    assert await continuity.taken("other", ["call_0"]) == set()
    # After a restart the store remembers those that hidden rounds hang on.
    await continuity.keep(
        Behind("o", None, (user("a"),), said("", "call_9"), (said("", "ours", "call_9"), result("ours")))
    )
    assert await Continuity(store, HandClock()).taken("o", ["call_9", "call_8"]) == {"call_9"}


async def test_an_id_too_long_to_be_kept_finds_its_rounds_and_is_taken(continuity: Continuity, store: Hidden) -> None:
    # Some upstreams put a signature of thousands of characters into an id; PostgreSQL takes no NUL.
    for name in ("call_" + "s" * 5000, "call\0"):
        visible, hidden = said("", name), (said("", "ours", name), result("ours"))
        await continuity.keep(Behind("o", None, (user("a"),), visible, hidden))
        changed = (system("the time"), user("a"), visible, result(name))
        assert await back(continuity, "o", None, changed) == (*changed[:2], *hidden, changed[3])
        assert await Continuity(store, HandClock()).taken("o", [name, "new"]) == {name}
    kept = [call_id for row in await store.find("o", (), await _names(store)) for call_id in row.call_ids]
    assert kept
    assert all(len(call_id) <= 256 and "\0" not in call_id for call_id in kept)


async def _names(store: Hidden) -> list[str]:
    return [call_id for row in store._rows for call_id in row.call_ids]
