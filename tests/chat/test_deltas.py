from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.blocks import Message, Reasoning, Refusal, Text, ToolCall
from gateway.chat.chunk import CustomDelta, Delta, FunctionDelta, ToolCallDelta
from gateway.chat.deltas import Assembly, CallPiece, CallTracker
from tests.chat.strategies import json_texts, words


def tracker() -> CallTracker:
    counter = itertools.count()
    return CallTracker(lambda: f"made_{next(counter)}")


def fed(*fragments: dict[str, Any]) -> tuple[tuple[ToolCall, ...], list[CallPiece]]:
    """Calls and pieces of fragments in the wire's form."""
    reading = tracker()
    pieces = [reading.add(msgspec.convert(fragment, ToolCallDelta)) for fragment in fragments]
    return reading.calls(), [piece for piece in pieces if piece is not None]


def part(index: int | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A fragment; `id` and `name` by name, absent ones left out."""
    function = {
        key: value for key, value in (("name", more.get("name")), ("arguments", arguments)) if value is not None
    }
    found: dict[str, Any] = {"function": function}
    if index is not None:
        found["index"] = index
    if "id" in more:
        found["id"] = more["id"]
    return found


def test_calls_without_index_are_told_apart_by_their_ids_B018() -> None:
    calls, pieces = fed(part(id="a", name="add", arguments='{"x":1}'), part(id="b", name="add", arguments='{"x":3}'))
    assert calls == (ToolCall("a", "add", '{"x":1}'), ToolCall("b", "add", '{"x":3}'))
    assert [piece.position for piece in pieces] == [0, 1]


def test_interleaved_fragments_go_to_the_call_of_their_index_B019() -> None:
    calls, _ = fed(
        part(0, "", id="A", name="pay"),
        part(1, "", id="B", name="pay"),
        part(0, '{"to":"alice",'),
        part(1, '{"to":"bob",'),
        part(1, '"cents":5}'),
        part(0, '"cents":7}'),
    )
    assert calls == (ToolCall("A", "pay", '{"to":"alice","cents":7}'), ToolCall("B", "pay", '{"to":"bob","cents":5}'))


def test_repeated_name_and_id_are_told_once_B020() -> None:
    calls, pieces = fed(
        part(0, '{"q":', id="a", name="search"),
        part(0, '"x"}', id="a", name="search"),
        part(0, "", id="", name=""),
        {"index": 0, "id": None, "function": {"name": None}},
    )
    assert calls == (ToolCall("a", "search", '{"q":"x"}'),)
    assert [piece.first for piece in pieces] == [True, False, False, False]


def test_arguments_as_an_object_and_no_id_B021() -> None:
    calls, pieces = fed(part(arguments={"city": "Zürich", "days": 2}, name="weather"))
    assert calls[0].id == "made_0"
    assert json.loads(calls[0].arguments) == {"city": "Zürich", "days": 2}
    assert pieces[0].id == "made_0"


def test_every_call_as_index_0_is_a_call_of_its_own() -> None:
    calls, pieces = fed(part(0, "{}", id="a", name="f"), part(0, '{"x":', id="b", name="f"), part(0, "1}"))
    assert calls == (ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"x":1}'))
    assert [piece.position for piece in pieces] == [0, 1, 1]


def test_same_id_for_two_calls_gets_a_new_one_and_stays_one_call_each() -> None:
    calls, _ = fed(
        part(0, '{"x":', id="a", name="f"),
        part(1, '{"y":', id="a", name="f"),
        part(1, "2}", id="a", name="f"),
        part(0, "1}", id="a", name="f"),
    )
    assert calls == (ToolCall("a", "f", '{"x":1}'), ToolCall("made_0", "f", '{"y":2}'))


def test_id_that_comes_after_the_name_does_not_start_another_call() -> None:
    calls, pieces = fed(part(0, '{"x":', name="f"), part(0, "1}", id="late", name="f"))
    assert calls == (ToolCall("made_0", "f", '{"x":1}'),)
    assert [piece.first for piece in pieces] == [True, False]


def test_call_without_a_name_leaves_no_gap() -> None:
    calls, pieces = fed(part(0, "{}", id="a"), part(1, "{}", id="b", name="f"))
    assert calls == (ToolCall("b", "f", "{}"),)
    assert [piece.position for piece in pieces] == [0]


def test_name_that_comes_late_brings_what_came_before_it() -> None:
    _, pieces = fed(part(0, '{"x":', id="a"), part(0, "1}", name="f"))
    assert pieces == [CallPiece(0, True, "a", "f", '{"x":1}')]


def test_blank_arguments_are_an_empty_object_B023() -> None:
    for blank in ("", "   ", "null", None):
        calls, _ = fed(part(0, blank, id="a", name="ping"))
        assert calls == (ToolCall("a", "ping", "{}"),)


def test_continuation_without_index_and_id_goes_to_the_latest_call() -> None:
    calls, _ = fed(part(id="a", name="f", arguments='{"x"'), part(arguments=":1}"), part(name="g", arguments="{}"))
    assert calls == (ToolCall("a", "f", '{"x":1}'), ToolCall("made_0", "g", "{}"))


def test_message_holds_everything_that_was_said() -> None:
    assembly = Assembly(lambda: "made")
    assembly.add(Delta(role="assistant", reasoning_content="h"), None)
    assembly.add(Delta(reasoning="m"), None)
    assembly.add(Delta(content=["a", {"type": "text", "text": "b"}]), "")
    assembly.add(
        Delta(content="c", refusal="no", tool_calls=[ToolCallDelta(0, "x", None, FunctionDelta("f", "{}"))]), None
    )
    assembly.add(Delta(), "stop")
    assembly.add(Delta(), "length")
    assert assembly.message() == Message(
        "assistant", (Reasoning("hm"), Text("abc"), Refusal("no"), ToolCall("x", "f", "{}"))
    )
    assert assembly.finish_reason == "stop"


@settings(max_examples=40)
@given(st.data(), st.lists(st.tuples(words, json_texts), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_fragments_cut_and_interleaved_in_any_way_reassemble(
    data: st.DataObject, asked: list[tuple[str, str]], with_ids: bool, repeated: bool
) -> None:
    waiting = []
    for index, (name, arguments) in enumerate(asked):
        places = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
        cuts = [arguments[a:b] for a, b in zip([0, *places], [*places, len(arguments)], strict=True)]
        head = {"name": name, **({"id": f"call_{index}"} if with_ids else {})}
        waiting.append([part(index, cut, **(head if repeated or not turn else {})) for turn, cut in enumerate(cuts)])
    fragments = []
    # A call begins before the next one does; after that, anything goes.
    started = 0
    while any(waiting):
        ready = [i for i, left in enumerate(waiting) if left and i <= started]
        chosen = data.draw(st.sampled_from(ready)) if ready else started
        fragments.append(waiting[chosen].pop(0))
        started = max(started, chosen + 1)
    calls, pieces = fed(*fragments)
    assert [(call.name, call.arguments) for call in calls] == asked
    assert len({call.id for call in calls}) == len(asked)
    for position, (_, arguments) in enumerate(asked):
        mine = [piece for piece in pieces if piece.position == position]
        assert "".join(piece.fragment for piece in mine) == arguments
        assert [piece.first for piece in mine] == [True] + [False] * (len(mine) - 1)


def test_whose_call_it_is_does_not_change_once_it_was_told() -> None:
    tracker = CallTracker(lambda: "new")
    tracker.add(ToolCallDelta(0, "a", function=FunctionDelta("f", "{}")))
    later = tracker.add(ToolCallDelta(0, custom=CustomDelta("g", "text")))
    assert later is not None
    assert not later.custom
    assert [(call.name, call.custom) for call in tracker.calls()] == [("f", False)]
