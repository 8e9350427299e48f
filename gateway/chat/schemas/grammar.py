"""A schema in keywords that llama.cpp makes a grammar of.

Pure. Source: llama.cpp's `common/json-schema-to-grammar.cpp` and llguidance's list of JSON Schema keywords. Each refuses a whole
request for one keyword it does not know; a grammar that lets more through is caught when the call comes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.chat.schemas.walk import Schema, mapped

# `a{0,100000}` is written out, and refused for its size.
MAX_REPEATED: Final = 1000

_KNOWN: Final = frozenset(
    "type properties required additionalProperties items prefixItems anyOf allOf enum const $ref $defs definitions minLength "
    "maxLength minItems maxItems minimum maximum exclusiveMinimum exclusiveMaximum pattern format title description default "
    "examples".split()
)
_FORMATS: Final = frozenset({"date", "time", "date-time", "uuid"})
_REPEATED: Final = ("minLength", "maxLength", "minItems", "maxItems")
# What both engines read alike: a whole-text pattern of characters, classes, groups and counts.
_PLAIN_PATTERN: Final = re.compile(r"\^(?:[^\\^$(]|\\[dws.\-/\[\]{}()+*?|\\^$]|\((?!\?))*\$", re.ASCII)


def for_grammar(schema: Schema) -> Schema:
    """The schema with those of its keywords that a grammar can hold; it takes at least the same values."""
    changed: Schema = mapped(schema, _held)
    return changed


def _held(schema: Schema) -> Schema:
    out: dict[str, Any] = {key: value for key, value in schema.items() if key in _KNOWN}
    if "oneOf" in schema and "anyOf" not in schema:
        out["anyOf"] = schema["oneOf"]
    if isinstance(out.get("items"), list):
        del out["items"]
    if "patternProperties" in schema:
        # Names that a pattern takes are more than `properties` lists.
        out.pop("additionalProperties", None)
    if out.get("format") not in _FORMATS:
        out.pop("format", None)
    pattern = out.get("pattern")
    if "format" in out or not (isinstance(pattern, str) and _PLAIN_PATTERN.fullmatch(pattern)):
        out.pop("pattern", None)
    for key in _REPEATED:
        if isinstance(out.get(key), (int, float)) and out[key] > MAX_REPEATED:
            del out[key]
    return out
