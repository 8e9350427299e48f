"""Where schemas stand inside a schema.

Pure. Knows the keywords of JSON Schema that hold others, and nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Schema = dict[str, Any]

# Deeper than any model could follow. What lies below takes anything; the gateway's own validator still knows it all.
MAX_DEPTH: Final = 48

NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
LISTED: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
# Keywords whose value is a schema, or `true` or `false` in the place of one.
SINGLE: Final = frozenset(
    "items additionalItems contains additionalProperties propertyNames not if then else contentSchema unevaluatedItems "
    "unevaluatedProperties".split()
)


def mapped(schema: Any, change: Callable[[Schema], Schema], depth: int = 0) -> Any:
    """A copy in which every schema was changed, the inner ones first. Booleans and what is no schema stay."""
    if not isinstance(schema, Mapping):
        return schema
    if depth > MAX_DEPTH:
        return {}
    out: Schema = {}
    for key, value in schema.items():
        if key in NAMED and isinstance(value, Mapping):
            out[key] = {name: mapped(inner, change, depth + 1) for name, inner in value.items()}
        elif (key in LISTED or key == "items") and isinstance(value, list):
            out[key] = [mapped(inner, change, depth + 1) for inner in value]
        elif key in SINGLE:
            out[key] = mapped(value, change, depth + 1)
        else:
            out[key] = value
    return change(out)


def within(schema: Any, depth: int = 0) -> Iterator[Schema]:
    """A schema and every schema in it, as deep as `mapped` goes."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return
    yield dict(schema)
    for key, value in schema.items():
        inner: Any = ()
        if key in NAMED and isinstance(value, Mapping):
            inner = value.values()
        elif (key in LISTED or key == "items") and isinstance(value, list):
            inner = value
        elif key in SINGLE:
            inner = (value,)
        for each in inner:
            yield from within(each, depth + 1)


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types a schema names itself; empty where it names none."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(each for each in kind if isinstance(each, str)) if isinstance(kind, list) else ()
