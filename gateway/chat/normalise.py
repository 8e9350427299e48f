"""What loosely compatible servers send, turned into what OpenAI's schemas require.

Pure. Works on answers and on streams; adapters call it, so that everything behind them may trust the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.chat.answer import Answer
from gateway.chat.blocks import Block, Message, Reasoning, Refusal, Text, ToolCall
from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta, FunctionDelta, ToolCallDelta
from gateway.chat.deltas import CallTracker, arguments_or_none, content_text
from gateway.chat.usage import Usage, WireUsage

_encode = msgspec.json.Encoder().encode

# What servers call their ends, and what OpenAI's schema calls them.
_FINISH = {
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "safety": "content_filter",
}
_KNOWN_FINISH = frozenset({"stop", "length", "tool_calls", "content_filter"})

# Extras of a message or delta that clients are known to read.
_KEPT = ("reasoning_content", "reasoning", "reasoning_details", "annotations", "audio", "images")


def finish_reason(said: str | None, *, has_calls: bool) -> str | None:
    """The finish reason a client may see; None where nothing was said.

    What was emitted counts more than what was said: an answer that carries calls ends with `tool_calls`, unless it was
    cut (`length`, `content_filter`).
    """
    if not said:
        return None
    reason = _FINISH.get(said, said)
    if reason not in _KNOWN_FINISH:
        reason = "stop"
    return "tool_calls" if has_calls and reason == "stop" else reason


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class _Call(msgspec.Struct):
    id: str | int | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: WireUsage | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _any(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the answer is nested too deeply") from error


class NotAnAnswer(ValueError):
    """The body is JSON, but no chat completion."""


def read_answer(body: bytes, new_id: Callable[[], str]) -> Answer:
    """Read a well-formed answer without changing its body.

    Raises:
        NotAnAnswer: it has no choice with a message.
        msgspec.DecodeError: it is not JSON, or its fields have other types.
    """
    try:
        answer = _decode_answer(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the answer is nested too deeply") from error
    if not answer.choices or answer.choices[0].message is None:
        raise NotAnAnswer("the answer has no choices")
    choice = answer.choices[0]
    assert choice.message is not None
    message = _message(choice.message, new_id)
    reason = finish_reason(choice.finish_reason, has_calls=bool(message.tool_calls))
    return Answer(message, reason, answer.usage.usage() if answer.usage else None, body, choice.finish_reason)


def normalise_answer(body: bytes, new_id: Callable[[], str]) -> Answer:
    """Read an answer and write its body anew in OpenAI's shape.

    Raises:
        NotAnAnswer, msgspec.DecodeError: as `read_answer`.
    """
    raw = _any(body)
    if not isinstance(raw, dict) or not isinstance(raw.get("choices"), list) or not raw["choices"]:
        raise NotAnAnswer("the answer has no choices")
    first: tuple[Message, str | None] | None = None
    choices: list[dict[str, Any]] = []
    for position, choice in enumerate(raw["choices"]):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise NotAnAnswer("a choice has no message")
        source = choice["message"]
        message = _message(msgspec.convert(source, _Message), new_id)
        calls = message.tool_calls
        said = choice.get("finish_reason")
        said = said if isinstance(said, str) and said else "stop"
        reason = finish_reason(said, has_calls=bool(calls)) or "stop"
        out: dict[str, Any] = {"role": "assistant", "content": message.text or (None if calls else ""), "refusal": None}
        if refusal := next((b.text for b in message.blocks if isinstance(b, Refusal)), None):
            out["refusal"] = refusal
            out["content"] = message.text or None
        for name in _KEPT:
            if source.get(name) is not None:
                out[name] = source[name]
        if calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
            ]
        built = {"index": position, "message": out, "logprobs": _logprobs(choice), "finish_reason": reason}
        choices.append(built)
        if first is None:
            first = (message, reason)
    assert first is not None
    usage = msgspec.convert(raw["usage"], WireUsage).usage() if isinstance(raw.get("usage"), dict) else None
    whole: dict[str, Any] = {
        "id": _text(raw.get("id")) or "chatcmpl-0",
        "object": "chat.completion",
        "created": _whole(raw.get("created")),
        "model": _text(raw.get("model")) or "-",
        "choices": choices,
    }
    if usage is not None:
        whole["usage"] = usage.as_openai()
    for name in ("service_tier", "system_fingerprint"):
        if isinstance(raw.get(name), str):
            whole[name] = raw[name]
    return Answer(first[0], first[1], usage, _encode(whole), first[1])


class StreamNormaliser:
    """Turns one stream's chunks into well-formed ones.

    One id and model, role once per choice, indexes from 0, ids and names once, arguments as text, one finish reason per
    choice, usage never inside a chunk's `data` (it stays in `fields`).

    Args:
        new_id: makes a call id.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._trackers: dict[int, CallTracker] = {}
        self._role: set[int] = set()
        self._finished: set[int] = set()
        self._created = 0
        self._id = ""
        self._model = ""

    def feed(self, chunk: Chunk) -> Chunk:
        """The chunk as OpenAI's schema wants it; one without choices keeps only its usage."""
        raw = msgspec.json.decode(chunk.data)
        self._created = self._created or _whole(raw.get("created"))
        self._id = self._id or chunk.fields.id or "chatcmpl-0"
        self._model = self._model or chunk.fields.model or "-"
        sources = raw.get("choices") or []
        choices: list[dict[str, Any]] = []
        fields: list[ChunkChoice] = []
        for position, choice in enumerate(chunk.choices):
            index = choice.index if choice.index is not None else position
            source = sources[position] if isinstance(sources[position], dict) else {}
            built = self._choice(index, choice, source)
            if built is not None:
                choices.append(built[0])
                fields.append(built[1])
        out: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        seen = ChunkFields(out["id"], out["model"], fields, chunk.fields.usage, None, self._created)
        return Chunk(_encode(out), seen)

    def _choice(
        self, index: int, choice: ChunkChoice, source: dict[str, Any]
    ) -> tuple[dict[str, Any], ChunkChoice] | None:
        delta = choice.delta or Delta()
        tracker = self._trackers.get(index)
        out: dict[str, Any] = {}
        seen = Delta()
        if index not in self._role:
            self._role.add(index)
            out["role"] = seen.role = "assistant"
            if not delta.tool_calls:
                out["content"] = ""
        text = delta.content if isinstance(delta.content, str) else content_text(delta.content or [])
        if text:
            out["content"] = seen.content = text
        if delta.refusal:
            out["refusal"] = seen.refusal = delta.refusal
        seen.reasoning_content, seen.reasoning = delta.reasoning_content, delta.reasoning
        raw_delta = source.get("delta")
        for name in _KEPT:
            if isinstance(raw_delta, dict) and raw_delta.get(name):
                out[name] = raw_delta[name]
        if delta.tool_calls:
            tracker = self._trackers.setdefault(index, CallTracker(self._new_id))
            pieces = [piece for call in delta.tool_calls if (piece := tracker.add(call)) is not None]
            calls = [
                encode_piece(piece.position, piece.first, piece.id, piece.name, piece.fragment) for piece in pieces
            ]
            if calls:
                out["tool_calls"] = calls
                seen.tool_calls = [
                    ToolCallDelta(
                        p.position,
                        p.id if p.first else None,
                        "function" if p.first else None,
                        FunctionDelta(p.name if p.first else None, p.fragment),
                    )
                    for p in pieces
                ]
        reason: str | None = None
        if choice.finish_reason and index not in self._finished:
            self._finished.add(index)
            calls_made = tracker.calls() if tracker else ()
            reason = finish_reason(choice.finish_reason, has_calls=bool(calls_made))
        if not out and reason is None:
            return None
        built = {"index": index, "delta": out, "logprobs": _logprobs(source), "finish_reason": reason}
        return built, ChunkChoice(index, seen, reason)


def encode_piece(position: int, first: bool, call_id: str, name: str, fragment: str) -> dict[str, Any]:
    """A fragment of a call as it stands in a delta."""
    if first:
        return {
            "index": position,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": fragment},
        }
    return {"index": position, "function": {"arguments": fragment}}


def usage_of(chunk: Chunk) -> Usage | None:
    """The usage a chunk carries, if any."""
    return chunk.fields.usage.usage() if chunk.fields.usage else None


def _message(wire: _Message, new_id: Callable[[], str]) -> Message:
    blocks: list[Block] = []
    if thought := wire.reasoning_content or wire.reasoning:
        blocks.append(Reasoning(thought))
    text = wire.content if isinstance(wire.content, str) else content_text(wire.content or [])
    if text:
        blocks.append(Text(text))
    if wire.refusal:
        blocks.append(Refusal(wire.refusal))
    seen: set[str] = set()
    for call in wire.tool_calls or ():
        if call.function is None or not call.function.name:
            continue
        call_id = str(call.id) if call.id not in (None, "") else ""
        if not call_id or call_id in seen:
            call_id = new_id()
        seen.add(call_id)
        raw = call.function.arguments
        arguments = raw if isinstance(raw, str) else "" if raw is None else _encode(raw).decode()
        blocks.append(ToolCall(call_id, call.function.name, arguments_or_none(arguments)))
    return Message("assistant", tuple(blocks))


def _logprobs(choice: dict[str, Any]) -> dict[str, Any] | None:
    said = choice.get("logprobs")
    return {"content": said.get("content"), "refusal": said.get("refusal")} if isinstance(said, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
