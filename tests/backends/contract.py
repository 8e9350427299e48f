"""What every backend has to do, whatever stands behind it. A subclass says how to get one that answers.

A test class inherits from `BackendContract` and fills in three context managers; pytest collects the inherited tests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gateway.backends.backend import Backend, ModelCall
from gateway.chat.blocks import Message, Text, ToolCall
from gateway.chat.chunk import Chunk
from gateway.chat.deltas import CallTracker
from gateway.chat.usage import Usage
from gateway.errors import ContextTooLong, UpstreamError
from gateway.ids import new_call_id
from tests.backends.openai_schemas import check_answer, check_chunk

QUESTION = "what is 12 + 30?"
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def model_call(*messages: Message | str, timeout_s: float = 10.0, **fields: Any) -> ModelCall:
    """A call; a string is a user message. Keyword arguments are fields of the request."""
    said = tuple(Message("user", (Text(item),)) if isinstance(item, str) else item for item in messages)
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return ModelCall(said, raw, "0af7651916cd43dd8448eb211c80319c", timeout_s, "asked")


@dataclass
class Streamed:
    """A stream, read to its end."""

    chunks: list[Chunk] = field(default_factory=list)
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reasons: list[str] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)


async def read_stream(backend: Backend, call: ModelCall, timeout_s: float = 10.0) -> Streamed:
    """Everything a stream sends, of its first choice."""
    out, tracker = Streamed(), CallTracker(new_call_id)
    async with asyncio.timeout(timeout_s), aclosing(backend.stream(call)) as batches:
        async for batch in batches:
            assert batch, "a batch is never empty"
            out.chunks += [one for chunk in batch for one in chunk.singles]
    for choice in (choice for chunk in out.chunks for choice in chunk.choices if not choice.index):
        delta = choice.delta
        if delta is not None:
            out.roles += [delta.role] if delta.role else []
            out.text += delta.content if isinstance(delta.content, str) else ""
            for piece in delta.tool_calls or ():
                tracker.add(piece)
        out.finish_reasons += [choice.finish_reason] if choice.finish_reason else []
    out.usages = [chunk.fields.usage.usage() for chunk in out.chunks if chunk.fields.usage]
    out.calls = tracker.calls()
    return out


def parsed(calls: Sequence[ToolCall]) -> list[tuple[str, Any]]:
    """Calls without their ids, which differ each time."""
    return [(call.name, json.loads(call.arguments)) for call in calls]


class BackendContract:
    """Inherit, and fill in where a backend comes from."""

    def texting(self) -> AbstractAsyncContextManager[Backend]:
        """A backend whose answer to `QUESTION` is some text."""
        raise NotImplementedError

    def calling(self) -> AbstractAsyncContextManager[Backend]:
        """A backend that answers `QUESTION`, with `CALCULATOR` offered, by calling it with an `expression`."""
        raise NotImplementedError

    def failing(self) -> AbstractAsyncContextManager[tuple[Backend, ModelCall]]:
        """A backend and a call that it cannot answer because its far side fails."""
        raise NotImplementedError

    async def test_whole_answer_is_what_openai_s_schema_requires(self) -> None:
        async with self.texting() as backend:
            answer = await backend.complete(model_call(QUESTION))
        body = check_answer(answer.body)
        assert answer.message.role == "assistant"
        assert answer.message.text
        assert body["choices"][0]["message"]["content"] == answer.message.text
        assert body["choices"][0]["message"]["refusal"] is None
        assert answer.finish_reason == body["choices"][0]["finish_reason"] == "stop"

    async def test_usage_of_whole_answer_adds_up(self) -> None:
        async with self.texting() as backend:
            answer = await backend.complete(model_call(QUESTION))
        usage = json.loads(answer.body)["usage"]
        assert answer.usage is not None
        assert usage["prompt_tokens"] == answer.usage.prompt_tokens > 0
        assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]

    async def test_streamed_chunks_are_what_openai_s_schema_requires(self) -> None:
        async with self.texting() as backend:
            streamed = await read_stream(backend, model_call(QUESTION))
        bodies = [check_chunk(chunk.data) for chunk in streamed.chunks]
        assert len({body["id"] for body in bodies}) == 1
        assert streamed.roles == ["assistant"]
        assert bodies[0]["choices"][0]["delta"]["role"] == "assistant"
        assert streamed.finish_reasons == ["stop"]

    async def test_usage_comes_once_and_last(self) -> None:
        async with self.texting() as backend:
            streamed = await read_stream(backend, model_call(QUESTION))
        assert len(streamed.usages) == 1
        assert streamed.chunks[-1].fields.usage is not None
        assert not streamed.chunks[-1].choices
        assert streamed.usages[0].prompt_tokens > 0

    async def test_stream_says_the_same_as_the_whole_answer(self) -> None:
        async with self.texting() as backend:
            answer = await backend.complete(model_call(QUESTION))
            streamed = await read_stream(backend, model_call(QUESTION))
        assert streamed.text == answer.message.text

    async def test_offered_tool_is_called_alike_in_both_forms(self) -> None:
        call = model_call(QUESTION, tools=[CALCULATOR])
        async with self.calling() as backend:
            answer = await backend.complete(call)
            streamed = await read_stream(backend, call)
        body = check_answer(answer.body)
        for chunk in streamed.chunks:
            check_chunk(chunk.data)
        assert [name for name, _ in parsed(answer.message.tool_calls)] == ["calculator"]
        assert parsed(answer.message.tool_calls)[0][1].keys() == {"expression"}
        assert parsed(streamed.calls) == parsed(answer.message.tool_calls)
        assert all(made.id for made in (*streamed.calls, *answer.message.tool_calls))
        assert body["choices"][0]["finish_reason"] == answer.finish_reason == "tool_calls"
        assert body["choices"][0]["message"]["tool_calls"][0]["id"] == answer.message.tool_calls[0].id
        assert streamed.finish_reasons == ["tool_calls"]

    async def test_stream_that_is_closed_early_ends_at_once(self) -> None:
        async with self.texting() as backend:
            batches = backend.stream(model_call(QUESTION))
            async with asyncio.timeout(5):
                first = await anext(batches)
                await batches.aclose()
            assert first
            # The backend is as good as before.
            assert (await backend.complete(model_call(QUESTION))).message.text

    async def test_failure_is_an_upstream_error_without_secrets_or_addresses(self) -> None:
        async with self.failing() as (backend, call):
            with pytest.raises((UpstreamError, ContextTooLong)) as whole:
                await backend.complete(call)
            with pytest.raises((UpstreamError, ContextTooLong)) as streamed:
                await read_stream(backend, call)
        for caught in (whole, streamed):
            assert "http://" not in caught.value.message
            assert "127.0.0.1" not in caught.value.message
            assert "Traceback" not in caught.value.message

    async def test_close_may_be_called_twice(self) -> None:
        async with self.texting() as backend:
            await backend.close()
            await backend.close()
