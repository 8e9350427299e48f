"""A call's arguments, held against the tool's schema.

Knows JSON Schema (compiled once, with a regex engine that is linear in its input), lossless coercion, and how to tell a
model what to mend. Does not know where a tool comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gateway.tools.plain_schema import is_plain
from gateway.tools.salvage import strict_value
from gateway.tools.spec import InvalidArguments

if TYPE_CHECKING:
    import jsonschema_rs

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,18})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_MOST_FAULTS = 5
_EXACT_FLOAT = 2**53


class SchemaInvalid(Exception):
    """A tool's parameters are not a JSON Schema that can be compiled."""


class ArgumentValidator:
    """Validates the arguments of one tool."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take a schema. Nothing is fetched: references have to resolve within it.

        Raises:
            SchemaInvalid: it is no valid schema, a reference leads nowhere, or a pattern needs backtracking.
        """
        self._schema = dict(schema)
        # What alternatives take, by the schema that they stand in; each is part of this one, and lives as long.
        self._alternatives: dict[int, frozenset[str]] = {}
        # Of one that is sure to compile, the first call does: the compiler takes 6 MB, and most gateways' tools are plain.
        self._compiled = None if is_plain(self._schema) else _compiled(self._schema)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, coerced where nothing is lost: "5" to 5, 5.0 to 5, "true" to true, null for an optional to none.

        Raises:
            InvalidArguments: names each field that is wrong, what was expected and what came.
        """
        coerced: dict[str, Any] = self._coerce(arguments, self._schema, 0)
        if self._compiled is None:
            self._compiled = _compiled(self._schema)
        faults = [_fault(error, self._schema) for error in self._compiled.iter_errors(coerced)]
        if faults:
            more = f" (and {len(faults) - _MOST_FAULTS} more)" if len(faults) > _MOST_FAULTS else ""
            raise InvalidArguments("; ".join(faults[:_MOST_FAULTS]) + more)
        return coerced

    def _coerce(self, value: Any, schema: Any, depth: int) -> Any:
        schema = self._resolved(schema)
        # Recursive schemas end somewhere.
        if not isinstance(schema, dict) or depth > 32:
            return value
        types = self._types(schema)
        if types and _type_of(value) not in types and not (_type_of(value) == "integer" and "number" in types):
            value = _lossless(value, types)
        if isinstance(value, dict):
            return self._coerce_object(value, schema, depth)
        if isinstance(value, list) and isinstance(schema.get("items"), dict):
            return [self._coerce(item, schema["items"], depth + 1) for item in value]
        return value

    def _coerce_object(self, value: dict[str, Any], schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return value
        required = schema.get("required", ())
        out: dict[str, Any] = {}
        for key, item in value.items():
            inner = properties.get(key)
            if inner is None:
                out[key] = item
                continue
            types = self._types(self._resolved(inner))
            if item is None and key not in required and types and "null" not in types:
                continue
            out[key] = self._coerce(item, inner, depth + 1)
        return out

    def _resolved(self, schema: Any) -> Any:
        """Follow references within the document, a few at most: they may go in circles."""
        for _ in range(8):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            schema = self._schema
            for part in reference[2:].split("/"):
                name = part.replace("~1", "/").replace("~0", "~")
                schema = schema.get(name) if isinstance(schema, dict) else None
        return schema

    def _types(self, schema: Any) -> frozenset[str]:
        """The JSON types a schema takes; empty where it doesn't say so plainly, which means: leave the value alone."""
        if not isinstance(schema, dict):
            return frozenset()
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset({kind})
        if isinstance(kind, list):
            return frozenset(kind)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(branches, list):
            return frozenset()
        if (known := self._alternatives.get(id(schema))) is not None:
            return known
        # They may lead back here, and to one another in more ways than can be walked.
        self._alternatives[id(schema)] = frozenset()
        each = [self._types(self._resolved(branch)) for branch in branches]
        types: frozenset[str] = frozenset().union(*each) if all(each) else frozenset()
        self._alternatives[id(schema)] = types
        return types


def _compiled(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(dict(schema), pattern_options=jsonschema_rs.RegexOptions(), offline=True)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        text = str(error).split("\n", 1)[0]
        path = ".".join(map(str, getattr(error, "instance_path", ())))
        raise SchemaInvalid(f"`{path}`: {text}" if path else text) from error


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _lossless(value: Any, types: frozenset[str]) -> Any:
    if isinstance(value, str):
        return _from_text(value, types)
    if isinstance(value, float) and "integer" in types and value.is_integer() and abs(value) <= _EXACT_FLOAT:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and types <= {"string", "null"}:
        return str(value)
    return value


def _from_text(text: str, types: frozenset[str]) -> Any:
    bare = text.strip()
    if "boolean" in types and bare.lower() in {"true", "false"}:
        return bare.lower() == "true"
    if types & {"integer", "number"} and _INTEGER.fullmatch(bare):
        return int(bare)
    if "number" in types and _NUMBER.fullmatch(bare) and Decimal(bare) == Decimal(repr(float(bare))):
        return float(bare)
    if types & {"array", "object"} and bare[:1] in {"[", "{"}:
        try:
            value = strict_value(bare)
        except (ValueError, RecursionError):
            return text
        return value if _type_of(value) in types else text
    return text


def _fault(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    path = _path(error.instance_path)
    about = error.kind.as_dict()
    match error.kind.name:
        case "required":
            return f"`{_path([*error.instance_path, about['property']])}` is missing"
        case "additionalProperties":
            known = ", ".join(schema.get("properties", {})) or "none"
            extra = ", ".join(f"`{_path([*error.instance_path, name])}`" for name in about["unexpected"])
            hint = "" if error.instance_path else f" (parameters: {known})"
            return f"{extra} is not a parameter{hint}"
        case "type":
            wanted = " or ".join(sorted(about["types"])) if "types" in about else str(about.get("type", "another type"))
            return f"`{path}`: expected {wanted}, got {_shown(error.instance)}"
        case "enum":
            options = ", ".join(_short(option) for option in about["options"][:20])
            return f"`{path}`: expected one of {options}, got {_shown(error.instance)}"
        case _:
            return f"`{path}`: {error.message[:300]}"


def _path(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "arguments"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def _shown(value: Any) -> str:
    return f"{_type_of(value)} {_short(value)}"
