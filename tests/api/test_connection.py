"""What a client can do to a connection before there is a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.api.connection import Connection
from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, d, f, stream, words

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Served]:
    async with (
        ScriptedUpstream(then=answer("hello")) as upstream,
        serving(folder, native_config(upstream.base_url)) as on,
    ):
        yield on


class Line:
    """A client that writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.reader = reader

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """The next answer: its status and JSON."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            body: dict[str, Any] = json.loads(await self.reader.readexactly(length))
        assert "x-request-id: req_" in head
        assert "x-gateway-trace: " in head
        return int(head.split()[1]), body

    async def pushed(self, piece: bytes) -> int:
        """Write the piece again and again, until there is an answer: its status."""
        async with asyncio.timeout(10):
            answer = asyncio.create_task(self.answer())
            while not answer.done():
                self.writer.write(piece)
                await asyncio.sleep(0.01)
            return (await answer)[0]

    async def end(self, within_s: float = 10) -> bytes:
        """What still comes, up to the end of the connection."""
        async with asyncio.timeout(within_s):
            return await self.reader.read()


@asynccontextmanager
async def line(on: Served) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(on.url).port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


def head(extra: str = "", length: int = len(BODY)) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("apart", [False, True], ids=["one write", "body in pieces"])
async def test_offered_upgrade_costs_no_body(tmp_path: Path, *, apart: bool) -> None:
    async with gateway(tmp_path) as on, line(on) as client:
        for _ in range(2):  # the connection stays good
            client.writer.write(head(UPGRADE) if apart else head(UPGRADE) + BODY)
            if apart:
                for piece in (BODY[:10], BODY[10:]):
                    await asyncio.sleep(0.02)
                    client.writer.write(piece)
            status, body = await client.answer()
            assert status == 200, body
            assert body["choices"][0]["message"]["content"] == "hello"


async def test_bytes_that_are_no_request_get_an_openai_error(tmp_path: Path) -> None:
    async with gateway(tmp_path) as on:
        for bad in (b"nonsense\r\n\r\n", b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n"):
            async with line(on) as client:
                client.writer.write(bad)
                status, body = await client.answer()
                assert (status, body["error"]["type"]) == (400, "invalid_request_error")
                assert await client.end() == b""


@pytest.mark.parametrize("sent", [b"", head()[:60], head() + BODY[:20]], ids=["nothing", "half a head", "half a body"])
async def test_client_that_never_finishes_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(Connection, "patience_s", 0.3)
    async with gateway(tmp_path) as on, line(on) as client:
        client.writer.write(sent)
        status, body = await client.answer()
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert await client.end() == b""


async def test_client_that_drips_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "patience_s", 0.5)
    async with gateway(tmp_path) as on, line(on) as client:
        client.writer.write(head(length=100_000))

        async def drip() -> None:
            while True:
                client.writer.write(b" ")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            assert (await client.answer())[0] == 408
        finally:
            dripping.cancel()


@pytest.mark.parametrize("sent", [b"", BODY[:5]], ids=["nothing", "a little"])
async def test_client_whose_body_stays_away_is_let_go_however_often_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(Connection, "patience_s", 0.4)
    async with gateway(tmp_path) as on, line(on) as client:
        for _ in range(3):
            client.writer.write(head() + BODY)
            assert (await client.answer())[0] == 200
        client.writer.write(head() + sent)
        status, said = await client.answer()
        assert (status, said["error"]["code"]) == (408, "request_timeout")
        assert await client.end() == b""


async def test_a_large_body_behind_a_head_that_is_known(tmp_path: Path) -> None:
    large = json.dumps({**json.loads(BODY), "metadata": {"x": "y" * 1_000_000}}).encode()
    async with ScriptedUpstream(then=answer("hello")) as upstream:
        async with serving(tmp_path, native_config(upstream.base_url)) as on, line(on) as client:
            for _ in range(4):
                client.writer.write(head() + BODY + head(length=len(large)) + large)
                assert [(await client.answer())[0] for _ in range(2)] == [200, 200]
                client.writer.write(head(length=len(large)))
                await client.writer.drain()
                await asyncio.sleep(0.02)
                client.writer.write(large)
                assert (await client.answer())[0] == 200
        sizes = [len(each.json.get("metadata", {}).get("x", "")) for each in upstream.requests]
        assert sizes == [0, 1_000_000, 1_000_000] * 4


async def test_slow_but_steady_client_is_heard_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "patience_s", 1.0)
    long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 60_000}]}).encode()
    async with gateway(tmp_path) as on, line(on) as client:
        client.writer.write(head(length=len(long)))
        for at in range(0, len(long), 6000):
            client.writer.write(long[at : at + 6000])
            await asyncio.sleep(0.15)
        assert (await client.answer())[0] == 200


async def test_answer_that_takes_long_is_nobody_s_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a turn runs, and between requests, the client owes nothing."""
    monkeypatch.setattr(Connection, "patience_s", 0.2)
    late = answer("hello").delayed(1.0)
    async with (
        ScriptedUpstream(late, then=answer("hello")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        line(on) as client,
    ):
        # Half of the next request's head comes early, too.
        client.writer.write(head() + BODY + head()[:60])
        assert (await client.answer())[0] == 200
        client.writer.write(head()[60:] + BODY)
        assert (await client.answer())[0] == 200
        await asyncio.sleep(0.6)
        client.writer.write(head() + BODY)
        assert (await client.answer())[0] == 200


async def test_client_that_goes_on_sending_after_its_refusal_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "patience_s", 0.3)
    async with gateway(tmp_path) as on, line(on) as client:
        client.writer.write(head("Content-Encoding: gzip\r\n", length=10**9))
        assert (await client.answer())[0] == 415

        async def pour() -> None:
            while True:
                client.writer.write(b"x" * 8192)
                await client.writer.drain()
                await asyncio.sleep(0.01)

        pouring = asyncio.create_task(pour())
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError):
                await pouring


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_only_a_client_that_knows_chunks_gets_them(tmp_path: Path, version: str) -> None:
    reply = stream(d({"role": "assistant", "content": "hello"}), f("stop"), DONE)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with (
        ScriptedUpstream(reply) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        line(on) as client,
    ):
        request = head("Connection: close\r\n", len(body)).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
        client.writer.write(request + body)
        got, _, streamed = (await client.end()).partition(b"\r\n\r\n")
    assert (b"transfer-encoding: chunked" in got) is (version == "1.1")
    assert streamed.startswith(b"data: ") is (version == "1.0")
    assert b"data: [DONE]\n\n" in streamed


async def test_an_answer_with_a_length_is_as_long_to_an_older_client(tmp_path: Path) -> None:
    async with gateway(tmp_path) as on, line(on) as client:
        client.writer.write(head().replace(b"HTTP/1.1", b"HTTP/1.0") + BODY)
        status, body = await client.answer()
        assert (status, body["choices"][0]["message"]["content"]) == (200, "hello")
        assert await client.end() == b""


async def test_requests_behind_each_other_are_answered_in_their_order(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(answer("first").delayed(0.2), answer("second"), answer("third")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        line(on) as client,
    ):
        client.writer.write((head() + BODY) * 2 + head() + BODY[:5])
        said = [(await client.answer())[1]["choices"][0]["message"]["content"] for _ in range(2)]
        client.writer.write(BODY[5:])
        said.append((await client.answer())[1]["choices"][0]["message"]["content"])
    assert said == ["first", "second", "third"]


async def test_a_request_waits_until_the_client_has_taken_the_answers_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks on and on and never reads must not fill the gateway's memory."""
    made: list[Connection] = []
    connection_made = Connection.connection_made

    def small(self: Connection, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=1)
        made.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", small)
    long = answer("x" * 3_000_000)
    async with (
        ScriptedUpstream(then=long) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        line(on) as client,
    ):
        client.writer.write((head() + BODY) * 5)
        async with asyncio.timeout(10):
            while not made or not made[0].flow.write_paused:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(upstream.requests) < 4
        for _ in range(5):
            assert (await client.answer())[0] == 200
        assert len(upstream.requests) == 5


async def test_who_waits_for_a_word_before_the_body_gets_one(tmp_path: Path) -> None:
    async with gateway(tmp_path) as on, line(on) as client:
        for _ in range(2):
            client.writer.write(head("Expect: 100-continue\r\n"))
            async with asyncio.timeout(5):
                assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.writer.write(BODY)
            assert (await client.answer())[0] == 200
        # Whoever does not wait needs none.
        client.writer.write(head("Expect: 100-continue\r\n") + BODY)
        assert (await client.answer())[0] == 200
        # And a body that is not wanted is not asked for.
        client.writer.write(head("Expect: 100-continue\r\n", length=10**9))
        assert (await client.answer())[0] == 413


async def test_client_that_leaves_ends_what_is_asked_behind_its_request_too(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(answer("x").held(), then=answer("never")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
    ):
        async with line(on) as client:
            client.writer.write((head() + BODY) * 2)
            await upstream.stalled()
        await upstream.aborted(timeout_s=1)
        assert (await on.get("/healthz"))[0] == 200
        assert len(upstream.requests) == 1


async def test_a_name_with_a_line_break_makes_no_header(tmp_path: Path) -> None:
    """A wildcard takes what a client says for a model's name, and answers carry it."""
    async with ScriptedUpstream(then=answer("hello")) as upstream:
        config = native_config(upstream.base_url)
        config["models"]["any/*"] = {"backends": ["b1"], "retries": 0}
        async with serving(tmp_path, config) as on:
            status, headers, _ = await on.post("/v1/chat/completions", {**json.loads(BODY), "model": "any/one"})
            assert (status, headers["x-gateway-model"]) == (200, "any/one")
            for broken in ("any/\r\nx-evil: 1", "any/\nx-evil: 1", "any/\0"):
                status, headers, _ = await on.post("/v1/chat/completions", {**json.loads(BODY), "model": broken})
                assert "x-evil" not in headers
                assert status != 200


async def test_what_stands_behind_a_chunked_body_is_no_header(tmp_path: Path) -> None:
    """A proxy that checks heads lets it pass."""
    async with ScriptedUpstream(then=answer("hello")) as upstream:
        config = native_config(upstream.base_url, keys={"static": {"app": {"key": "sk-app", "roles": ["set_user"]}}})
        async with serving(tmp_path, config) as on, line(on) as client:
            for key, trailer, expected in (
                ("", "Authorization: Bearer sk-app", 401),
                ("Authorization: Bearer sk-app\r\n", "X-Gateway-User: mallory", 200),
            ):
                start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{key}Transfer-Encoding: chunked\r\n\r\n"
                client.writer.write(start.encode() + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY))
                client.writer.write(f"{trailer}\r\n\r\n".encode())
                status, _ = await client.answer()
                assert status == expected
            traces = (await on.get("/v1/traces", authorization="Bearer sk-app"))[2]["data"]
            assert [trace["user"] for trace in traces if trace["status"] == 200] == [None]


async def test_head_without_end_is_not_held(tmp_path: Path) -> None:
    async with gateway(tmp_path) as on, line(on) as client:
        for _ in range(3):  # what came before does not count
            client.writer.write(head("X-Long: " + "x" * 30_000 + "\r\n") + BODY)
            assert (await client.answer())[0] == 200
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-Long: ")
        assert await client.pushed(b"x" * 8192) == 431


@pytest.mark.parametrize("piece", [b"x" * 8192, b"x: y\r\n" * 1000], ids=["one line", "many lines"])
async def test_what_stands_behind_a_body_is_not_held_without_end(tmp_path: Path, piece: bytes) -> None:
    async with gateway(tmp_path) as on, line(on) as client:
        start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.writer.write(start + b"%x\r\n%b\r\n0\r\nx-first: " % (len(BODY), BODY))
        assert await client.pushed(piece) == 431


async def test_large_request_is_no_part_of_the_head_behind_it(tmp_path: Path) -> None:
    long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}).encode()
    async with gateway(tmp_path) as on, line(on) as client:
        behind = head() + BODY
        client.writer.write(head(length=len(long)) + long + behind[:60])
        assert (await client.answer())[0] == 200
        client.writer.write(behind[60:])
        assert (await client.answer())[0] == 200


async def test_no_refusal_stands_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    reply = stream(*words("hello"), Stall(), f("stop"), DONE)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with (
        ScriptedUpstream(reply) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        line(on) as client,
    ):
        client.writer.write(head(length=len(body)) + body)
        async with asyncio.timeout(5):
            await client.reader.readuntil(b'"hello"')
        client.writer.write(b"nonsense\r\n\r\n")
        assert b"HTTP/1.1" not in await client.end()


@pytest.mark.parametrize(
    "behind",
    [b"nonsense\r\n\r\n", head("Transfer-Encoding: chunked\r\n").replace(b"Content-Length", b"X-Length") + b"zz\r\n"],
)
async def test_what_is_no_request_costs_none_before_it(tmp_path: Path, behind: bytes) -> None:
    async with (
        ScriptedUpstream(answer("hello").delayed(0.3), then=answer("hello")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        line(on) as client,
    ):
        client.writer.write(head() + BODY + head() + BODY + behind)
        client.writer.write(b"more of it")
        assert [(await client.answer())[0] for _ in range(3)] == [200, 200, 400]
        assert await client.end() == b""


async def test_half_a_request_has_one_answer(tmp_path: Path) -> None:
    async with gateway(tmp_path) as on, line(on) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await client.answer())[0] == 403
        client.writer.write(b"zz\r\n")
        assert await client.end() == b""
