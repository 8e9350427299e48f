"""A Chat Completions stream on its way to the client.

Knows frames, response headers and silence. What may be seen is decided before; what a frame looks like is `chat/relay.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from gateway.api.cycle import AtOnce, head_lines
from gateway.api.errors import ErrorAnswer
from gateway.api.http import Headers
from gateway.chat.blocks import ToolCall
from gateway.chat.chunk import Chunk, Form, Run
from gateway.chat.deltas import CallPiece, encode_piece
from gateway.chat.relay import DONE, KEEP_ALIVE, StreamWriter
from gateway.chat.usage import Usage

SILENCE_S = 15.0

STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_HEAD: Final = head_lines(STREAM_HEADERS)

_encode = msgspec.json.Encoder().encode


class Pieces(Protocol):
    """An answer that is sent piece by piece."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """What it runs in."""
        ...

    def begin(self, lines: bytes) -> None:
        """Begin it; the head, with these lines, goes with the first piece."""
        ...

    @property
    def full(self) -> bool:
        """Whether there is no room for a piece."""
        ...

    async def room(self) -> None:
        """Wait until there is, if there is none."""
        ...

    def go_on(self, body: bytes, *, more: bool) -> None:
        """Send a piece; `more` follow, or it is over."""
        ...

    def at_once(self) -> AtOnce | None:
        """What sends pieces behind others without waiting; None where nothing does."""
        ...


class ChatStream:
    """Implements `Sink` for Chat Completions, and is itself the way for text that goes straight.

    The response starts with the first visible chunk, so that a failure before it is an ordinary HTTP error; or with the
    first comment, after `silence_s` seconds without a byte.

    Args:
        pieces: where it goes.
        writer: called for what makes the frames, once there is one to make.
        lines: called when the response starts, for more lines of its head: by then it is known which backend answers.
        include_usage: whether the stream ends with a usage chunk.
        silence_s: seconds without a byte after which a comment is sent.
    """

    # What is the same for most of them costs nothing as long as it stays so.
    started = False
    ended = False
    _made_writer: StreamWriter | None = None
    _at_once: AtOnce | None = None
    _ends = False
    _comment: asyncio.Task[None] | None = None
    _pending = b""
    _flush: asyncio.Handle | None = None
    _flushing: asyncio.Task[None] | None = None
    _begun = False
    _role_sent = False

    def __init__(
        self,
        pieces: Pieces,
        writer: Callable[[], StreamWriter],
        lines: Callable[[], bytes],
        *,
        include_usage: bool,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._pieces = pieces
        self._make_writer = writer
        self._lines = lines
        self._include_usage = include_usage
        self._silence_s = silence_s
        self._loop = pieces.loop
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(silence_s, self._silent)

    @property
    def _writer(self) -> StreamWriter:
        made = self._made_writer
        if made is None:
            made = self._made_writer = self._make_writer()
        return made

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        """Send chunks in one write; those that end the answer in one with what follows at once, unless nothing was sent yet."""
        self._role_sent = True
        frames = self._writer.frames(chunks)
        if not self._begun or not any(choice.finish_reason for choice in chunks[-1].choices):
            await self._write(frames)
            return
        self.started = True
        # Nothing may come before what waits.
        self._ends = True
        self._pending += frames
        if self._flush is None:
            self._flush = self._loop.call_soon(self._no_more)

    def straight(self) -> ChatStream | None:
        """This, as long as the end was not sent. Only behind something that was relayed."""
        if self._at_once is None and not self._ends:
            self._at_once = self._pieces.at_once()
        return self if self._at_once is not None and not self._ends else None

    @property
    def passed(self) -> float:
        """See `Straight.passed`."""
        return 0.0 if self._at_once is None else self._at_once.last

    def texts(self, form: Form) -> Callable[[bytes], bool] | None:
        """See `Straight.texts`."""
        around = None if self._ends else self._writer.around(form)
        if around is None or self._at_once is None:
            return None
        before, _, behind = around
        # The text comes with its quotation marks.
        self._at_once.shape(before[:-1], behind[1:])
        return self._at_once.alike

    def run(self, run: Run) -> bool:
        """See `Straight.run`."""
        if self._ends or self._at_once is None:
            return False
        frames = self._writer.run(run)
        return frames is not None and self._at_once.write(frames)

    async def add(self, text: str) -> None:
        """Send the gateway's own words as content."""
        delta = {"content": text} if self._role_sent else {"role": "assistant", "content": text}
        self._role_sent = True
        await self._write(self._writer.chunk(delta))

    async def add_calls(self, calls: Sequence[ToolCall]) -> None:
        """Send whole tool calls, one chunk for all."""
        delta: dict[str, object] = {} if self._role_sent else {"role": "assistant", "content": None}
        delta["tool_calls"] = [
            encode_piece(CallPiece(position, True, call.id, call.name, call.arguments, call.custom))
            for position, call in enumerate(calls)
        ]
        self._role_sent = True
        await self._write(self._writer.chunk(delta))

    async def finish(self, reason: str | None, usage: Usage) -> None:
        """Send what is left and end the response."""
        parts: list[bytes] = []
        if reason is not None:
            delta = {} if self._role_sent else {"role": "assistant", "content": ""}
            parts.append(self._writer.chunk(delta, reason))
        if self._include_usage:
            parts.append(self._writer.usage(usage))
        parts.append(DONE)
        await self._write(b"".join(parts), last=True)

    async def fail(self, answer: ErrorAnswer) -> None:
        """End a response that has begun: one error frame, the end mark, and no finish reason before them."""
        await self._write(b"data: " + _encode({"error": answer.as_dict()}) + b"\n\n" + DONE, last=True)

    def close(self) -> None:
        """Stop the timer. Needed once, however the stream ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._comment is not None:
            self._comment.cancel()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._flushing is not None:
            self._flushing.cancel()

    async def _write(self, body: bytes, *, last: bool = False) -> None:
        if self._flushing is not None:
            flushing, self._flushing = self._flushing, None
            await flushing
        if self._pending:
            body, self._pending = self._pending + body, b""
        if last:
            self.ended = self._ends = True
            self.close()
        self.started = True
        if not self._begun:
            self._begun = True
            self._pieces.begin(_HEAD + self._lines())
        self._last = self._loop.time()
        if self._pieces.full:
            await self._pieces.room()
        self._pieces.go_on(body, more=not last)

    async def _send_later(self, body: bytes) -> None:
        """Send what waited, once there is room for it."""
        self._last = self._loop.time()
        await self._pieces.room()
        self._pieces.go_on(body, more=True)

    def _no_more(self) -> None:
        """Nothing followed at once: send what waits for it."""
        self._flush = None
        if self._pending and not self.ended:
            body, self._pending = self._pending, b""
            if self._at_once is not None and self._at_once.write(body):
                return
            self._flushing = self._loop.create_task(self._send_later(body))

    def _silent(self) -> None:
        """The timer: writes a comment if nothing was written meanwhile, and looks again later."""
        left = max(self._last, self.passed) + self._silence_s - self._loop.time()
        if left <= 0 and not self.ended:
            self._comment = self._loop.create_task(self._write(KEEP_ALIVE))
            left = self._silence_s
        self._timer = self._loop.call_later(left, self._silent)
