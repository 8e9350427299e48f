"""A schema in any dialect takes what it took before."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.chat.schemas.dialect import DIALECTS, Shaped, in_dialect
from gateway.chat.schemas.references import has_references
from gateway.tools.spec import InvalidArguments
from gateway.tools.validate import ArgumentValidator
from tests.chat.recordings import FOLDER
from tests.chat.schemas.values import ANY, near

NODE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"mode": {"$ref": "#/$defs/Mode"}, "tree": {"$ref": "#/$defs/Node"}},
    "required": ["mode"],
    "additionalProperties": False,
    "$defs": {"Mode": {"type": "string", "enum": ["fast", "full"]}, "Node": NODE},
}


def recorded() -> list[Any]:
    """Every schema that real clients sent, each once."""
    found: dict[str, Any] = {}

    def look(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else ():
            named = key in ("parameters", "input_schema", "inputSchema", "schema")
            if named and isinstance(inner, dict) and {"type", "properties"} & inner.keys():
                found[json.dumps(inner, sort_keys=True)] = inner
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(inner)

    for file in sorted((FOLDER / "clients").glob("*.jsonl")) if FOLDER.exists() else ():
        for line in file.read_text("utf-8").splitlines():
            look(json.loads(line))
    return list(found.values())


RECORDED = recorded()


def takes(validator: Any, value: Any) -> bool:
    return bool(validator.is_valid(value))


def compiled(schema: Any) -> Any:
    return jsonschema_rs.validator_for(schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True)


def completed(value: Any, schema: Any) -> Any:
    """A value as strict mode writes it: null for each property that was left out."""
    if isinstance(schema, dict) and {"type": "null"} in schema.get("anyOf", ()):
        schema = schema["anyOf"][0]
    if isinstance(value, dict) and isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        named = schema["properties"]
        value = {name: completed(inner, named.get(name)) for name, inner in value.items()}
        return {**{name: None for name in named if name not in value}, **value}
    if isinstance(value, list) and isinstance(schema, dict):
        return [completed(inner, schema.get("items")) for inner in value]
    return value


def understood(schema: Any, value: Any) -> Any:
    """What the gateway makes of arguments, or None where it refuses them."""
    try:
        return ArgumentValidator(schema).validate(value)
    except InvalidArguments:
        return None


@pytest.mark.skipif(not RECORDED, reason="the recordings of real clients are not here")
@settings(max_examples=30, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_schemas_of_real_clients_take_the_same_values_in_every_dialect(data: Any) -> None:
    for schema, before, shaped in in_every_dialect():
        value = data.draw(near(schema, schema) | st.dictionaries(st.sampled_from(["a", "x"]), ANY, max_size=2))
        taken = takes(before, value)
        for form, after in shaped:
            if not form.strict:
                assert taken == takes(after, value), (schema, form.parameters, value)
                continue
            full = completed(value, form.parameters)
            if taken:
                assert takes(after, full), (schema, value)
            if takes(after, full):
                assert understood(schema, full) is not None, (schema, value)


@cache
def in_every_dialect() -> list[tuple[Any, Any, list[tuple[Shaped, Any]]]]:
    """The clients' schemas, each with what it looks like in every dialect, compiled."""
    found = []
    for schema in RECORDED:
        shaped = [in_dialect(schema, dialect) for dialect in DIALECTS]
        found.append((schema, compiled(schema), [(form, compiled(form.parameters)) for form in shaped]))
    return found


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """An object's schema with definitions that name each other, themselves too."""
    names = ["A", "B", "C"]
    words = st.fixed_dictionaries({}, optional={"description": st.just("said"), "default": st.just(1)})
    leaf = st.one_of(
        st.sampled_from([{}, {"type": "string"}, {"type": ["string", "null"]}, {"type": "array"}, {"const": 3}, True]),
        st.sampled_from(
            [{"enum": ["a", 1, None]}, {"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 2}]
        ),
        st.builds(lambda name, more: {"$ref": f"#/$defs/{name}", **more}, st.sampled_from(names), words),
    )

    def grown(inner: Any) -> Any:
        named = st.dictionaries(st.sampled_from(["a", "b", "x"]), inner, max_size=2)
        objects = st.builds(
            lambda properties, required, closed: {
                "type": "object",
                "properties": properties,
                **({"required": sorted(properties)[:1]} if required else {}),
                **({"additionalProperties": False} if closed else {}),
            },
            named,
            st.booleans(),
            st.booleans(),
        )
        branches = st.lists(inner, min_size=1, max_size=2)
        return st.one_of(
            objects,
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda found: {"type": "array", "prefixItems": found}, branches),
            st.builds(lambda key, found: {key: found}, st.sampled_from(["anyOf", "oneOf", "allOf"]), branches),
            st.builds(lambda found: {"not": found}, inner),
        )

    anything = st.recursive(leaf, grown, max_leaves=5)
    parameters = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), anything, min_size=1, max_size=3))
    return {"type": "object", "properties": parameters, "$defs": {name: draw(anything) for name in names}}


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_dialect_refuses_what_a_schema_takes(data: Any) -> None:
    schema = data.draw(schemas())
    try:
        before = compiled(schema)
    except (ValueError, jsonschema_rs.ReferencingError):
        return
    value = data.draw(near(schema, schema))
    for dialect in DIALECTS:
        shaped = in_dialect(schema, dialect)
        after = compiled(shaped.parameters)
        if dialect in ("whole", "inlined", "grammar") and takes(before, value):
            assert takes(after, value), (dialect, shaped)
        if dialect == "whole":
            assert takes(after, value) == takes(before, value)
        if dialect in ("inlined", "typed"):
            assert not has_references(shaped.parameters)


def test_what_contains_itself_is_written_out_three_times_and_takes_whatever_lies_deeper() -> None:
    shaped = in_dialect(TREE, "inlined").parameters
    assert shaped["properties"]["mode"] == {"type": "string", "enum": ["fast", "full"]}
    assert shaped["additionalProperties"] is False
    assert not has_references(shaped)
    assert "$defs" not in shaped
    tree: dict[str, Any] = {"kids": [5]}
    for _ in range(2):
        tree = {"kids": [tree]}
    assert not takes(compiled(shaped), {"mode": "fast", "tree": tree})
    assert takes(compiled(shaped), {"mode": "fast", "tree": {"kids": [{"kids": [{"kids": [{"kids": "any"}]}]}]}})


def test_references_to_references_end_somewhere() -> None:
    names = [f"D{number}" for number in range(60)]
    doubled = {
        name: {"type": "object", "properties": {key: {"$ref": f"#/$defs/{after}"} for key in "ab"}}
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": doubled}
    assert len(json.dumps(in_dialect(schema, "inlined").parameters)) < 1_000_000
    looped = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert in_dialect(looped, "inlined").parameters["properties"] == {"a": {}}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    for dialect in DIALECTS:
        in_dialect({"type": "object", "properties": {"a": deep}}, dialect)


@pytest.mark.parametrize(
    ("schema", "plainly"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            {"type": "object", "properties": {"a": {"type": "string"}}},
        ),
        (
            {"properties": {"a": True, "b": {"type": "array"}, "c": False}},
            {"type": "object", "properties": {"a": {}, "b": {"type": "array", "items": {}}, "c": {"not": {}}}},
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}},
                "anyOf": [{"required": ["a"]}, {"properties": {"b": {"const": 1}}}],
            },
            {"type": "object", "properties": {"a": {}, "b": {"const": 1}}},
        ),
        (
            {"allOf": [{"required": ["a"], "properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
        ),
    ],
)
def test_every_tool_takes_one_object(schema: Any, plainly: Any) -> None:
    found = in_dialect(schema, "whole").parameters
    found.pop("$defs", None)
    assert found == plainly


@pytest.mark.parametrize(
    "part",
    [
        {"type": "object"},
        {"type": "object", "properties": {"b": {"type": "string"}}},
        {},
        {"type": "string", "minLength": 2},
        {"allOf": [{"type": "string"}]},
        {"not": {"type": "string"}},
    ],
)
def test_strict_mode_is_for_schemas_it_can_say(part: Any) -> None:
    def asked(inner: Any) -> Shaped:
        return in_dialect({"type": "object", "properties": {"a": inner}, "additionalProperties": False}, "strict")

    assert asked({"type": "string"}).strict
    assert not asked(part).strict
    assert asked({"type": "string", "description": "d", "default": "x"}).parameters == {
        "type": "object",
        "properties": {"a": {"description": "d", "anyOf": [{"type": "string"}, {"type": "null"}]}},
        "additionalProperties": False,
        "required": ["a"],
    }


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        (
            {"type": ["string", "null"], "minLength": 1},
            {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
        ),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, {"type": "string", "minLength": 2}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"enum": ["a", 1]}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [1]}]}),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
            {"type": "array", "items": {"type": "string"}},
        ),
    ],
)
def test_every_schema_has_a_type_where_types_are_asked_for(part: Any, said: Any) -> None:
    assert in_dialect({"properties": {"a": part}}, "typed").parameters["properties"]["a"] == said


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "string", "pattern": "^[a-z]{2}$"}, {"type": "string", "pattern": "^[a-z]{2}$"}),
        ({"type": "string", "pattern": "a+"}, {"type": "string"}),
        ({"type": "string", "pattern": "^(?i)a$"}, {"type": "string"}),
        ({"type": "string", "format": "email", "maxLength": 100_000}, {"type": "string"}),
        ({"oneOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}]}),
        ({"type": "array", "uniqueItems": True}, {"type": "array", "items": {}}),
    ],
)
def test_a_grammar_is_told_what_it_can_hold(part: Any, said: Any) -> None:
    assert in_dialect({"properties": {"a": part}}, "grammar").parameters["properties"]["a"] == said
