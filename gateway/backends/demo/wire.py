"""Writes the demo backend's answers in Chat Completions' form.

Pure. Everything here is what OpenAI's schemas for the answer and for its chunks require; what the text is, and when a
chunk is sent, is decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.backends.demo.pieces import Cut
from gateway.chat.answer import Answer
from gateway.chat.blocks import Block, Message, Text, ToolCall
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.usage import Usage


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one answer carries: its id, its time (seconds since the epoch) and the model's name."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice: calls, or a text that is cut into pieces."""

    calls: tuple[ToolCall, ...]
    cut: Cut

    @property
    def finish_reason(self) -> str:
        """Why it ends."""
        return "tool_calls" if self.calls else self.cut.finish_reason


def encode_answer(envelope: Envelope, replies: Sequence[Reply], usage: Usage) -> Answer:
    """The whole answer at once."""
    choices = [
        {"index": index, "message": _message(reply), "logprobs": None, "finish_reason": reply.finish_reason}
        for index, reply in enumerate(replies)
    ]
    body = msgspec.json.encode(
        {
            "id": envelope.id,
            "object": "chat.completion",
            "created": envelope.created,
            "model": envelope.model,
            "choices": choices,
            "usage": usage.as_openai(),
        }
    )
    first = replies[0]
    blocks: tuple[Block, ...] = first.calls or (Text(first.cut.text),)
    wire = msgspec.json.encode(_message(first))
    return Answer(Message("assistant", blocks, wire=wire), first.finish_reason, usage, body)


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if reply.calls else reply.cut.text, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


def encode_chunks(envelope: Envelope, replies: Sequence[Reply], usage: Usage) -> Iterator[Chunk]:
    """The answer piece by piece: the role, the content word by word, the finish reason, the usage."""
    for index, reply in enumerate(replies):
        yield _chunk(envelope, index, {"role": "assistant", "content": None if reply.calls else "", "refusal": None})
        for delta in _call_deltas(reply.calls):
            yield _chunk(envelope, index, {"tool_calls": [delta]})
        for piece in () if reply.calls else reply.cut.pieces:
            yield _chunk(envelope, index, {"content": piece})
        yield _chunk(envelope, index, {}, reply.finish_reason)
    last = {**_head(envelope), "choices": [], "usage": usage.as_openai()}
    yield decode_chunk(msgspec.json.encode(last))


def _call_deltas(calls: Sequence[ToolCall]) -> Iterator[dict[str, Any]]:
    """A call's name first, then its arguments in two fragments, as real models cut them."""
    for index, call in enumerate(calls):
        start = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield start
        half = len(call.arguments) // 2
        for fragment in (call.arguments[:half], call.arguments[half:]):
            yield {"index": index, "function": {"arguments": fragment}}


def _head(envelope: Envelope) -> dict[str, Any]:
    return {"id": envelope.id, "object": "chat.completion.chunk", "created": envelope.created, "model": envelope.model}


def _chunk(envelope: Envelope, index: int, delta: dict[str, Any], finish_reason: str | None = None) -> Chunk:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return decode_chunk(msgspec.json.encode({**_head(envelope), "choices": [choice]}))


def call_arguments(arguments: dict[str, Any]) -> str:
    """A call's arguments as a model would write them."""
    return json.dumps(arguments, ensure_ascii=False)
