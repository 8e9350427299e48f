"""Schemas that are sure to compile: what is called plain does, and what might not is not called so."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.plain_schema import is_plain
from gateway.tools.validate import ArgumentValidator, SchemaInvalid

NAMES = st.text(max_size=6) | st.sampled_from(["$ref", "$id", "type", "properties", "\ud800"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.text(max_size=2))
KINDS = st.sampled_from(["object", "string", "integer", "array", "text", "", "null"])
SCHEMAS = st.recursive(
    st.dictionaries(
        st.sampled_from(["type", "title", "description", "minimum", "enum", "default", "required", "pattern"]),
        KINDS | VALUES,
        max_size=4,
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": KINDS},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "items": inner,
            "required": st.lists(st.sampled_from("abc"), max_size=3),
            "additionalProperties": st.booleans() | inner,
            "enum": st.lists(st.sampled_from("abc"), max_size=3),
        },
    ),
    max_leaves=6,
)


@given(SCHEMAS)
def test_what_is_plain_compiles(schema: dict[str, Any]) -> None:
    if is_plain(schema):
        jsonschema_rs.validator_for(schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True)


def test_a_tools_usual_parameters_are_plain() -> None:
    assert is_plain(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": "integer", "minimum": 1, "default": 3},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "with": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
            "additionalProperties": False,
        }
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text"},
        {"type": ["string", "null"]},
        {"pattern": "("},
        {"$ref": "#/$defs/other"},
        {"properties": {"$id": {"type": "string"}}},
        {"minimum": "1"},
        {"enum": []},
        {"description": "\ud800"},
        True,
    ],
)
def test_what_might_not_compile_is_not_plain(part: Any) -> None:
    assert not is_plain({"type": "object", "properties": {"a": part}})


def test_what_does_not_compile_is_said_before_any_call() -> None:
    with pytest.raises(SchemaInvalid):
        ArgumentValidator({"type": "object", "properties": {"a": {"type": "text"}}})
