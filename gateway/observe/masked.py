"""A trace's events with placeholders for what is private.

Knows where in events messages, arguments and results stand. Does not know who keeps them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.security.masking.masking import Masking
from gateway.security.masking.messages import Conversation, masked_call, masked_wire, secrets_of
from gateway.security.masking.placeholders import PLACEHOLDER, said_name
from gateway.security.masking.values import Values


def is_touched(private: Conversation, encoded: bytes) -> bool:
    """Whether anything in these events has to be replaced; False is certain."""
    masking = private.masking
    if masking.known or masking.secrets_of is not None or masking.fields:
        return True
    return masking.detector is not None and masking.detector.suspects(encoded)


def masked_events(private: Conversation, encoded: bytes) -> bytes:
    """The events, a JSON list, with placeholders. Takes its time: not for the event loop."""
    events = _read(encoded)
    learning = Values(private.masking, escape=None)
    for event in events:
        _data(event, learning, private.masking)
    writing = Values(private.masking, escape=False)
    for event in events:
        event["data"] = _data(event, writing, private.masking)
    return _written(events)


def masked_call_view(private: Conversation, tool: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a tool's call, with placeholders in its `arguments`, its `outcome` and the `reason` that was given."""
    secrets = secrets_of(private.masking, tool)
    out = dict(shown)
    for values in (Values(private.masking, escape=None), Values(private.masking, escape=False)):
        for name in ("arguments", "outcome", "reason"):
            if isinstance(shown.get(name), (dict, list, str)):
                out[name] = values.value(shown[name], secrets)
    return out


def masked_line(private: Conversation, data: Iterable[Mapping[str, Any]], text: str) -> str:
    """A text for the log, with the kinds of what is private in it; `data` is what happened before, with what was said in it."""
    learning = Values(private.masking, escape=None)
    for each in data:
        _data({"data": each}, learning, private.masking)
    made = private.masking.masked(text, escape=False)
    return PLACEHOLDER.sub(lambda match: f"[{said_name(match.group())}]", made)


def _data(event: Mapping[str, Any], values: Values, masking: Masking) -> dict[str, Any]:
    data: dict[str, Any] = event["data"]
    secrets = secrets_of(masking, data.get("name"))
    tools: dict[str, str] = {}
    out: dict[str, Any] = {}
    for name, item in data.items():
        if name == "messages" and isinstance(item, list):
            out[name] = [_message(message, values, masking, tools) for message in item]
        elif name == "tool_calls" and isinstance(item, list):
            out[name] = [masked_call(call, values, masking) for call in item]
        elif isinstance(item, str):
            out[name] = values.json_text(item, secrets)
        else:
            out[name] = values.value(item, secrets)
    return out


def _message(message: Any, values: Values, masking: Masking, tools: dict[str, str]) -> Any:
    if not isinstance(message, dict):
        return values.value(message)
    for call in message.get("tool_calls") or ():
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            tools[str(call.get("id"))] = str(function.get("name"))
    return masked_wire(message, values, masking, tools)


def _read(encoded: bytes) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(encoded, type=list[dict[str, Any]])
    except msgspec.DecodeError:  # half a surrogate pair
        read: list[dict[str, Any]] = json.loads(encoded)
        return read


def _written(events: list[dict[str, Any]]) -> bytes:
    try:
        return msgspec.json.encode(events)
    except UnicodeEncodeError:
        return json.dumps(events).encode()
