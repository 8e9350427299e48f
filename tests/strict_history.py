"""What the strictest OpenAI-protocol servers refuse in a request's history and tools.

Pure: a body in, the first fault out. Does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Fault = tuple[str, str]


def history_fault(body: Mapping[str, Any]) -> Fault | None:
    """The first fault as (parameter, message), or None for a body that every server takes."""
    return _tools_fault(body) or _messages_fault(body.get("messages"))


def _tools_fault(body: Mapping[str, Any]) -> Fault | None:
    if "tools" in body and not body["tools"]:
        return "tools", "tools is present but empty"
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in body and "tools" not in body:
            return name, f"{name} without tools"
    return None


def _messages_fault(messages: Any) -> Fault | None:
    if not isinstance(messages, Sequence) or not messages:
        return "messages", "messages is missing or empty"
    owed: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in owed:
                return where, f"{where}: tool result {message.get('tool_call_id')!r} answers no open tool call"
            owed.remove(message["tool_call_id"])
        elif owed:
            return where, f"{where}: tool calls {owed!r} have no results before the next {role} message"
        fault = _content_fault(message, role)
        if fault:
            return f"{where}.content", f"{where}: {fault}"
        if message.get("tool_calls") is not None:
            fault, owed = _calls_fault(message)
            if fault:
                return f"{where}.tool_calls", f"{where}: {fault}"
    if owed:
        return "messages", f"tool calls {owed!r} have no results"
    return None


def _content_fault(message: Mapping[str, Any], role: Any) -> str | None:
    if "content" not in message:
        return f"a {role} message has no content key"
    if message["content"] is None and not (role == "assistant" and message.get("tool_calls")):
        return f"the content of a {role} message is null"
    return None


def _calls_fault(message: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    calls = message["tool_calls"]
    if message.get("role") != "assistant":
        return "only an assistant message has tool calls", []
    if not calls:
        return "tool_calls is present but empty", []
    ids = [call.get("id") for call in calls]
    if not all(isinstance(id_, str) and id_ for id_ in ids) or len(set(ids)) != len(ids):
        return f"the ids of tool calls {ids!r} are not distinct strings", []
    for call in calls:
        function = call.get("function") or {}
        if call.get("type") != "function" or not function.get("name") or not isinstance(function.get("arguments"), str):
            return f"tool call {call.get('id')!r} lacks its type, its name or its arguments as a string", []
    return None, ids
