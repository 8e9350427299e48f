from __future__ import annotations

import asyncio
import gzip
import socket
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from yarl import URL

from gateway.config.models import OutboundConfig
from gateway.security.inflate import Inflate
from gateway.security.outbound import MAX_REDIRECTS, Fetched, OutboundFailed, OutboundGuard, OutboundRefused
from gateway.security.outbound_gate import Gate

Answer = bytes | Callable[[str, dict[str, str]], bytes]


class Server:
    """A real HTTP server on loopback that answers by path, and counts the connections it gets."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.connections = 0
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.port = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            self.requests.append((method, path, headers))
            answer = self.answers.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            writer.write(answer(path, headers) if callable(answer) else answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def reply(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    named = {"Content_Type": "text/plain", "Content_Length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body


def redirect(target: str, status: str = "302 Found") -> bytes:
    return reply(b"", status, Location=target)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


@pytest.fixture
async def other() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


def names(**addresses: str | list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver that knows these names, `_` standing for a dot; lists are answered one after the other."""
    known: dict[str, Any] = {name.replace("_", "."): value for name, value in addresses.items()}

    async def resolve(host: str, port: int) -> list[str]:
        found = known[host]
        return [found.pop(0) if isinstance(found, list) else found]

    return resolve


def guard(*allow_private: str, domains: tuple[str, ...] = ("*",), **resolved: Any) -> OutboundGuard:
    config = OutboundConfig(allow_private=allow_private, allow_domains=domains)
    return OutboundGuard(config, resolve=names(**resolved) if resolved else None)


# Every spelling of a place that is nobody's business, as far as text goes. PORT is where a real server listens.
HOSTILE = [
    "http://127.0.0.1:PORT/",
    "http://127.1:PORT/",
    "http://127.0.1:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f000001:PORT/",
    "http://0x7f.0x0.0x0.0x1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://017700000001:PORT/",
    "http://127.0.0.1.:PORT/",
    "http://0:PORT/",
    "http://0.0.0.0:PORT/",
    "http://localhost:PORT/",
    "http://LOCALHOST.:PORT/",
    "http://127.0.0.1%2f:PORT/",
    "http://①②⑦.⓪.⓪.①:PORT/",
    "http://127。0。0。1:PORT/",
    "http://[::1]:PORT/",
    "http://[0:0:0:0:0:0:0:1]:PORT/",
    "http://[::]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/",
    "http://[::127.0.0.1]:PORT/",
    "http://[2002:7f00:1::]:PORT/",
    "http://[64:ff9b::127.0.0.1]:PORT/",
    "http://[64:ff9b:1::7f00:1]:PORT/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]:PORT/",
    "http://[fe80::1]:PORT/",
    "http://[fe80::1%25lo]:PORT/",
    "http://[fec0::1]:PORT/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://[ff02::1]:PORT/",
    "http://[2001:db8::1]:PORT/",
    "http://[2606:4700::200:5efe:127.0.0.1]:PORT/",
    "http://169.254.169.254/latest/meta-data/",
    "http://0xa9fea9fe/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://168.63.129.16/",
    "http://100.100.100.200/latest/meta-data/",
    "http://192.0.0.192/",
    "http://10.0.0.1/",
    "http://172.16.5.4/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://198.18.0.1/",
    "http://192.0.2.1/",
    "http://203.0.113.9/",
    "http://224.0.0.1/",
    "http://239.255.255.250/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://user:password@127.0.0.1:PORT/",
    "http://example.com@127.0.0.1:PORT/",
    "http://127.0.0.1:PORT#@example.com/",
    "http://127.0.0.1:PORT\\@example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:PORT/_x",
    "ftp://127.0.0.1:PORT/",
    "data:text/plain,hello",
    "//127.0.0.1:PORT/",
    "127.0.0.1:PORT",
    "http://",
    "http:///path",
    "",
]


@pytest.mark.parametrize("url", HOSTILE)
async def test_b031_no_hostile_address_is_connected_to(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[Any] = []
    loop = asyncio.get_running_loop()

    async def no_connection(sock: Any, address: Any) -> None:
        connected.append(address)
        raise OSError("connected")

    monkeypatch.setattr(loop, "sock_connect", no_connection)
    server.answers = {"/": reply(b"secret")}
    with pytest.raises((OutboundRefused, OutboundFailed)) as caught:
        await guard().fetch(url.replace("PORT", str(server.port)), timeout_s=5)
    assert connected == []
    assert server.connections == 0
    assert "secret" not in str(caught.value)


async def test_the_socket_layer_of_that_test_sees_connections(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []

    async def no_connection(sock: Any, address: Any) -> None:
        connected.append(address)
        raise OSError("connected")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", no_connection)
    with pytest.raises(OutboundFailed):
        await guard("127.0.0.1").fetch(server.url("/"))
    assert connected == [("127.0.0.1", server.port)]


TARGETS = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::1]:PORT/",
    "http://127.0.0.1:PORT/",
    "http://2130706433:PORT/",
    "http://internal.test:PORT/",
    "//127.0.0.1:PORT/",
    "file:///etc/passwd",
    "http://user:pw@public.test:PORT/",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_b031_a_redirect_is_judged_like_the_first_address(server: Server, other: Server, target: str) -> None:
    server.answers = {"/a": redirect(target.replace("PORT", str(other.port)))}
    other.answers = {"/": reply(b"secret")}
    made = guard("public.test", public_test="127.0.0.1", internal_test="127.0.0.1")
    with pytest.raises(OutboundRefused):
        await made.fetch(server.url("/a", "public.test"))
    assert (server.connections, other.connections) == (1, 0)


async def test_b031_redirects_are_followed_and_counted(server: Server) -> None:
    for number in range(30):
        server.answers[f"/{number}"] = redirect(f"/{number + 1}")
    server.answers[f"/{MAX_REDIRECTS}"] = reply(b"here")
    assert (await guard("127.0.0.1").fetch(server.url("/0"))).text == "here"
    server.answers[f"/{MAX_REDIRECTS}"] = redirect("/6")
    server.requests.clear()
    with pytest.raises(OutboundRefused, match="more than 5 redirects"):
        await guard("127.0.0.1").fetch(server.url("/0"))
    assert len(server.requests) == MAX_REDIRECTS + 1


async def test_b031_credentials_stay_with_the_host_they_were_for(server: Server, other: Server) -> None:
    server.answers = {"/a": redirect("/b"), "/b": redirect(other.url("/c"))}
    other.answers = {"/c": reply(b"end")}
    sent = {"Authorization": "Bearer secret", "Cookie": "a=b", "X-Api-Key": "secret", "Accept": "text/html"}
    await guard("127.0.0.1").fetch(server.url("/a"), headers=sent)
    assert [request[2].get("authorization") for request in server.requests] == ["Bearer secret"] * 2
    assert not {"authorization", "cookie", "x-api-key"} & other.requests[0][2].keys()
    assert other.requests[0][2]["accept"] == "text/html"


async def test_a_name_whose_address_changes_is_connected_to_as_it_was_judged(server: Server) -> None:
    # The first answer is public, the second private: whoever asks twice connects to the second.
    made = guard(rebinding_test=["93.184.215.14", "127.0.0.1"])
    with pytest.raises((OutboundFailed, OutboundRefused)):
        await made.fetch(server.url("/", "rebinding.test"), timeout_s=0.3)
    with pytest.raises(OutboundRefused, match="address not allowed"):
        await made.fetch(server.url("/", "rebinding.test"))
    assert server.connections == 0


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8", "intern.test", "INTERN.test"])
async def test_private_hosts_can_be_allowed_by_name_address_and_network(server: Server, entry: str) -> None:
    server.answers = {"/": reply(b"hello")}
    got = await guard(entry, intern_test="127.0.0.1").fetch(server.url("/", "intern.test"))
    assert (got.status, got.text, got.content_type) == (200, "hello", "text/plain")


async def test_a_name_that_is_allowed_allows_no_other_name_of_the_same_address(server: Server) -> None:
    made = guard("intern.test", intern_test="127.0.0.1", other_test="127.0.0.1")
    for url in (server.url("/", "other.test"), server.url("/")):
        with pytest.raises(OutboundRefused):
            await made.fetch(url)
    assert server.connections == 0


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("93.184.215.14", True), ("2606:2800:21f::1", True), ("64:ff9b::5db8:d70e", True), ("::ffff:93.184.215.14", True)],
)
def test_public_addresses_are_allowed(address: str, allowed: bool) -> None:
    assert guard().allows(address) is allowed


@pytest.mark.parametrize(
    ("domain", "host", "allowed"),
    [
        ("*", "a.test", True),
        ("a.test", "A.test.", True),
        ("*.a.test", "b.a.test", True),
        ("*.a.test", "a.test", False),
        ("a.test", "evil-a.test", False),
        ("a.test", "a.test.evil.test", False),
    ],
)
def test_domains_are_globs_over_the_whole_name(domain: str, host: str, allowed: bool) -> None:
    made = guard(domains=(domain,))
    if allowed:
        made.refuse_url(URL(f"https://{host}/"))
    else:
        with pytest.raises(OutboundRefused, match="domain"):
            made.refuse_url(URL(f"https://{host}/"))


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)]
)
async def test_b083_a_small_body_that_grows_is_refused_at_the_limit(server: Server, encoding: str, pack: Any) -> None:
    server.answers = {
        "/small": reply(pack(b"hello " * 1000), Content_Encoding=encoding),
        "/bomb": reply(pack(b"\0" * 64_000_000), Content_Encoding=encoding),
    }
    made = guard("127.0.0.1")
    assert (await made.fetch(server.url("/small"))).text == "hello " * 1000
    with pytest.raises(OutboundRefused, match="too large"):
        await made.fetch(server.url("/bomb"), max_bytes=100_000)


@pytest.mark.parametrize("wrap", [gzip.compress, zlib.compress])
def test_b083_no_more_is_decompressed_than_may_be_kept(wrap: Any) -> None:
    inflate = Inflate("gzip" if wrap is gzip.compress else "deflate")
    assert len(inflate.feed(wrap(b"\0" * 64_000_000), 1001)) == 1001


def test_b031_no_socket_is_made_for_an_address_that_was_not_judged() -> None:
    gate = Gate(guard("10.0.0.0/8").allows, names())
    info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80))
    with pytest.raises(OSError, match="not allowed"):
        gate.make_socket(info)
    gate.judge(["10.0.0.1"], "10.0.0.1")
    gate.make_socket(info).close()


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
async def test_b083_encodings_nobody_asked_for_are_refused(server: Server, encoding: str) -> None:
    server.answers = {"/": reply(b"xxxx", Content_Encoding=encoding)}
    with pytest.raises(OutboundRefused, match="not asked for"):
        await guard("127.0.0.1").fetch(server.url("/"))


async def test_a_large_plain_body_is_refused_at_the_limit(server: Server) -> None:
    server.answers = {"/": reply(b"x" * 3_000_000)}
    with pytest.raises(OutboundRefused, match="too large"):
        await guard("127.0.0.1").fetch(server.url("/"))
    assert len((await guard("127.0.0.1").fetch(server.url("/"), max_bytes=3_000_000)).content) == 3_000_000


async def test_a_silent_server_ends_at_the_timeout(server: Server) -> None:
    server.answers = {"/": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab"}
    held = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        with pytest.raises(OutboundFailed, match="no answer within"):
            await asyncio.wait_for(guard("127.0.0.1").fetch(f"http://127.0.0.1:{port}/", timeout_s=0.1), 5)
    finally:
        held.set()
        listening.close()
        await listening.wait_closed()
    with pytest.raises(OutboundFailed):
        await guard("127.0.0.1").fetch(server.url("/"))


async def test_a_post_becomes_a_get_where_browsers_do_so(server: Server) -> None:
    server.answers = {
        "/see": redirect("/end", "303 See Other"),
        "/keep": redirect("/end", "307 Temporary"),
        "/end": reply(b""),
    }
    for path, method in (("/see", "GET"), ("/keep", "POST")):
        server.requests.clear()
        await guard("127.0.0.1").fetch(server.url(path), method="POST", body=b"")
        assert [request[0] for request in server.requests] == ["POST", method]


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html; charset=gbk", "订单".encode("gbk"), "订单"),
        ("text/html", '<meta charset="gbk">订单'.encode("gbk"), '<meta charset="gbk">订单'),
        ("text/html; charset=nonsense", b"abc", "abc"),
        ("text/html", b"\xff\xfea", "\ufffd\ufffda"),
    ],
)
async def test_text_is_read_by_the_charset_that_was_named(
    server: Server, content_type: str, body: bytes, text: str
) -> None:
    server.answers = {"/": reply(body, Content_Type=content_type)}
    assert (await guard("127.0.0.1").fetch(server.url("/"))).text == text


@pytest.mark.parametrize(
    "charset", ["punycode", "Punycode", "idna", "utf-7", "unicode_escape", "raw_unicode_escape", "hex", "x"]
)
def test_a_charset_no_page_is_written_in_is_read_as_utf_8_in_no_time(charset: str) -> None:
    content = b"a-" + b"b9c" * 100_000 + b"\\ud800 +AGE-"
    fetched = Fetched("http://a.example/", 200, "text/plain", charset, content)
    began = time.monotonic()
    assert fetched.text == content.decode()
    assert time.monotonic() - began < 1
