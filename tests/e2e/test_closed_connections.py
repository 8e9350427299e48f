"""Upstreams that close a connection they kept just as it is used again: the client does not get to know."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Served, native_config, serving
from tests.upstream import DONE, Eof, Pause, Reply, ScriptedUpstream, answer, d, f, hang_up, stream

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
HOW = pytest.mark.parametrize("closing", [hang_up(), Reply(before=(Eof(),))], ids=["reset", "end"])


def good(*, streamed: bool) -> Reply:
    return stream(d({"role": "assistant", "content": "here"}), f("stop"), DONE) if streamed else answer("here")


async def ask(gateway: Served, *, streamed: bool, size: int = 2) -> tuple[int, str]:
    """The status, and the text or the error's code."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "h" * size}]}
    if streamed:
        async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json={**body, "stream": True}) as response:
            raw = await response.text()
            return response.status, "here" if raw.count('"here"') == 1 else raw
    status, _, told = await gateway.post("/v1/chat/completions", body)
    return status, told["choices"][0]["message"]["content"] if status == 200 else told["error"]["code"]


@HOW
@BOTH
async def test_request_is_sent_again_over_a_new_connection(tmp_path: Path, streamed: bool, closing: Reply) -> None:
    well = good(streamed=streamed)
    async with (
        ScriptedUpstream(well, closing, well) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
    ):
        for _ in range(2):
            assert await ask(gateway, streamed=streamed) == (200, "here")
        assert [request.connection for request in upstream.requests] == [1, 1, 2]
        trace = (await gateway.get("/v1/traces"))[2]["data"][0]["id"]
        told = {event["type"]: event["data"] for event in (await gateway.trace(trace))["events"]}
    assert (told["attempt.failed"]["attempt"], told["attempt.failed"]["outcome"]) == (1, "unavailable")
    assert told["round.answered"]["attempt"] == 2


@BOTH
async def test_large_request_is_sent_again_too(tmp_path: Path, streamed: bool) -> None:
    """Its connection is closed while it is still being sent."""
    well, size = good(streamed=streamed), 900_000
    heads = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heads
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads += 1
                if heads == 2:
                    break  # nothing of the body is read: what is not sent yet cannot be
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                kind = next(value for name, value in well.headers if name == "content-type")
                head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(well.body)}\r\n\r\n".encode()
                writer.write(head + well.body)
        writer.transport.abort()

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    async with await asyncio.start_server(talk, sock=listener), serving(tmp_path, native_config(url)) as gateway:
        assert await ask(gateway, streamed=streamed) == (200, "here")
        assert await ask(gateway, streamed=streamed, size=size) == (200, "here")
        assert heads == 3
    await asyncio.sleep(0.01)


@HOW
@BOTH
async def test_it_is_sent_again_once_and_never_over_a_connection_that_was_new(
    tmp_path: Path, streamed: bool, closing: Reply
) -> None:
    async with (
        ScriptedUpstream(good(streamed=streamed), then=closing) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
    ):
        await ask(gateway, streamed=streamed)
        assert (await ask(gateway, streamed=streamed))[0] == 502
        assert [request.connection for request in upstream.requests] == [1, 1, 2]
        assert (await ask(gateway, streamed=streamed))[0] == 502
        assert len(upstream.requests) == 4


@BOTH
async def test_it_is_not_sent_again_where_the_upstream_had_time_to_work_on_it(tmp_path: Path, streamed: bool) -> None:
    crashing = Reply(before=(Pause(1.1), Eof()))
    async with (
        ScriptedUpstream(good(streamed=streamed), crashing) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
    ):
        await ask(gateway, streamed=streamed)
        assert (await ask(gateway, streamed=streamed))[0] == 502
        assert len(upstream.requests) == 2


@BOTH
async def test_many_that_are_closed_at_the_same_time_are_no_outage(tmp_path: Path, streamed: bool) -> None:
    """Each of them was a fault, and five are enough to leave a backend alone."""
    many, well = 12, good(streamed=streamed)
    async with (
        ScriptedUpstream(*[well.held()] * many, *[hang_up()] * many, then=well) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
    ):

        async def all_of_them() -> list[tuple[int, str]]:
            return await asyncio.gather(*[ask(gateway, streamed=streamed) for _ in range(many)])

        first = asyncio.create_task(all_of_them())
        await upstream.received(many)
        upstream.release()
        assert await first == [(200, "here")] * many
        assert await all_of_them() == [(200, "here")] * many
