"""Checks answers and chunks against OpenAI's published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_DOCUMENT = json.loads(Path(__file__).with_name("openai_chat_schemas.json").read_text())


def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": _DOCUMENT["components"]})


_ANSWER = _validator("CreateChatCompletionResponse")
_CHUNK = _validator("CreateChatCompletionStreamResponse")


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
