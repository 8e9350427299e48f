"""The older form of tool calls: `functions`, `function_call` and the role `function`.

Pure. Read as the newer form, so that every backend understands it, and written back for the client that used it. In this form
an answer has one call and no ids: ids are made from the message's place, and of several calls the client is told the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.chat.chunk import Chunk
from gateway.chat.relay import StreamWriter
from gateway.errors import InvalidRequest

_encode = msgspec.json.Encoder().encode
_decode_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def with_tools(top: dict[str, msgspec.Raw]) -> bool:
    """Write a request's `functions` and `function_call` as `tools` and `tool_choice`; whether it had `functions`.

    Raises:
        InvalidRequest: one of them is malformed.
    """
    if "functions" not in top or "tools" in top:
        return False
    try:
        functions = _decode_raw_list(top.pop("functions"))
    except msgspec.DecodeError as error:
        raise InvalidRequest("`functions` must be a list.", param="functions") from error
    for index, function in enumerate(functions):
        value = msgspec.json.decode(function)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
            raise InvalidRequest(f"`functions[{index}].name` is missing.", param=f"functions[{index}].name")
    if functions:
        tools = b",".join(b'{"type":"function","function":' + bytes(each) + b"}" for each in functions)
        top["tools"] = msgspec.Raw(b"[" + tools + b"]")
    if (choice := top.pop("function_call", None)) is not None and functions:
        top["tool_choice"] = _choice(choice)
    return True


def _choice(raw: msgspec.Raw) -> msgspec.Raw:
    value = msgspec.json.decode(raw)
    if value in ("auto", "none"):
        return raw
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return msgspec.Raw(_encode({"type": "function", "function": {"name": value["name"]}}))
    raise InvalidRequest("`function_call` must be auto, none or a named function.", param="function_call")


def with_call_ids(raw: bytes, position: int) -> bytes:
    """A message of the older form in the newer one. A result belongs to the call in the message right before it.

    Raises:
        InvalidRequest: a call or a result without a name.
    """
    wire = msgspec.json.decode(raw)
    older = wire["role"] == "function"
    call = wire if older else wire.pop("function_call")
    name = call.get("name")
    if not name:
        field = f"messages[{position}]" + (".name" if older else ".function_call.name")
        raise InvalidRequest(f"`{field}` is missing.", param=field)
    if older:
        return _encode(
            {"role": "tool", "tool_call_id": call_id(position - 1, name), "content": wire.get("content") or ""}
        )
    wire["tool_calls"] = [{"id": call_id(position, name), "type": "function", "function": call}]
    return _encode(wire)


def call_id(position: int, name: str) -> str:
    """The id of a call in the message at this position: this form has none."""
    return f"call_{position}_{name}"


def functions_answer(body: bytes) -> bytes:
    """An answer's body with its calls in the older form."""
    top = msgspec.json.decode(body)
    for choice in top["choices"]:
        message = choice["message"]
        if calls := message.pop("tool_calls", None):
            if isinstance(calls[0].get("function"), dict):
                message["function_call"] = calls[0]["function"]
            choice["finish_reason"] = _reason(choice["finish_reason"])
    return _encode(top)


class FunctionsWriter(StreamWriter):
    """Writes a stream whose calls are in the older form."""

    def frames(self, chunks: Sequence[Chunk]) -> bytes:
        """As `StreamWriter.frames`; chunks with calls or a finish reason are written anew."""
        return super().frames([_older(chunk) for chunk in chunks])

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        """As `StreamWriter.chunk`."""
        return super().chunk(_older_delta(dict(delta)), _reason(finish_reason))


def _older(chunk: Chunk) -> Chunk:
    if not any(choice.finish_reason or (choice.delta and choice.delta.tool_calls) for choice in chunk.choices):
        return chunk
    top = msgspec.json.decode(chunk.data)
    for choice in top["choices"]:
        choice["delta"] = _older_delta(choice.get("delta") or {})
        choice["finish_reason"] = _reason(choice.get("finish_reason"))
    return Chunk(_encode(top), chunk.fields)


def _older_delta(delta: dict[str, Any]) -> dict[str, Any]:
    for call in delta.pop("tool_calls", None) or ():
        if not call.get("index") and isinstance(call.get("function"), dict):
            delta["function_call"] = call["function"]
    return delta


def _reason(said: str | None) -> str | None:
    return "function_call" if said == "tool_calls" else said
