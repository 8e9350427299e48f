from __future__ import annotations

import asyncio

from gateway.api.errors import internal
from gateway.api.sse import ChatStream
from gateway.chat.blocks import Message, Text, ToolCall
from gateway.chat.relay import StreamWriter
from gateway.chat.usage import Usage
from gateway.turn.stream import end_chunk, whole_chunk


class Client:
    """The client's side: what was sent, and a way to wait for it."""

    full = False

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.pieces: list[bytes] = []
        self.over = False
        self._came = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def begin(self, lines: bytes) -> None:
        self.heads.append(lines)

    async def room(self) -> None:
        """There is room."""

    def go_on(self, body: bytes, *, more: bool) -> None:
        assert self.heads
        assert not self.over
        self.pieces.append(body)
        self.over = not more
        self._came.set()

    def at_once(self) -> None:
        return None

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.pieces) < count:
                self._came.clear()
                await self._came.wait()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def opened(client: Client, *, include_usage: bool = False, silence_s: float = 15) -> ChatStream:
    writer = StreamWriter("chatcmpl-1", 1, "m", with_usage=include_usage)
    lines = b"x-gateway-backend: b1\r\n"
    return ChatStream(client, lambda: writer, lambda: lines, include_usage=include_usage, silence_s=silence_s)


async def test_response_starts_with_the_first_chunk_and_its_headers() -> None:
    client = Client()
    stream = opened(client)
    assert client.heads == []
    await stream.add("hi")
    await stream.add("again")
    (head,) = client.heads
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"content-type: text/event-stream")
    assert lines[1:] == [b"cache-control: no-cache", b"x-accel-buffering: no", b"x-gateway-backend: b1", b""]
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
    assert len(client.pieces) == 4
    assert client.over


async def test_what_comes_first_is_sent_at_once_though_it_ends_the_answer() -> None:
    client = Client()
    stream = opened(client)
    await stream.relay([whole_chunk(Message("assistant", (Text("hi"),)), "stop")])
    assert len(client.pieces) == 1
    await stream.finish(None, Usage(1, 2))
    assert client.pieces[1:] == [b"data: [DONE]\n\n"]


async def test_what_ends_an_answer_is_sent_with_what_follows_at_once() -> None:
    client = Client()
    stream = opened(client)
    await stream.relay([whole_chunk(Message("assistant", (Text("hi"),)), None)])
    await stream.relay([end_chunk("stop")])
    assert len(client.pieces) == 1
    await stream.finish(None, Usage(1, 2))
    assert len(client.pieces) == 2
    assert client.pieces[1].endswith(b"data: [DONE]\n\n")


async def test_what_ends_an_answer_is_sent_though_nothing_follows_at_once() -> None:
    client = Client()
    stream = opened(client)
    await stream.add("hi")
    await stream.relay([end_chunk("stop")])
    await client.until(2)
    await stream.finish(None, Usage(1, 2))
    assert client.pieces[2:] == [b"data: [DONE]\n\n"]


async def test_usage_is_sent_to_those_alone_who_asked() -> None:
    client = Client()
    stream = opened(client)
    await stream.finish("stop", Usage(1, 2))
    assert b"usage" not in client.body
    assert client.body.count(b'"role":"assistant"') == 1


async def test_silence_is_filled_with_comments_and_starts_the_response() -> None:
    client = Client()
    stream = opened(client, silence_s=0.01)
    await client.until(2)
    assert len(client.heads) == 1
    assert client.body.startswith(b": keep-alive\n\n: keep-alive\n\n")
    await stream.finish("stop", Usage())
    assert stream._timer is None
    assert client.over


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
