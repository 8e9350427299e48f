"""How a scripted upstream answers one request: what it writes, in which pieces, and where it waits or breaks off.

Values only: `upstream.py` performs them on a socket. Offsets count the bytes of the body, before transfer encoding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.frames import CREATED, LF, MODEL, Frame, Framing, usage


@dataclass(frozen=True, slots=True)
class Stall:
    """Wait until the test releases this gate."""

    gate: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection with a TCP reset."""


@dataclass(frozen=True, slots=True)
class Eof:
    """Close the connection in the ordinary way, but before the body is complete."""


Step = bytes | Stall | Pause | Reset | Eof


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        status: HTTP status.
        headers: sent as given, beside those that the transfer needs.
        steps: the body's bytes, with waits and breaks between them.
        before: waits and breaks before the status line.
        sizes: sizes of the pieces a body is written in, repeated to its end; empty writes each step whole.
        transfer: how the body's end is told: by length, by chunked encoding, or by closing the connection.
        length: the length to declare, None for the body's own.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    steps: tuple[Step, ...] = ()
    before: tuple[Step, ...] = ()
    sizes: tuple[int, ...] = ()
    transfer: Literal["length", "chunked", "close"] = "length"
    length: int | None = None

    @property
    def body(self) -> bytes:
        """All bytes of the body that are sent."""
        return b"".join(step for step in self.steps if isinstance(step, bytes))

    def cut(self, *sizes: int) -> Reply:
        """The same body written in pieces of these sizes, in turn: `cut(1)` writes single bytes."""
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sizes of pieces are 1 or more, not {sizes!r}")
        return replace(self, sizes=sizes)

    def delayed(self, seconds: float) -> Reply:
        """The same after this time."""
        return replace(self, before=(Pause(seconds), *self.before))

    def held(self, gate: str = "") -> Reply:
        """The same once the test releases the gate: until then not even the status line is sent."""
        return replace(self, before=(Stall(gate), *self.before))

    def stall_at(self, offset: int, gate: str = "") -> Reply:
        """The same, waiting for the gate after `offset` bytes of the body."""
        head, tail = self._split(offset)
        return replace(self, steps=(*head, Stall(gate), *tail))

    def reset_at(self, offset: int) -> Reply:
        """The first `offset` bytes of the body, then a TCP reset."""
        return self._broken_off(offset, Reset())

    def eof_at(self, offset: int) -> Reply:
        """The first `offset` bytes, then the connection closes: the declared body is incomplete."""
        return self._broken_off(offset, Eof())

    def end_at(self, offset: int) -> Reply:
        """The first `offset` bytes as a body that HTTP takes for complete."""
        return replace(self, steps=tuple(self._split(offset)[0]))

    def until_close(self) -> Reply:
        """The same without length or chunks: the end of the connection ends the body."""
        return replace(self, transfer="close")

    def _broken_off(self, offset: int, how: Step) -> Reply:
        return replace(self, steps=(*self._split(offset)[0], how), length=len(self.body))

    def _split(self, offset: int) -> tuple[list[Step], list[Step]]:
        if not 0 <= offset <= len(self.body):
            raise ValueError(f"offset {offset} lies outside a body of {len(self.body)} bytes")
        head: list[Step] = []
        tail: list[Step] = []
        left = offset
        for step in self.steps:
            if isinstance(step, bytes):
                if step[:left]:
                    head.append(step[:left])
                if step[left:]:
                    tail.append(step[left:])
                left -= min(left, len(step))
            else:
                (tail or head).append(step)
        return head, tail


def body(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Any JSON value as an answer; bytes are sent as they are."""
    raw = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    given = {"content-type": "application/json"} | dict(headers or {})
    return Reply(status, tuple(given.items()), (raw,))


def call(id: str, name: str, arguments: str) -> dict[str, Any]:  # noqa: A002
    """A whole tool call, as it stands in a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(
    content: str | None = None,
    *,
    calls: Sequence[dict[str, Any]] = (),
    finish: str | None = None,
    tokens: tuple[int, int] = (1, 1),
    **fields: Any,
) -> Reply:
    """A Chat Completions answer with this text, or with these tool calls; `tokens` is its prompt and completion."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    reason = finish or ("tool_calls" if calls else "stop")
    usual = {
        "id": "chatcmpl-upstream",
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": usage(*tokens),
    }
    return body(usual | fields)


def error(
    status: int,
    message: str = "scripted error",
    *,
    kind: str = "server_error",
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An OpenAI error body with this status."""
    content = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return body(content, status=status, headers=headers)


def stream(
    *items: Frame | Step | Iterable[Frame], framing: Framing = LF, headers: Mapping[str, str] | None = None
) -> Reply:
    """A stream of frames, each a write of its own; raw bytes, waits and breaks may stand between them."""
    steps: list[Step] = []
    first = True
    for item in items:
        if isinstance(item, bytes | Stall | Pause | Reset | Eof):
            steps.append(item)
            continue
        for frame in (item,) if isinstance(item, Frame) else item:
            steps.append(framing.event(frame, first=first))
            first = False
    given = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"} | dict(headers or {})
    return Reply(200, tuple(given.items()), tuple(steps), transfer="chunked")


def hang_up() -> Reply:
    """No answer: the connection is reset once the request has been read."""
    return Reply(before=(Reset(),))
