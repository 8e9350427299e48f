"""OpenAPI's schemas as JSON Schema that stands alone.

Knows what OpenAPI 3.0 says otherwise than JSON Schema, and takes along what is referred to. Does not know operations.
"""

from __future__ import annotations

from typing import Any

from gateway.tools.names import callable_name
from gateway.tools.providers.openapi_document import OpenApiDocument

# Everything that says which values are valid, and what tells the model what they mean; the rest is for other readers.
_ONE = frozenset({"additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames"})
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_KEPT = frozenset(
    "type enum const format description default required minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
    "minLength maxLength pattern minItems maxItems uniqueItems minContains maxContains minProperties maxProperties "
    "dependentRequired unevaluatedProperties".split()
)
_MAX_DESCRIPTION = 1000
# Deeper than any schema that a model could fill in.
_MAX_DEPTH = 64


class TooDeep(Exception):
    """A schema is nested too deeply."""


class Schemas:
    """Converts the schemas of one tool; `definitions` is what they refer to, for the tool's `$defs`."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._waiting: list[str] = []
        self.definitions: dict[str, Any] = {}

    def convert(self, schema: Any) -> Any:
        """One schema as JSON Schema.

        Raises:
            BrokenReference: something it refers to is not there.
            TooDeep: it is nested too deeply.
        """
        made = self._convert(schema, 0)
        while self._waiting:
            # One after the other: a long chain of references is no deep recursion.
            reference = self._waiting.pop()
            self.definitions[self._names[reference]] = self._convert(self._document.at(reference), 0)
        return made

    def _convert(self, schema: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise TooDeep(f"a schema is nested more than {_MAX_DEPTH} deep")
        if not isinstance(schema, dict):
            return schema if isinstance(schema, bool) else {}
        out: dict[str, Any] = {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            out["$ref"] = self._definition(reference)
            if self._document.is_30:
                return out
        for key, value in schema.items():
            if key in _ONE:
                out[key] = self._convert(value, depth + 1)
            elif key in _MANY and isinstance(value, list):
                out[key] = [self._convert(item, depth + 1) for item in value]
            elif key in _NAMED and isinstance(value, dict):
                kept = {name: item for name, item in value.items() if key != "properties" or not self.is_answer(item)}
                out[key] = {name: self._convert(item, depth + 1) for name, item in kept.items()}
            elif key in _KEPT:
                out[key] = value
        return self._mended(schema, out)

    def is_answer(self, schema: Any) -> bool:
        """Whether a property stands in answers only."""
        return isinstance(schema, dict) and schema.get("readOnly") is True

    def _mended(self, schema: dict[str, Any], out: dict[str, Any]) -> dict[str, Any]:
        properties = schema.get("properties")
        if isinstance(properties, dict) and isinstance(out.get("required"), list):
            needed = [name for name in out["required"] if not self.is_answer(properties.get(name))]
            out["required"] = needed
            if not needed:
                del out["required"]
        if isinstance(out.get("description"), str):
            out["description"] = out["description"].strip()[:_MAX_DESCRIPTION]
        if not isinstance(out.get("required", []), list):
            # OpenAPI 2's `required: true` at a property is a common slip.
            del out["required"]
        return self._mended_30(schema, out) if self._document.is_30 else out

    def _mended_30(self, schema: dict[str, Any], out: dict[str, Any]) -> dict[str, Any]:
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(out.get(exclusive), bool) and out.pop(exclusive) and bound in out:
                out[exclusive] = out.pop(bound)
        if schema.get("nullable") is not True:
            return out
        if isinstance(out.get("type"), str):
            out["type"] = [out["type"], "null"]
            if isinstance(out.get("enum"), list) and None not in out["enum"]:
                out["enum"] = [*out["enum"], None]
            return out
        told: dict[str, Any] = {key: out.pop(key) for key in ("description", "default") if key in out}
        return {**told, "anyOf": [out, {"type": "null"}]}

    def _definition(self, reference: str) -> str:
        name = self._names.get(reference)
        if name is None:
            wanted = callable_name(reference.rsplit("/", 1)[-1])
            taken = set(self._names.values())
            name = next(each for each in _numbered(wanted) if each not in taken)
            self._names[reference] = name
            self._document.at(reference)
            self._waiting.append(reference)
        return f"#/$defs/{name}"


def _numbered(name: str) -> Any:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1
