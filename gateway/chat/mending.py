"""JSON of a server that takes types lightly, in the types of OpenAI's schemas.

Pure, and slow: only for what could not be read as it came. Numbers written as text, one call instead of a list of them,
`Infinity`, arguments that are no text.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from gateway.chat.surrogates import whole_characters

# What OpenAI itself writes for a token that is as good as impossible.
_IMPOSSIBLE: Final = -9999.0
_THOUGHTS: Final = ("reasoning_content", "reasoning")

_encode = msgspec.json.Encoder().encode


def mended(body: bytes) -> bytes:
    """A chunk or an answer, written anew.

    Raises:
        msgspec.DecodeError: it is not a JSON object, whatever one forgives.
    """
    try:
        value = json.loads(body, parse_constant=lambda _: _IMPOSSIBLE)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError("not JSON") from error
    if not isinstance(value, dict):
        raise msgspec.DecodeError("not a JSON object")
    for name in ("id", "model"):
        if name in value:
            value[name] = _text(value[name])
    if "created" in value:
        value["created"] = _number(value["created"])
    if isinstance(usage := value.get("usage"), dict):
        value["usage"] = _counts(usage)
    elif "usage" in value:
        del value["usage"]
    for choice in _listed(value, "choices"):
        _mend_choice(choice)
    return _encode(whole_characters(value))


def _mend_choice(choice: dict[str, Any]) -> None:
    if "index" in choice:
        choice["index"] = _number(choice["index"])
    if not isinstance(choice.get("finish_reason"), str):
        choice["finish_reason"] = None
    for name in ("delta", "message"):
        said = choice.get(name)
        if not isinstance(said, dict):
            choice.pop(name, None)
            continue
        for field in ("role", "content", "refusal", *_THOUGHTS):
            if field in said and not (field == "content" and isinstance(said[field], list)):
                said[field] = _text(said[field])
        for call in _listed(said, "tool_calls"):
            _mend_call(call)


def _mend_call(call: dict[str, Any]) -> None:
    if "index" in call:
        call["index"] = _number(call["index"])
    for name in ("id", "type"):
        if name in call:
            call[name] = _text(call[name])
    function = call.get("function")
    if isinstance(function, dict):
        function["name"] = _text(function.get("name"))
        if not isinstance(function.get("arguments"), (str, dict, list, type(None))):
            function["arguments"] = _encode(function["arguments"]).decode()


def _listed(owner: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a field that should be a list of them, which it is from now on; one alone is a list of one."""
    if name not in owner:
        return []
    value = owner[name]
    found = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    owner[name] = [each for each in found if isinstance(each, dict)]
    return list(owner[name])


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in usage.items():
        if isinstance(value, dict):
            made[name] = _counts(value)
        elif (count := _number(value)) is not None:
            made[name] = count
    return made


def _number(value: Any) -> int | None:
    """A whole number, however it is written; None for what is none."""
    try:
        return int(float(value)) if isinstance(value, (str, int, float)) else None
    except (ValueError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("text", value.get("content"))
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) else None
