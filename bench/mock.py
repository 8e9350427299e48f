"""A mock upstream that costs as little as Python can: every answer is built before the first request.

`/v1` answers at once, a stream in one write. `/long/v1` streams LONG events. `/paced/v1`, `/steady/v1` and `/slow/v1` write an
event at a time, as GAPS_MS says. `/tools/v1` answers a conversation without a tool result with a call of `noop`, and one with
a result with the usual text; `/writes/v1` does the same with `noop_write`.
Knows just enough HTTP to find the end of a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any, Final, cast

import uvloop

# Between two events of a stream, by the first part of the path.
GAPS_MS: Final = {b"post /paced/": 2.0, b"post /steady/": 16.0, b"post /slow/": 1000.0}
EVENTS: Final = 53
LONG: Final = 2000

_WORDS: Final = (
    "routing ",
    "a request ",
    "to the right ",
    "model keeps ",
    "the answer ",
    "quick, cheap ",
    "and good; ",
    "each rule ",
    "is checked ",
    "in order. ",
)
_USAGE: Final = {"prompt_tokens": 420, "completion_tokens": 50, "total_tokens": 470}
_HEAD: Final = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": "mock-model"}


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _with_length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def json_answer() -> bytes:
    """A response whose body is 1.5 KB, text of about 300 tokens."""
    text = "".join(_WORDS[i % len(_WORDS)] for i in range(110))
    message = {"role": "assistant", "content": text, "refusal": None}
    return _with_length(_encoded(_answer(message, "stop")))


def tool_answer(name: str) -> bytes:
    """A response that calls this tool."""
    message = {"role": "assistant", "content": None, "tool_calls": [_call(name)]}
    return _with_length(_encoded(_answer(message, "tool_calls")))


def tool_stream(name: str) -> bytes:
    """A streamed response that calls this tool: its name, then its arguments in two pieces, as servers cut them."""
    call = _call(name)
    first, second = call["function"]["arguments"][:6], call["function"]["arguments"][6:]
    named = {**call, "function": {"name": name, "arguments": ""}}
    pieces: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [{"index": 0, **named}]}]
    pieces += [{"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in (first, second)]
    chunks = [_chunk(_choice(piece)) for piece in pieces]
    chunks += [_chunk(_choice({}, "tool_calls")), _chunk([], _USAGE), b"data: [DONE]\n\n"]
    return STREAM_HEAD + b"".join(map(_chunked, chunks)) + b"0\r\n\r\n"


def _call(name: str) -> dict[str, Any]:
    return {"id": "call_bench", "type": "function", "function": {"name": name, "arguments": '{"text":"bench"}'}}


def _answer(message: dict[str, Any], finish: str) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    usage = {"prompt_tokens": 420, "completion_tokens": 300, "total_tokens": 720}
    return {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": usage}


def events(count: int = EVENTS) -> list[bytes]:
    """The events of a stream (role, content, finish, usage) and `[DONE]`."""
    return [
        _chunk(_choice({"role": "assistant", "content": ""})),
        *(_chunk(_choice({"content": _WORDS[i % len(_WORDS)]})) for i in range(count - 3)),
        _chunk(_choice({}, "stop")),
        _chunk([], _USAGE),
        b"data: [DONE]\n\n",
    ]


def _chunk(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
    body = {**_HEAD, "object": "chat.completion.chunk", "choices": choices, "usage": usage}
    return b"data: " + _encoded(body) + b"\n\n"


def _choice(delta: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


JSON: Final = json_answer()
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
# By the first part of the path: plain and streamed.
CALLS: Final = {
    b"post /tools/": (tool_answer("noop"), tool_stream("noop")),
    b"post /writes/": (tool_answer("noop_write"), tool_stream("noop_write")),
}
PACED: Final = [
    STREAM_HEAD + _chunked(events()[0]),
    *map(_chunked, events()[1:-1]),
    _chunked(events()[-1]) + b"0\r\n\r\n",
]
BURST: Final = b"".join(PACED)
LONG_BURST: Final = STREAM_HEAD + b"".join(map(_chunked, events(LONG))) + b"0\r\n\r\n"


class Mock(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._received = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received = received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = received[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(received) < end + 4 + length:
            return
        self._received = b""
        self._answer(head, received)

    def _answer(self, head: bytes, request: bytes) -> None:
        streamed = b'"stream":true' in request or b'"stream": true' in request
        first = head[: head.index(b"/", 6) + 1]
        calls = CALLS.get(first)
        if calls is not None and b'"tool_call_id"' not in request:
            self._transport.write(calls[streamed])
        elif streamed:
            if first in GAPS_MS:
                self._pace(0, GAPS_MS[first] / 1000)
            elif first == b"post /long/":
                self._transport.write(LONG_BURST)
            else:
                self._transport.write(BURST)
        else:
            self._transport.write(JSON)

    def _pace(self, index: int, gap_s: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(PACED[index])
        if index + 1 < len(PACED):
            self._loop.call_later(gap_s, self._pace, index + 1, gap_s)


async def serve(port: int) -> None:
    """Serve on 127.0.0.1 until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    uvloop.run(serve(arguments.parse_args().port))
