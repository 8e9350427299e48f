"""A schema of arguments in the form every server takes: one object at the top, and nothing left unsaid that some require.

Pure. OpenAI, Anthropic and Google refuse a tool whose schema is anything but an object at the top, OpenAI also lists that do
not say of what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.chat.schemas.references import followed, has_references
from gateway.chat.schemas.walk import Schema, mapped, types_of

# How often a chain of references at the top is followed.
_MOST_STEPS: Final = 8
# How many alternatives at the top are taken in, and how deep: they may lead back to the whole.
_MOST_BRANCHES: Final = 200
_NOT_AT_THE_TOP: Final = ("anyOf", "oneOf", "allOf", "enum", "const", "not", "if", "then", "else")
# What speaks of the document and not of a value.
_OF_THE_DOCUMENT: Final = ("$schema", "$id", "$comment")


def plain(parameters: Mapping[str, Any]) -> Schema:
    """The schema with `type: object` and `properties` at the top, no `true` or `false` where a schema stands, and `items`.

    Takes the same values, with one exception: what alternatives at the top (`anyOf` and its like) demand together is not
    demanded here. Their properties stand side by side.
    """
    root: Any = dict(parameters)
    for _ in range(_MOST_STEPS):
        if not isinstance(root, Mapping) or "$ref" not in root:
            break
        homes = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        target = followed(root, parameters)
        root = {**homes, **target} if isinstance(target, Mapping) else homes
    document = () if has_references(root) else _OF_THE_DOCUMENT
    changed: Schema = mapped({key: value for key, value in root.items() if key not in document}, _said)
    return _object(changed, parameters, [_MOST_BRANCHES])


def alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[tuple[str, Schema]]:
    """The schemas that stand together at one place, with the keyword that they stand under."""
    found = []
    for key in ("allOf", "anyOf", "oneOf"):
        branches = schema.get(key)
        for branch in branches if isinstance(branches, list) else ():
            inner = followed(branch, root)
            if isinstance(inner, Mapping):
                found.append((key, dict(inner)))
    return found


def together(schemas: Sequence[Any]) -> Any:
    """One schema that takes what any of some takes."""
    different: list[Any] = []
    for each in schemas:
        if each not in different:
            different.append(each)
    return different[0] if len(different) == 1 else {"anyOf": different}


def _said(schema: Schema) -> Schema:
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            if isinstance(value, dict):
                schema[key] = {name: _no_boolean(inner) for name, inner in value.items()}
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            schema[key] = [_no_boolean(inner) for inner in value]
        elif key in ("items", "not", "contains") and not (key == "items" and "prefixItems" in schema):
            schema[key] = [_no_boolean(inner) for inner in value] if isinstance(value, list) else _no_boolean(value)
    if "array" in types_of(schema) and "items" not in schema and "prefixItems" not in schema:
        schema["items"] = {}
    return schema


def _no_boolean(value: Any) -> Any:
    return ({} if value else {"not": {}}) if isinstance(value, bool) else value


def _object(schema: Schema, root: Mapping[str, Any], left: list[int], depth: int = 0) -> Schema:
    """The schema as one object, what stood beside it as alternatives taken in: as many as `left` says."""
    if not any(key in schema for key in _NOT_AT_THE_TOP):
        if schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping):
            return schema
        return {"type": "object", "properties": _properties(schema), **_but(schema, "type", "properties")}
    properties: dict[str, list[Any]] = {name: [inner] for name, inner in _properties(schema).items()}
    required = [*schema.get("required", ())]
    for key, branch in alternatives(schema, root) if depth < _MOST_STEPS else ():
        if left[0] <= 0:
            break
        left[0] -= 1
        inner = _object(branch, root, left, depth + 1)
        for name, value in inner["properties"].items():
            properties.setdefault(name, []).append(value)
        if key == "allOf":
            required += [name for name in inner.get("required", ()) if name not in required]
    return {
        "type": "object",
        "properties": {name: together(found) for name, found in properties.items()},
        **({"required": required} if required else {}),
        **_but(schema, "type", "properties", "required", "unevaluatedProperties", *_NOT_AT_THE_TOP),
    }


def _but(schema: Mapping[str, Any], *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}
