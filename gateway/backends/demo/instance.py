"""Makes a value that a JSON Schema accepts.

Pure. Serves forced tool calls and structured answers: takes known values where they fit, else an example, a default, the
first of an enumeration, or the smallest value of the type. Does not solve `not`, conditions or a `oneOf` whose
alternatives overlap: `accepts` says whether it did well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import jsonschema_rs

from gateway.backends.demo.patterns import text_for
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
# Beyond the first only what is required is made; a schema that contains itself ends at the second, and one that does so
# in many places at the third: the number of values made.
_SHALLOW: Final = 3
_DEEPEST: Final = 24
_MOST_VALUES: Final = 2000
# Characters of all texts that are made together: a schema may ask for as many as it likes.
_MOST_CHARACTERS: Final = 100_000


def make_instance(
    schema: Mapping[str, Any], known: Known, *, name: str = "", root: Mapping[str, Any] | None = None
) -> Any:
    """A value for `schema`, None for one that is none. `known(name, schema)` may supply a property's value, or `NOTHING`."""
    try:
        return _Making(known, schema if root is None else root).make(schema, name, 0)
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        # Bounds that are no numbers, or too large for any: `accepts` says what is wrong with it.
        return None


def accepts(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether the schema takes the value.

    Raises:
        ValueError: it is no schema that can be read.
    """
    try:
        validator = jsonschema_rs.validator_for(
            dict(schema), pattern_options=jsonschema_rs.RegexOptions(), offline=True, validate_formats=True
        )
    except jsonschema_rs.ReferencingError as error:
        raise ValueError(str(error)) from error
    return bool(validator.is_valid(value))


class _Making:
    """One value on its way. `left` is how many more may be made, `room` how many characters of texts."""

    def __init__(self, known: Known, root: Mapping[str, Any]) -> None:
        self._known = known
        self._root = root
        self._left = _MOST_VALUES
        self._room = _MOST_CHARACTERS

    def make(self, schema: Any, name: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST or (depth > _SHALLOW and _takes_null(schema)):
            return None
        narrowed = narrow(schema, self._root)
        kind = narrowed.get("type")
        given = _given(narrowed, self._known, name)
        if given is not NOTHING:
            return given
        if kind == "object" or "properties" in narrowed:
            return self._object(narrowed, depth)
        if kind == "array":
            return self._array(narrowed, name, depth)
        if kind in ("integer", "number"):
            return _number(narrowed, whole=kind == "integer")
        if kind is None and depth == 0 and not name:
            return {}
        if kind == "boolean":
            return False
        return None if kind == "null" else self._string(narrowed)

    def _string(self, schema: Mapping[str, Any]) -> str:
        text = _string(schema, self._room)
        self._room -= len(text)
        return text

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = [str(key) for key in schema.get("required") or ()]
        names = [key for key in properties if key in required or depth < _SHALLOW]
        names += [key for key in required if key not in properties]
        rest = schema.get("additionalProperties")
        rest = rest if isinstance(rest, dict) else {"type": "string"}
        missing = min(int(schema.get("minProperties") or 0), _MOST_VALUES) - len(names)
        names += [f"key_{number}" for number in range(1, missing + 1)]
        return {key: self.make(properties.get(key, rest), key, depth + 1) for key in names}

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        items = schema.get("prefixItems")
        if isinstance(items, list):
            return [self.make(item, name, depth + 1) for item in items]
        # One item shows a reader what the list holds, unless the schema forbids it or goes on for ever.
        count = max(int(schema.get("minItems") or 0), 1 if depth < _SHALLOW else 0)
        count = min(count, int(schema.get("maxItems", count)), _MOST_VALUES)
        inner = schema.get("items", {"type": "string"})
        if schema.get("uniqueItems") and count > 1:
            options = narrow(inner, self._root).get("enum")
            if isinstance(options, list):
                return options[:count]
        made = [self.make(inner, name, depth + 1) for _ in range(count)]
        if schema.get("uniqueItems") and len(made) > 1:
            made = [
                item + index if isinstance(item, int) else f"{item}{index or ''}" for index, item in enumerate(made)
            ]
        return made


def _takes_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        return True
    options = [option for union in ("anyOf", "oneOf") for option in schema.get(union) or ()]
    return any(isinstance(option, dict) and option.get("type") == "null" for option in options)


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


def _string(schema: Mapping[str, Any], room: int) -> str:
    if isinstance(schema.get("pattern"), str):
        return text_for(schema["pattern"])
    text = _FORMATS.get(str(schema.get("format")), "")
    least = min(int(schema.get("minLength") or 0), max(room, 0))
    if len(text) < least:
        text = (text + "demo " * least)[:least]
        text = text[:-1] + "o" if text.endswith(" ") else text
    most = schema.get("maxLength")
    return text if most is None else text[: int(most)]


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a plain value meets a schema's type, enumeration and bounds; none meets bounds that are no numbers."""
    try:
        return _fits(value, schema)
    except (ValueError, TypeError, ArithmeticError):
        return False


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
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
            and _matches(value, schema)
        )
    return kind is None or (kind == "null" and value is None) or (kind == "array" and isinstance(value, list))


def _matches(value: str, schema: Mapping[str, Any]) -> bool:
    form = {key: schema[key] for key in ("pattern", "format") if isinstance(schema.get(key), str)}
    try:
        return not form or accepts(form, value)
    except ValueError:
        return False
