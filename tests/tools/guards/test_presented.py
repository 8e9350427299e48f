from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.tools.guards.fields import only_fields
from gateway.tools.guards.presented import presented
from gateway.tools.outcome import CallFailed


@pytest.mark.parametrize(
    ("value", "paths", "expected"),
    [
        ({"a": 1, "b": 2}, ["a", "c"], {"a": 1}),
        ({"a": {"b": {"c": 1, "d": 2}}, "e": 1}, ["a.b.c"], {"a": {"b": {"c": 1}}}),
        ([{"a": 1, "b": 2}, {"b": 3}, 4], ["a"], [{"a": 1}, {}]),
        ({"items": [{"id": 1, "x": 2}], "n": 1}, ["items.id", "n"], {"items": [{"id": 1}], "n": 1}),
        ({"items": [{"id": 1, "x": 2}]}, ["items.id", "items"], {"items": [{"id": 1, "x": 2}]}),
        ({"a": "text"}, ["a.b"], {}),
        ("text", ["a"], "text"),
        ({"a": None}, ["a"], {"a": None}),
    ],
)
def test_only_named_fields_are_left(value: Any, paths: list[str], expected: Any) -> None:
    assert only_fields(value, paths) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"error": "503 upstream"}, "503 upstream"),
        ({"error": {"code": 7}}, '{"error":{"code":7}}'),
        ({"ok": False, "error": "no"}, "no"),
        ({"ok": False, "error": "no", "code": 7}, '{"error":"no","code":7}'),
    ],
)
async def test_a_returned_error_is_an_error(value: Any, said: str) -> None:
    """B036."""
    with pytest.raises(CallFailed) as raised:
        await presented(value, 8192)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    "value", [{"error": None}, {"error": ""}, {"error": "x", "rows": []}, {"ok": False}, ["error"]]
)
async def test_a_result_that_speaks_of_errors_is_a_result(value: Any) -> None:
    made = await presented(value, 8192)
    assert json.loads(made.shown.content) == {"ok": True, "result": value}
