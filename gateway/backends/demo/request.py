"""Reads a model call as the demo backend understands it.

Knows the fields of a Chat Completions request that change what it answers; everything else it leaves alone. Refuses what
it cannot honour instead of ignoring it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.backends.backend import ModelCall
from gateway.backends.demo.misbehaving import Misbehaviour, read_misbehaviour
from gateway.backends.demo.slots import Slot, slots_of
from gateway.backends.demo.words import concepts
from gateway.chat.blocks import Message, Text, ToolResult
from gateway.errors import InvalidRequest

# More answers at once than anybody reads.
_MAX_CHOICES = 16
# Rules read a question, not a book: of longer texts the beginning and the end, in characters each.
_READ_EACH_END = 1000


@dataclass(frozen=True)
class OfferedTool:
    """A tool in the request. The backend does not know whose it is. What is read from it is read once."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @functools.cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The parameters, required ones first."""
        return slots_of(self.parameters)

    @functools.cached_property
    def title(self) -> frozenset[str]:
        """What its name speaks of."""
        return concepts(self.name)

    @functools.cached_property
    def purpose(self) -> frozenset[str]:
        """What its description speaks of."""
        return concepts(self.description)


@dataclass(frozen=True, slots=True)
class Done:
    """A call already answered in this turn: its tool, its arguments and the text of its result."""

    name: str
    arguments: dict[str, Any]
    result: str


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """What the answer depends on.

    Attributes:
        question: the text of the last user message; of a very long one the beginning and the end.
        earlier: the text of the user message before it, or "".
        has_media: whether that message carries anything but text.
        is_first: no assistant message stands before it.
        done: the calls answered since then, in order.
        tools: what may be called.
        mode: `auto`, `none` or `required` (a named tool is `required` with that tool alone in `tools`).
        parallel: whether several calls may be asked for at once.
        schema: the JSON Schema the answer has to meet (`{}` for any object), or None for text.
        stop: sequences that end the text, not part of it.
        max_tokens: length of the text, or None.
        choices: how many answers (`n`).
        misbehaviour: how it has to fail, or None.
    """

    question: str
    earlier: str
    has_media: bool
    is_first: bool
    done: tuple[Done, ...]
    tools: tuple[OfferedTool, ...]
    mode: Literal["auto", "none", "required"]
    parallel: bool
    schema: Mapping[str, Any] | None
    stop: tuple[str, ...]
    max_tokens: int | None
    choices: int
    misbehaviour: Misbehaviour | None


def read_request(call: ModelCall) -> DemoRequest:
    """The call's meaning.

    Raises:
        InvalidRequest: a field has a wrong value, or one that this backend cannot honour; `param` names it.
    """
    fields = {name: _decoded(name, raw) for name, raw in call.fields.items()}
    if fields.get("logprobs"):
        raise InvalidRequest("The demo backend has no token probabilities.", param="logprobs")
    if fields.get("functions"):
        raise InvalidRequest("The demo backend reads `tools`, not the older `functions`.", param="functions")
    if "audio" in (fields.get("modalities") or ()):
        raise InvalidRequest("The demo backend answers in text.", param="modalities")
    question, since = _question(call.messages)
    tools, mode = _tools(fields)
    return DemoRequest(
        question=_readable(question.text),
        earlier=_readable(_question(call.messages[:since])[0].text),
        has_media=any(not isinstance(block, Text) for block in question.blocks),
        is_first=not any(message.role == "assistant" for message in call.messages[:since]),
        done=_done(call.messages[since:]),
        tools=tools,
        mode=mode,
        parallel=fields.get("parallel_tool_calls") is not False,
        schema=_schema(fields.get("response_format")),
        stop=_stop(fields.get("stop")),
        max_tokens=_limit(fields),
        choices=_whole(fields.get("n"), "n", _MAX_CHOICES) or 1,
        misbehaviour=read_misbehaviour(fields.get("metadata")),
    )


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        # Numbers of any size and any depth of nesting are JSON, and come this far unread.
        raise InvalidRequest(f"`{name}` holds a value that can't be read: {error}", param=name) from error


def _readable(text: str) -> str:
    if len(text) <= 2 * _READ_EACH_END:
        return text
    return f"{text[:_READ_EACH_END]}\n{text[-_READ_EACH_END:]}"


def _question(messages: tuple[Message, ...]) -> tuple[Message, int]:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            return messages[index], index
    return Message("user", ()), 0


def _done(messages: tuple[Message, ...]) -> tuple[Done, ...]:
    calls = {call.id: call for message in messages for call in message.tool_calls}
    done = []
    for message in messages:
        for block in message.blocks:
            if isinstance(block, ToolResult) and block.call_id in calls:
                call = calls[block.call_id]
                done.append(Done(call.name, _arguments(call.arguments), block.text))
    return tuple(done)


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tools(fields: Mapping[str, Any]) -> tuple[tuple[OfferedTool, ...], Literal["auto", "none", "required"]]:
    tools = tuple(_tool(item["function"]) for item in fields.get("tools") or () if _is_function(item))
    choice: Any = fields.get("tool_choice") or "auto"
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or {}
        if not isinstance(allowed, dict) or not isinstance(allowed.get("tools") or [], list):
            raise InvalidRequest("`tool_choice.allowed_tools` has to name a list of tools.", param="tool_choice")
        names = {item["function"].get("name") for item in allowed.get("tools") or () if _is_function(item)}
        tools = tuple(tool for tool in tools if tool.name in names)
        choice = allowed.get("mode", "auto")
    elif isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        tools = tuple(tool for tool in tools if tool.name == name)
        if not tools:
            raise InvalidRequest(f"`tool_choice` names {name!r}, which is not among `tools`.", param="tool_choice")
        choice = "required"
    if choice == "required":
        if not tools:
            raise InvalidRequest("`tool_choice` is required, but `tools` offers no function.", param="tool_choice")
        return tools, "required"
    if choice in ("auto", "none"):
        return tools, choice
    raise InvalidRequest(
        f"`tool_choice` is {choice!r}; expected auto, none, required or a named function.", param="tool_choice"
    )


def _is_function(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("function"), dict)


def _tool(function: Mapping[str, Any]) -> OfferedTool:
    parameters = function.get("parameters")
    return OfferedTool(
        str(function.get("name") or ""),
        str(function.get("description") or ""),
        parameters if isinstance(parameters, dict) else {},
    )


def _schema(response_format: Any) -> Mapping[str, Any] | None:
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind is None or kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind == "json_schema":
        named = response_format.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        return schema if isinstance(schema, dict) else {}
    raise InvalidRequest(
        f"`response_format.type` is {kind!r}; expected text, json_object or json_schema.", param="response_format"
    )


def _stop(stop: Any) -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else stop or ()
    if not isinstance(found, (list, tuple)) or not all(isinstance(item, str) for item in found):
        raise InvalidRequest("`stop` has to be a string or a list of strings.", param="stop")
    return tuple(item for item in found if item)


def _limit(fields: Mapping[str, Any]) -> int | None:
    limits = [_whole(fields.get(name), name) for name in ("max_completion_tokens", "max_tokens")]
    return min((limit for limit in limits if limit is not None), default=None)


def _whole(value: Any, name: str, most: int | None = None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        bound = f" of at most {most}" if most is not None else ""
        raise InvalidRequest(f"`{name}` is {value!r}; expected a whole number from 1{bound}.", param=name)
    return value
