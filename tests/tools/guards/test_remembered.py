from __future__ import annotations

import json

from gateway.tools.guards.remembered import Remembered, repeated
from gateway.tools.outcome import Outcome


def outcome(content: str, arguments: object = None, *, ok: bool = True) -> Outcome:
    return Outcome("c", "t", ok, content, arguments=arguments)


def test_a_tool_is_stuck_once_two_answers_had_its_arguments_wrong() -> None:
    remembered = Remembered()
    assert remembered.corrected(["a", "a"]) == frozenset()
    assert remembered.corrected(["b"]) == frozenset()
    assert remembered.corrected(["a"]) == {"a"}


def test_the_same_call_repeats_only_with_the_same_result() -> None:
    """B039."""
    remembered = Remembered()
    remembered.note([outcome("[]", {"a": 1, "b": 2}), outcome("no", {"a": 9}, ok=False)])
    assert remembered.repeats(outcome("[]", {"b": 2, "a": 1}))
    assert not remembered.repeats(outcome("[1]", {"a": 1, "b": 2}))
    assert not remembered.repeats(outcome("[]", {"a": 1}))
    assert not remembered.repeats(outcome("no", {"a": 9}))


def test_the_note_leaves_json_and_never_goes_over_the_limit() -> None:
    told = repeated('{"ok":true,"result":[]}', 8192)
    assert json.loads(told)["result"] == []
    assert "will not change it" in json.loads(told)["note"]
    large = '{"ok":true,"result":"' + "x" * 200 + '"}'
    assert json.loads(repeated(large, len(large) + 10)).keys() == {"ok", "note"}
