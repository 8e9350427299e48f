"""A schema as OpenAI's strict mode takes it, where it can be said so.

Pure. Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas. Every object is closed and requires
all its properties: what is optional may be null instead, and such a null counts as nothing when the call comes.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.chat.schemas.walk import Schema, mapped, types_of, within

MAX_PROPERTIES: Final = 5000
MAX_ENUM_VALUES: Final = 1000
MAX_NESTED: Final = 10

_KNOWN: Final = frozenset(
    "type properties required additionalProperties items anyOf enum const $ref $defs definitions minItems maxItems minimum "
    "maximum exclusiveMinimum exclusiveMaximum multipleOf pattern format title description".split()
)
_LEFT_OUT: Final = frozenset({"default", "examples", "$schema", "$comment", "deprecated"})
_FORMATS: Final = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())


def strict(schema: Schema) -> Schema | None:
    """The schema in strict mode's words, or None where they would take other values than it does."""
    schemas = list(within(schema))
    if any(not _can_be_said(each) for each in schemas) or _depth(schema) > MAX_NESTED:
        return None
    if sum(len(each.get("properties", ())) for each in schemas) > MAX_PROPERTIES:
        return None
    if sum(len(each.get("enum", ())) for each in schemas) > MAX_ENUM_VALUES:
        return None
    changed: Schema = mapped(schema, _closed)
    return changed


def _can_be_said(schema: Schema) -> bool:
    if not schema.keys() <= _KNOWN | _LEFT_OUT:
        return False
    if "$ref" in schema:
        return schema.keys() <= {"$ref"} and str(schema["$ref"]).startswith("#")
    if "properties" in schema or "object" in types_of(schema):
        # An open object would be closed, which is another.
        return schema.get("additionalProperties") is False and isinstance(schema.get("properties"), dict)
    return bool(types_of(schema)) or "anyOf" in schema


def _closed(schema: Schema) -> Schema:
    out = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if out.get("format", "date") not in _FORMATS:
        del out["format"]
    if "properties" in out:
        required = out.get("required", ())
        out["properties"] = {
            name: inner if name in required else _or_null(inner) for name, inner in out["properties"].items()
        }
        out["required"] = list(out["properties"])
    return out


def _or_null(schema: Any) -> Any:
    if "null" in types_of(schema) or {"type": "null"} in schema.get("anyOf", ()):
        return schema
    words = {key: schema[key] for key in ("title", "description") if key in schema}
    return {**words, "anyOf": [{key: value for key, value in schema.items() if key not in words}, {"type": "null"}]}


def _depth(schema: Any) -> int:
    """How many objects and lists lie within each other."""
    if isinstance(schema, dict):
        inner = [_depth(each) for each in schema.values()]
        return max(inner, default=0) + bool(types_of(schema) and {"object", "array"} & {*types_of(schema)})
    return max((_depth(each) for each in schema), default=0) if isinstance(schema, list) else 0
