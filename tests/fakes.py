"""Stand-ins for what a turn talks to: a backend that follows a script, a client that remembers what it was sent.

The recording tool provider and the hand-moved clock live beside what they stand in for and are named here too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.backends.backend import ModelCall
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.deltas import Assembly
from gateway.chat.normalise import normalise_answer
from gateway.chat.relay import StreamWriter
from gateway.chat.sse import SseParser
from gateway.chat.usage import Usage
from gateway.errors import UpstreamTimeout
from gateway.ids import new_call_id
from gateway.store.memory import MemoryJournal
from gateway.store.store import JournalEntry
from tests.clocks import HandClock
from tests.frames import Frame
from tests.tools.recording_provider import RecordingProvider, spec

__all__ = ["HandClock", "KeptJournal", "RecordingProvider", "RecordingSink", "ScriptedBackend", "spec"]

Item = Frame | BaseException | Callable[[], Awaitable[None]]
Script = Sequence[Item] | BaseException | Callable[[ModelCall], Sequence[Item]]


class ScriptedBackend:
    """`Backend`: each call takes the next script, whole or streamed; `then` answers all later ones.

    A script is the frames of a stream; a whole answer says the same. An exception in it is raised where it stands, a
    function is awaited there. A function of the call makes a script.
    """

    def __init__(self, *scripts: Script, then: Script | None = None, name: str = "b1", together: int = 1) -> None:
        self._scripts = list(scripts)
        self._then = then
        self._name = name
        self._together = together
        self.calls: list[ModelCall] = []
        self.closed_early = 0

    @property
    def name(self) -> str:
        return self._name

    def field(self, number: int, name: str) -> Any:
        """A field of the call with this number, counted from 0; None where it was not sent."""
        raw = self.calls[number].fields.get(name)
        return None if raw is None else json.loads(bytes(raw))

    async def complete(self, call: ModelCall) -> Answer:
        # As every adapter: a whole answer takes `timeout_s` at most.
        try:
            async with asyncio.timeout(call.timeout_s):
                return _answer([frame async for frame in self._played(call)])
        except TimeoutError as error:
            raise UpstreamTimeout("The script went past the call's time limit.") from error

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Chunk], None]:
        batch: list[Chunk] = []
        done = False
        try:
            try:
                async for frame in self._played(call):
                    batch.append(decode_chunk(json.dumps(frame.payload).encode()))
                    if len(batch) == self._together:
                        yield batch
                        batch = []
            except Exception:
                if batch:
                    yield batch
                raise
            if batch:
                yield batch
            done = True
        finally:
            self.closed_early += not done

    async def close(self) -> None:
        return

    async def _played(self, call: ModelCall) -> AsyncGenerator[Frame, None]:
        self.calls.append(call)
        script = self._scripts.pop(0) if self._scripts else self._then
        assert script is not None, f"call {len(self.calls)} has no script"
        if isinstance(script, BaseException):
            raise script
        for item in script(call) if callable(script) else script:
            if isinstance(item, Frame):
                yield item
            elif isinstance(item, BaseException):
                raise item
            else:
                await item()


def _answer(frames: Sequence[Frame]) -> Answer:
    """The whole answer that says what these frames say."""
    assembly = Assembly(new_call_id)
    usage: Any = None
    for frame in frames:
        fields = decode_chunk(json.dumps(frame.payload).encode()).fields
        for choice in fields.choices or ():
            if not choice.index and choice.delta is not None:
                assembly.add(choice.delta, choice.finish_reason)
        if fields.usage is not None:
            assert isinstance(frame.payload, dict)
            usage = frame.payload["usage"]
    message = assembly.message()
    calls = [{"id": c.id, "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
    thought = "".join(assembly.reasoning) or None
    refusal = "".join(assembly.refusal) or None
    said = {"content": message.text, "reasoning_content": thought, "refusal": refusal, "tool_calls": calls}
    only = {"message": said, "finish_reason": assembly.finish_reason}
    body = {"id": "up", "created": 17, "model": "up", "choices": [only], **({"usage": usage} if usage else {})}
    return normalise_answer(json.dumps(body).encode(), new_call_id)


@dataclass
class RecordingSink:
    """`Sink`: the client's side of a stream, read as an SDK reads it."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    started: bool = False
    ended: bool = False
    finish_calls: int = 0
    usage: Usage | None = None

    def __post_init__(self) -> None:
        self._writer = StreamWriter("answer", 1, "shown")
        self._parser = SseParser()

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        assert chunks, "an empty batch is not sent"
        self._read(self._writer.frames(chunks))

    def straight(self) -> None:
        return None

    async def add(self, text: str) -> None:
        self._read(self._writer.chunk({"content": text} if self.chunks else {"role": "assistant", "content": text}))

    async def finish(self, reason: str | None, usage: Usage) -> None:
        self.finish_calls += 1
        if reason is not None:
            self._read(self._writer.chunk({} if self.chunks else {"role": "assistant", "content": ""}, reason))
        self.usage = usage
        self.ended = True

    def _read(self, data: bytes) -> None:
        assert not self.ended, "nothing comes after the end"
        self.chunks += [json.loads(event) for event in self._parser.feed(data)]

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Every choice of every chunk."""
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return "".join(choice["delta"].get("content") or "" for choice in self.choices if not choice["index"])

    @property
    def roles(self) -> list[str]:
        """Every role that was sent."""
        return [choice["delta"]["role"] for choice in self.choices if "role" in choice["delta"]]

    @property
    def finishes(self) -> list[str]:
        """Every finish reason that was sent."""
        return [choice["finish_reason"] for choice in self.choices if choice["finish_reason"]]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of the calls, accumulated by index; an index out of order fails."""
        found: list[list[str]] = []
        for piece in (piece for choice in self.choices for piece in choice["delta"].get("tool_calls") or ()):
            if piece["index"] == len(found):
                assert piece["id"]
                found.append([piece["function"]["name"], ""])
            found[piece["index"]][1] += piece["function"].get("arguments") or ""
        return [(name, arguments) for name, arguments in found]


class KeptJournal(MemoryJournal):
    """The journal in memory, looked into by tests; `fails` is raised instead of keeping anything."""

    def __init__(self, fails: Exception | None = None) -> None:
        super().__init__()
        self.kept: list[JournalEntry] = []
        self._fails = fails

    async def append(self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False) -> None:
        if self._fails is not None:
            raise self._fails
        await super().append(entries, held_by=held_by, hasty=hasty)
        self.kept += entries
