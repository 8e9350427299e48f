"""Which JSON Schemas are sure to compile, without a compiler.

Pure. Knows the keywords that most tools' parameters are made of. What it does not know may be valid all the same.
"""

from __future__ import annotations

from typing import Any, Final

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_TEXTS: Final = frozenset({"title", "description"})
_NUMBERS: Final = frozenset({"minimum", "maximum"})
_DEEPEST: Final = 16
_LARGEST: Final = 2**53


def is_plain(schema: Any, depth: int = 0) -> bool:
    """Whether a schema holds nothing but types, properties, items and what is said of them, each as it has to be."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return False
    return all(_is_right(keyword, value, depth) for keyword, value in schema.items())


def _is_right(keyword: Any, value: Any, depth: int) -> bool:
    if keyword in _TEXTS:
        return _is_text(value)
    if keyword in _NUMBERS:
        return _is_number(value)
    match keyword:
        case "type":
            return isinstance(value, str) and value in _TYPES
        case "properties":
            return isinstance(value, dict) and all(
                # What begins so may mean more than a name to whoever looks for references.
                _is_text(name) and not name.startswith("$") and is_plain(inner, depth + 1)
                for name, inner in value.items()
            )
        case "items":
            return is_plain(value, depth + 1)
        case "required":
            return isinstance(value, list) and _are_distinct_texts(value)
        case "additionalProperties":
            return isinstance(value, bool)
        case "enum":
            return isinstance(value, list) and bool(value) and _are_distinct_texts(value)
        case "default":
            return value is None or isinstance(value, bool) or _is_number(value) or _is_text(value)
        case _:
            return False


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _are_distinct_texts(values: list[Any]) -> bool:
    return all(map(_is_text, values)) and len(set(values)) == len(values)
