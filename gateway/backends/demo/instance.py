"""Makes a value that a JSON Schema accepts.

Pure. Serves forced tool calls and structured answers: takes known values where they fit, else an example, a default, the
first of an enumeration, or the smallest value of the type. Does not solve `pattern`, `not` or conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.backends.demo.slots import narrow

Known = Callable[[str, Mapping[str, Any]], Any]
NOTHING: Final = object()
_FORMATS: Final = {
    "date": "2024-01-01",
    "date-time": "2024-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "demo@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
    "duration": "P1D",
}
# Deeper than any answer is read; a schema that contains itself stops here.
_DEPTH: Final = 6


def make_instance(
    schema: Mapping[str, Any], known: Known, *, name: str = "", root: Mapping[str, Any] | None = None
) -> Any:
    """A value for `schema`. `known(name, schema)` may supply a property's value, or `NOTHING`."""
    return _make(schema, known, name, schema if root is None else root, 0)


def _make(schema: Any, known: Known, name: str, root: Mapping[str, Any], depth: int) -> Any:
    narrowed = narrow(schema, root)
    kind = narrowed.get("type")
    given = _given(narrowed, known, name)
    if given is not NOTHING:
        return given
    if kind == "object" or "properties" in narrowed:
        return _object(narrowed, known, root, depth)
    if kind == "array":
        return _array(narrowed, known, name, root, depth)
    if kind in ("integer", "number"):
        return _number(narrowed, whole=kind == "integer")
    if kind is None and depth == 0 and not name:
        return {}
    if kind == "boolean":
        return False
    return None if kind == "null" else _string(narrowed)


def _given(schema: Mapping[str, Any], known: Known, name: str) -> Any:
    """What is known, or what the schema itself names; `NOTHING` where it names nothing."""
    if "const" in schema:
        return schema["const"]
    if name and schema.get("type") not in ("object", "array"):
        value = known(name, schema)
        if value is not NOTHING and fits(value, schema):
            return value
    for source in ("enum", "examples"):
        if isinstance(schema.get(source), list) and schema[source]:
            return schema[source][0]
    for source in ("default", "example"):
        if source in schema and fits(schema[source], schema):
            return schema[source]
    return NOTHING


def _object(schema: Mapping[str, Any], known: Known, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = [str(key) for key in schema.get("required") or ()]
    names = [key for key in properties if key in required or depth < _DEPTH // 2]
    names += [key for key in required if key not in properties]
    if depth >= _DEPTH:
        return {}
    return {key: _make(properties.get(key, {"type": "string"}), known, key, root, depth + 1) for key in names}


def _array(schema: Mapping[str, Any], known: Known, name: str, root: Mapping[str, Any], depth: int) -> list[Any]:
    items = schema.get("prefixItems")
    if isinstance(items, list):
        return [_make(item, known, name, root, depth + 1) for item in items]
    # One item shows a reader what the list holds, unless the schema forbids it or goes on for ever.
    count = max(int(schema.get("minItems") or 0), 1 if depth < _DEPTH // 2 else 0)
    count = min(count, int(schema.get("maxItems", count)))
    made = [_make(schema.get("items", {"type": "string"}), known, name, root, depth + 1) for _ in range(count)]
    if schema.get("uniqueItems") and len(made) > 1:
        made = [item + index if isinstance(item, int) else f"{item}{index or ''}" for index, item in enumerate(made)]
    return made


def _number(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf") or (1 if whole else None)
    value: float = 0
    if low is not None and value < low:
        value = low
    if over is not None and value <= over:
        value = over + (step or 1)
    if high is not None and value > high:
        value = high
    if under is not None and value >= under:
        value = under - (step or 1)
    if step:
        value = math.ceil(value / step) * step
        if (high is not None and value > high) or (under is not None and value >= under):
            value -= step
    return int(value) if whole or float(value).is_integer() else value


def _string(schema: Mapping[str, Any]) -> str:
    text = _FORMATS.get(str(schema.get("format")), "")
    least = int(schema.get("minLength") or 0)
    if len(text) < least:
        text = (text + "demo " * least)[:least]
        text = text[:-1] + "o" if text.endswith(" ") else text
    most = schema.get("maxLength")
    return text if most is None else text[: int(most)]


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a plain value meets a schema's type, enumeration and bounds."""
    kind = schema.get("type")
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return False
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if kind == "integer" and not float(value).is_integer():
            return False
        return (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and not value <= schema.get("exclusiveMinimum", value - 1)
            and not value >= schema.get("exclusiveMaximum", value + 1)
            and (not schema.get("multipleOf") or float(value / schema["multipleOf"]).is_integer())
        )
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return (
            isinstance(value, str)
            and int(schema.get("minLength") or 0) <= len(value)
            and (schema.get("maxLength") is None or len(value) <= int(schema["maxLength"]))
        )
    return kind is None or (kind == "null" and value is None) or (kind == "array" and isinstance(value, list))
