from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.schemas.dialect import DIALECTS, in_dialect
from gateway.tools.spec import InvalidArguments
from gateway.tools.validate import ArgumentValidator, SchemaInvalid

TREE = {
    "type": "object",
    "properties": {"mode": {"$ref": "#/$defs/Mode"}, "tree": {"$ref": "#/$defs/Node"}},
    "required": ["mode"],
    "additionalProperties": False,
    "$defs": {
        "Mode": {"type": "string", "enum": ["fast", "full"]},
        "Node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}},
    },
}


def closed(**properties: Any) -> ArgumentValidator:
    return ArgumentValidator({"type": "object", "properties": properties, "additionalProperties": False})


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "-12", -12),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, 5, 5),
        ({"type": "number"}, "5", 5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "string"}, 12345, "12345"),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2.0], [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        (
            {"type": "object", "properties": {"n": {"type": "integer"}}},
            {"n": "1", "other": "2"},
            {"n": 1, "other": "2"},
        ),
    ],
)
def test_a_value_is_coerced_where_nothing_is_lost(schema: dict[str, Any], value: Any, expected: Any) -> None:
    got = closed(x=schema).validate({"x": value})["x"]
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, "007"),
        ({"type": "integer"}, "5.5"),
        ({"type": "integer"}, 5.5),
        ({"type": "integer"}, "５"),
        ({"type": "integer"}, True),
        ({"type": "integer"}, "9" * 40),
        ({"type": "number"}, "0.1000000000000000055511151231257827"),
        ({"type": "number"}, "1e400"),
        ({"type": "number"}, "NaN"),
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, 1),
        ({"type": "string"}, 1.10),
        ({"type": "string"}, True),
        ({"type": "array"}, "[1, 2"),
        ({"type": "array"}, '{"a": 1}'),
        ({"type": "object"}, '{"a": NaN}'),
        ({"type": "object"}, '{"a": 1e999}'),
        ({"type": "object"}, '{"a": "\\ud800"}'),
    ],
)
def test_a_value_is_refused_where_something_would_be_lost(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(InvalidArguments, match="`x`"):
        closed(x=schema).validate({"x": value})


@given(st.integers(-(10**15), 10**15))
def test_a_whole_number_survives_as_text(number: int) -> None:
    assert closed(x={"type": "integer"}).validate({"x": str(number)}) == {"x": number}


def test_null_for_an_optional_parameter_means_that_it_was_not_given() -> None:
    assert closed(x={"type": "integer"}).validate({"x": None}) == {}
    with pytest.raises(InvalidArguments):
        ArgumentValidator({"properties": {"x": {"type": "integer"}}, "required": ["x"]}).validate({"x": None})


@pytest.mark.parametrize(
    "arguments", [{"mode": "fast"}, {"mode": "full", "tree": {"kids": [{"kids": [{"kids": []}]}]}}]
)
def test_b029_references_and_recursion_are_followed(arguments: dict[str, Any]) -> None:
    assert ArgumentValidator(TREE).validate(arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"mode": "bad"}, "`mode`: expected one of"),
        ({"mode": "fast", "x": 1}, "`x` is not a parameter"),
        ({}, "`mode` is missing"),
        ({"mode": "fast", "tree": {"kids": [{"kids": 5}]}}, r"`tree.kids\[0\].kids`: expected array, got integer 5"),
    ],
)
def test_b029_a_fault_names_its_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArguments, match=field):
        ArgumentValidator(TREE).validate(arguments)


def test_every_fault_is_named_in_one_message() -> None:
    validator = ArgumentValidator(
        {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]}
    )
    with pytest.raises(InvalidArguments) as caught:
        validator.validate({"a": "x"})
    assert set(str(caught.value).split("; ")) == {'`a`: expected integer, got string "x"', "`b` is missing"}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}},
        {"properties": {"a": {"$ref": "#/$defs/Missing"}}},
        {"properties": {"a": {"type": "strnig"}}},
        {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_when_it_is_compiled(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaInvalid):
        ArgumentValidator(schema)


def test_a_hostile_pattern_takes_no_longer_than_its_input() -> None:
    validator = closed(x={"type": "string", "pattern": "^(a+)+$"})
    began = time.monotonic()
    with pytest.raises(InvalidArguments):
        validator.validate({"x": "a" * 50_000 + "!"})
    assert time.monotonic() - began < 2


def test_references_in_a_circle_do_not_hang() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
    }
    try:
        ArgumentValidator(schema).validate({"a": "5"})
    except (SchemaInvalid, InvalidArguments):
        return


SELVES: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"type": "object", "allOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]},
    {"type": "object", "anyOf": [{"$ref": "#"}] * 50},
    {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 50 + [{"type": "null"}]}}},
]


@pytest.mark.parametrize("schema", SELVES, ids=["root", "all of it", "any of it", "alternatives"])
def test_a_schema_that_leads_back_to_itself_at_once_ends(schema: dict[str, Any]) -> None:
    """B029."""
    for dialect in DIALECTS:
        assert in_dialect(schema, dialect).parameters["type"] == "object"
    validator = ArgumentValidator(schema)
    for arguments in ({}, {"a": "5"}, {"a": None}):
        with contextlib.suppress(InvalidArguments):
            validator.validate(dict(arguments))
