"""A schema in which everything has a type, as Google's API wants it.

Pure. Source: the `Schema` type of the Gemini API. litellm translates for it and loses what it does not know (`const`, `oneOf`,
`allOf`, lists of schemas, schemas without a type become objects): said in other words, it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.chat.schemas.plain import together
from gateway.chat.schemas.walk import Schema, mapped, types_of

_SCALARS: Final = ("string", "number", "boolean")
_OF_TYPE: Final = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
}
_JSON_TYPES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    ((list, tuple), "array"),
    (dict, "object"),
)
_WORDS: Final = frozenset({"title", "description", "default", "examples"})
_UNKNOWN: Final = frozenset(
    "not if then else patternProperties propertyNames dependentSchemas dependentRequired dependencies contains minContains "
    "maxContains unevaluatedItems unevaluatedProperties additionalItems contentSchema const allOf oneOf prefixItems "
    "uniqueItems multipleOf exclusiveMinimum exclusiveMaximum".split()
)


def typed(schema: Schema) -> Schema:
    """The schema, which has no references, with a type everywhere. What takes any value takes a text, number, truth value,
    list of these, or object.
    """
    changed: Schema = mapped(schema, _typed)
    return changed


def anything() -> Schema:
    """What takes any value, as far as types can say so."""
    scalars = [{"type": kind} for kind in _SCALARS]
    return {"anyOf": [*scalars, {"type": "array", "items": {"anyOf": scalars}}, {"type": "object"}, {"type": "null"}]}


def _typed(schema: Schema) -> Schema:
    out = {key: value for key, value in schema.items() if key not in _UNKNOWN}
    if "const" in schema and "enum" not in out:
        out["enum"] = [schema["const"]]
    if "oneOf" in schema and "anyOf" not in out:
        out["anyOf"] = schema["oneOf"]
    if types_of(schema) == ("integer",):
        if isinstance(over := schema.get("exclusiveMinimum"), (int, float)):
            out["minimum"] = max(math.floor(over) + 1, schema.get("minimum", math.floor(over) + 1))
        if isinstance(under := schema.get("exclusiveMaximum"), (int, float)):
            out["maximum"] = min(math.ceil(under) - 1, schema.get("maximum", math.ceil(under) - 1))
    listed = schema.get("prefixItems", schema.get("items"))
    if isinstance(listed, list):
        rest = schema.get("items" if "prefixItems" in schema else "additionalItems")
        kinds = [*listed, *([rest] if isinstance(rest, Mapping) else [] if rest is False else [anything()])]
        out["items"] = together(kinds)
    for branch in schema.get("allOf", ()):
        if isinstance(branch, Mapping):
            out = _both(out, branch)
    return _with_types(out)


def _with_types(schema: Schema) -> Schema:
    words = {key: value for key, value in schema.items() if key in _WORDS}
    base = {key: value for key, value in schema.items() if key not in words and key != "anyOf"}
    if "anyOf" in schema:
        branches = [
            _both(base, branch) if base else branch for branch in schema["anyOf"] if isinstance(branch, Mapping)
        ]
        return {**words, "anyOf": branches} if branches else {**words, **_alone(base)}
    return {**words, **_alone(base)}


def _alone(schema: Schema) -> Schema:
    """A schema without alternatives as one of one type, or as alternatives of one type each."""
    kinds = types_of(schema) or _types_of_values(schema.get("enum", ()))
    if not kinds:
        # Whoever speaks of a length and of nothing else means a text.
        kinds = tuple(
            kind for kind, keys in _OF_TYPE.items() if kind != "integer" and any(key in schema for key in keys)
        )
    if not kinds:
        return anything()
    return _of_type(kinds[0], schema) if len(kinds) == 1 else {"anyOf": [_of_type(kind, schema) for kind in kinds]}


def _of_type(kind: str, schema: Schema) -> Schema:
    out: Schema = {"type": kind, **{key: schema[key] for key in _OF_TYPE.get(kind, ()) if key in schema}}
    values = schema.get("enum")
    if isinstance(values, list):
        fitting = [value for value in values if kind in _types_of_values([value])]
        if kind == "number":
            fitting = [value for value in values if {"number", "integer"} & {*_types_of_values([value])}]
        if fitting and kind != "null":
            out["enum"] = fitting
    return out


def _types_of_values(values: Sequence[Any]) -> tuple[str, ...]:
    found: list[str] = []
    for value in values:
        kind = next((name for kinds, name in _JSON_TYPES if isinstance(value, kinds)), "null")
        if kind not in found:
            found.append(kind)
    return tuple(found)


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> Schema:
    """What takes the values that both take, as far as it can be said; at least those."""
    out: Schema = {**other, **one}
    for key in one.keys() & other.keys():
        mine, its = one[key], other[key]
        if key == "properties":
            out[key] = {
                **its,
                **{name: _both(inner, its[name]) if name in its else inner for name, inner in mine.items()},
            }
        elif key == "required":
            out[key] = [*mine, *(name for name in its if name not in mine)]
        elif key == "enum":
            out[key] = [value for value in mine if value in its] or mine
        elif key in ("minimum", "minLength", "minItems"):
            out[key] = max(mine, its)
        elif key in ("maximum", "maxLength", "maxItems"):
            out[key] = min(mine, its)
        elif key == "type":
            common = [kind for kind in types_of(one) if kind in types_of(other)]
            if not common and {"integer", "number"} == {*types_of(one), *types_of(other)}:
                common = ["integer"]
            out[key] = common[0] if len(common) == 1 else common or mine
    if ("additionalProperties" in one) != ("additionalProperties" in other) and "properties" in out:
        # Closed is only what both know all the names of.
        del out["additionalProperties"]
    return out
