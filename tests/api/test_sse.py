from __future__ import annotations

import asyncio
from typing import Any

from gateway.api.cycle import LINES
from gateway.api.errors import internal
from gateway.api.sse import ChatStream
from gateway.chat.blocks import ToolCall
from gateway.chat.relay import StreamWriter
from gateway.chat.usage import Usage


class Client:
    """The ASGI side: what was sent, and a way to wait for it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._came = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        self._came.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def opened(client: Client, *, include_usage: bool = False, silence_s: float = 15) -> ChatStream:
    writer = StreamWriter("chatcmpl-1", 1, "m", with_usage=include_usage)
    lines = b"x-gateway-backend: b1\r\n"
    return ChatStream(client.send, lambda: writer, lambda: lines, include_usage=include_usage, silence_s=silence_s)


async def test_response_starts_with_the_first_chunk_and_its_headers() -> None:
    client = Client()
    stream = opened(client)
    assert client.messages == []
    await stream.add("hi")
    start = client.messages[0]
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    headers = dict(start["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-accel-buffering"] == b"no"
    assert start[LINES] == b"x-gateway-backend: b1\r\n"
    assert b"content-length" not in headers
    stream.close()


async def test_role_is_sent_once_and_the_end_mark_last() -> None:
    client = Client()
    stream = opened(client, include_usage=True)
    await stream.add("a")
    await stream.add("b")
    await stream.add_calls([ToolCall("x", "f", "{}")])
    await stream.finish("tool_calls", Usage(1, 2))
    assert client.body.count(b'"role":"assistant"') == 1
    assert client.body.count(b'"finish_reason":"tool_calls"') == 1
    assert client.body.count(b'"total_tokens":3') == 1
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert [message.get("more_body") for message in client.messages[1:]] == [True, True, True, False]


async def test_usage_is_sent_to_those_alone_who_asked() -> None:
    client = Client()
    stream = opened(client)
    await stream.finish("stop", Usage(1, 2))
    assert b"usage" not in client.body
    assert client.body.count(b'"role":"assistant"') == 1


async def test_silence_is_filled_with_comments_and_starts_the_response() -> None:
    client = Client()
    stream = opened(client, silence_s=0.01)
    await client.until(3)
    assert client.messages[0]["status"] == 200
    assert client.body.startswith(b": keep-alive\n\n: keep-alive\n\n")
    await stream.finish("stop", Usage())
    ended = len(client.messages)
    assert stream._timer is None
    assert client.messages[ended - 1]["more_body"] is False


async def test_busy_stream_gets_no_comments() -> None:
    client = Client()
    stream = opened(client, silence_s=30)
    loop = asyncio.get_running_loop()
    await stream.add("x")
    stream._last = loop.time()
    stream._silent()
    await asyncio.sleep(0)
    assert b"keep-alive" not in client.body
    stream.close()


async def test_failure_in_mid_stream_is_one_error_frame_and_the_end_mark() -> None:
    client = Client()
    stream = opened(client)
    await stream.add("x")
    await stream.fail(internal())
    tail = client.body[client.body.index(b'data: {"error"') :]
    assert tail.count(b"data: ") == 2
    assert tail.endswith(b"data: [DONE]\n\n")
    assert b'"finish_reason":"' not in client.body
    assert stream.ended
