"""A backend whose model knows no function calling, made one that does: the ReAct protocol around any other backend.

Knows when the protocol is needed: where the configuration says so, or once the upstream has refused tools. The protocol itself
is `chat/react.py`'s. To everything behind it, calls are calls, whoever wrote them and how.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog

from gateway.backends.backend import Backend, ModelCall
from gateway.backends.watched import Slow
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, ChunkChoice, ChunkFields, Delta
from gateway.chat.codecs.chat_completions import encode_call
from gateway.chat.deltas import CallPiece, content_text, encode_piece
from gateway.chat.normalise import finish_reason, read_answer
from gateway.chat.react import Choice, as_text, choice_of, has_tool_talk, text_fields
from gateway.chat.react_reader import ReactReader, Said
from gateway.errors import InvalidRequest, UpstreamError
from gateway.ids import new_call_id
from gateway.late import late

# What a call gets that has no time left: it fails as one that took too long.
_LEAST_S: Final = 0.001

_encode = msgspec.json.Encoder().encode
_log: Any = structlog.get_logger("gateway.backends")

_TOOLS = r"(?:tools?\b|tool[ _-]?(?:use|calls?|calling)|function[ _-]?call(?:s|ing)?|functions)"
# Ollama, vLLM, llama.cpp, OpenRouter, Groq, DeepSeek, litellm and servers that check their fields, in their own words.
_NO_TOOLS = late(
    rf"(?:does|do|did) not (?:currently )?support (?:the )?[`'\"]?{_TOOLS}"
    rf"|{_TOOLS}[`'\"]? (?:is|are) not (?:currently )?(?:supported|enabled|available|implemented|allowed)"
    rf"|{_TOOLS} not supported"
    r"|no endpoints found that support tool"
    r"|tools? (?:choice |param )?requires? --"
    r"|(?:not support parameters|unsupported param(?:eter)?s?|unsupported fields?)[^a-z]{0,6}tools\b[`'\"\]]*"
    r"|(?:unrecognized|unknown|unexpected|extra|additional)[^.\[]{0,60}[`'\" ]tools[`'\"]?(?:$|[\s,.])",
    re.IGNORECASE,
)


class Learned:
    """What is known of a backend's model, shared by the adapters of all its keys.

    Attributes:
        text_only: whether it is asked in text where tools are offered.
        takes_tools: whether it has answered a request with tools.
    """

    __slots__ = ("takes_tools", "text_only")

    def __init__(self, *, text_only: bool) -> None:
        self.text_only = text_only
        self.takes_tools = False


class ReactBackend:
    """Passes calls on as they are; those with tools as text, where the model takes no tools.

    Args:
        inner: the backend that is asked.
        learned: what is known of its model.
    """

    def __init__(self, inner: Backend, learned: Learned) -> None:
        self._inner = inner
        self._learned = learned

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._inner.name

    def prepare(self) -> None:
        """Let the backend begin what takes it long."""
        if isinstance(self._inner, Slow):
            self._inner.prepare()

    def complete(self, call: ModelCall) -> Coroutine[Any, Any, Answer]:
        """See `Backend.complete`. Costs nothing where there are no tools."""
        if self._learned.text_only:
            return self._complete_as_text(call) if self._needs_text(call) else self._inner.complete(call)
        if "tools" in call.fields and not self._learned.takes_tools:
            return self._complete_first(call)
        return self._inner.complete(call)

    def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        """See `Backend.stream`. Costs nothing where there are no tools."""
        if self._learned.text_only:
            return self._stream_as_text(call) if self._needs_text(call) else self._inner.stream(call)
        if "tools" in call.fields and not self._learned.takes_tools:
            return self._stream_first(call)
        return self._inner.stream(call)

    async def close(self) -> None:
        """Close the backend."""
        await self._inner.close()

    async def _complete_first(self, call: ModelCall) -> Answer:
        """Ask with tools; once it is refused for them, in text from now on, in what is left of the time."""
        until = _now() + call.timeout_s
        try:
            answer = await self._inner.complete(call)
        except (UpstreamError, InvalidRequest) as error:
            if not self._refuses_tools(error):
                raise
        else:
            self._learned.takes_tools = True
            return answer
        return await self._complete_as_text(_in_time(call, until))

    async def _stream_first(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        begun = False
        until = _now() + call.timeout_s
        try:
            async with aclosing(self._inner.stream(call)) as batches:
                async for batch in batches:
                    begun = True
                    yield batch
            self._learned.takes_tools = True
            return
        except (UpstreamError, InvalidRequest) as error:
            if begun or not self._refuses_tools(error):
                raise
        async with aclosing(self._stream_as_text(_in_time(call, until))) as batches:
            async for batch in batches:
                yield batch

    def _refuses_tools(self, error: UpstreamError | InvalidRequest) -> bool:
        if _NO_TOOLS.search(error.message) is None:
            return False
        if not self._learned.text_only:
            self._learned.text_only = True
            _log.info("a backend takes no tools and is asked in text", backend=self.name, error=error.message)
        return True

    @staticmethod
    def _needs_text(call: ModelCall) -> bool:
        return "tools" in call.fields or has_tool_talk(call.messages)

    async def _complete_as_text(self, call: ModelCall) -> Answer:
        choice = choice_of(call.fields)
        answer = await self._inner.complete(_in_text(call, choice))
        return answer if choice is None else _read_whole(answer, choice)

    async def _stream_as_text(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        choice = choice_of(call.fields)
        inner = self._inner.stream(_in_text(call, choice))
        if choice is None:
            async with aclosing(inner):
                async for batch in inner:
                    yield batch
            return
        reading = _Reading(choice)
        async with aclosing(inner):
            async for batch in inner:
                made = [chunk for each in batch for one in each.singles for chunk in reading.feed(one)]
                if made:
                    yield made
                if reading.over:
                    return


class _Reading:
    """A streamed answer that is read: one reader for each of its choices.

    Attributes:
        over: whether nothing that still comes counts.
    """

    def __init__(self, choice: Choice) -> None:
        self.over = False
        self._choice = choice
        self._readers: dict[int, ReactReader] = {}
        self._calls: dict[int, int] = {}

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """The chunk as one of a model that calls tools would have sent it; none while it is not clear what it says."""
        for position, choice in enumerate(chunk.choices):
            if choice.delta is not None and choice.delta.tool_calls:
                # The server knows function calling after all.
                index = choice.index if choice.index is not None else position
                seen = [call.index + 1 for call in choice.delta.tool_calls if call.index is not None]
                self._calls[index] = max([1, self._calls.get(index, 0), *seen])
        if not any(c.finish_reason or (c.delta is not None and c.delta.content) for c in chunk.choices):
            return [chunk]
        top = msgspec.json.decode(chunk.data)
        made: list[Chunk] = []
        for position, choice in enumerate(chunk.choices):
            index = choice.index if choice.index is not None else position
            delta = dict(top["choices"][position].get("delta") or {})
            content = delta.pop("content", None)
            text = content if isinstance(content, str) else content_text(content or [])
            reader = self._readers.get(index)
            if reader is None:
                reader = self._readers[index] = _reader(self._choice)
            if delta:
                made.append(_chunk(top, index, delta))
            pieces = reader.feed(text)
            reason = choice.finish_reason
            if reader.over and index == 0 and len(self._readers) == 1 and not reason:
                # Whatever it still writes is made up: the upstream is left.
                self.over, reason = True, "stop"
            if reason:
                pieces += reader.close()
            made += [_chunk(top, index, self._delta(index, piece)) for piece in pieces]
            if reason:
                made.append(_chunk(top, index, {}, _end(reason, reader, called=bool(self._calls.get(index)))))
        if chunk.fields.usage is not None and made:
            made[-1].fields.usage = chunk.fields.usage
        return made

    def _delta(self, index: int, said: Said) -> dict[str, Any]:
        if said.call is None:
            return {"content" if said.kind == "text" else "reasoning_content": said.text}
        position = self._calls.get(index, 0)
        self._calls[index] = position + 1
        call = said.call
        return {
            "tool_calls": [encode_piece(CallPiece(position, True, call.id, call.name, call.arguments, call.custom))]
        }


def _reader(choice: Choice) -> ReactReader:
    return ReactReader(choice.tools, new_call_id, most_calls=choice.most_calls)


def _end(said: str, reader: ReactReader, *, called: bool) -> str:
    """The finish reason: one whose calls came to their end is not cut, whatever was made up behind them."""
    if reader.ended_itself and reader.called:
        return "tool_calls"
    return finish_reason(said, has_calls=called or reader.called) or "stop"


def _chunk(top: dict[str, Any], index: int, delta: dict[str, Any], reason: str | None = None) -> Chunk:
    built = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    seen = ChunkFields(
        top.get("id"),
        top.get("model"),
        [ChunkChoice(index, msgspec.convert(delta, Delta), reason)],
        created=top.get("created"),
    )
    head = {name: value for name, value in top.items() if name not in ("choices", "usage")}
    return Chunk(_encode({**head, "choices": [built]}), seen)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _in_time(call: ModelCall, until: float) -> ModelCall:
    """The call, in what is left of its time."""
    return msgspec.structs.replace(call, timeout_s=max(_LEAST_S, until - _now()))


def _in_text(call: ModelCall, choice: Choice | None) -> ModelCall:
    form = call.fields.get("response_format")
    asked = msgspec.json.decode(form) if form is not None and choice is not None else None
    return msgspec.structs.replace(
        call, messages=as_text(call.messages, choice, asked), fields=text_fields(call.fields, choice)
    )


def _read_whole(answer: Answer, choice: Choice) -> Answer:
    """An answer that was not streamed, read."""
    top = msgspec.json.decode(answer.body)
    for each in top["choices"]:
        message = each.get("message") or {}
        content = message.get("content")
        if message.get("tool_calls") or not content:
            continue
        reader = _reader(choice)
        said = [*reader.feed(content if isinstance(content, str) else content_text(content)), *reader.close()]
        calls = [encode_call(piece.call) for piece in said if piece.call is not None]
        text = "".join(piece.text for piece in said if piece.kind == "text")
        thought = "".join(piece.text for piece in said if piece.kind == "thought")
        message["content"] = text or (None if calls else "")
        if thought:
            name = (
                "reasoning"
                if message.get("reasoning") and not message.get("reasoning_content")
                else "reasoning_content"
            )
            message[name] = (message.get(name) or "") + thought
        if calls:
            message["tool_calls"] = calls
        each["logprobs"] = None
        each["finish_reason"] = _end(each.get("finish_reason") or "stop", reader, called=False)
    return read_answer(_encode(top), new_call_id)
