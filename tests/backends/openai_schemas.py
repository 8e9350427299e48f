"""Checks answers and chunks against OpenAI's published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

# OpenAI's own document, where it is at hand; `openai_chat_schemas.json` is the part of it that is needed, in today's words.
PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "openai-openapi-subset.json"
needs_published = pytest.mark.skipif(not PUBLISHED.is_file(), reason="OpenAI's document is not on this machine")

_DOCUMENT = json.loads(Path(__file__).with_name("openai_chat_schemas.json").read_text())


def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": _DOCUMENT["components"]})


_ANSWER = _validator("CreateChatCompletionResponse")
_CHUNK = _validator("CreateChatCompletionStreamResponse")


def published_schemas() -> dict[str, Any]:
    """All schemas of OpenAI's document."""
    found: dict[str, Any] = json.loads(PUBLISHED.read_text())["components"]["schemas"]
    return found


def published_properties(name: str) -> set[str]:
    """Names of an object's properties, those of what it consists of included."""
    schemas = published_schemas()

    def names(schema: dict[str, Any]) -> set[str]:
        if "$ref" in schema:
            return names(schemas[schema["$ref"].rpartition("/")[2]])
        return set(schema.get("properties", {})).union(*map(names, schema.get("allOf", ())))

    return names(schemas[name])


def check_answer(body: bytes) -> dict[str, Any]:
    """The answer, parsed; fails on whatever the schema refuses."""
    return _checked(_ANSWER, body)


def check_chunk(data: bytes) -> dict[str, Any]:
    """The chunk, parsed; fails on whatever the schema refuses."""
    return _checked(_CHUNK, data)


def _checked(validator: Draft202012Validator, raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    faults = [
        f"{'/'.join(map(str, fault.absolute_path))}: {fault.message[:200]}" for fault in validator.iter_errors(value)
    ]
    assert not faults, f"{faults} in {raw[:500]!r}"
    assert isinstance(value, dict)
    assert value["id"], "ids are never empty"
    return value
