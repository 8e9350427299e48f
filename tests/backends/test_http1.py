"""HTTP/1.1 to one server, over real sockets and on both event loops: the program's and Python's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from yarl import URL

from gateway.backends import http1
from gateway.backends.http1 import CutOff, Disconnected, Http1, HttpFailed, HungUp, NotHttp

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
_LOOPS = pytest.mark.parametrize(
    "make_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"]
)


class Server:
    """Answers each request with the next of some bytes and may hang up behind it; remembers what it was sent."""

    def __init__(self, *answers: bytes, hang_up: bool = False) -> None:
        self.answers = list(answers)
        self.hang_up = hang_up
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.hang_up:
                    break
            if not self.hang_up:
                await reader.read()  # until the client hangs up
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def asking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Http1]:
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    scheme = "https" if tls else "http"
    host = "localhost" if tls else "127.0.0.1"
    client = Http1(URL(f"{scheme}://{host}:{port}/v1/chat?a=1"), {"content-type": "application/json"})
    try:
        yield client
    finally:
        await client.close()
        server.close()


async def whole(client: Http1, wait_s: float = 20.0) -> tuple[int, bytes]:
    until = asyncio.get_running_loop().time() + wait_s
    response = await client.post(b"x-one: 1\r\n", b"a body", until)
    try:
        parts = []
        while data := await response.readany(until):
            parts.append(data)
        return response.status, b"".join(parts)
    finally:
        response.give_back()


def run(make_loop: Callable[[], asyncio.AbstractEventLoop], work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(bounded())


@_LOOPS
def test_requests_go_over_one_connection(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    server = Server(_OK, _OK, _OK)

    async def work() -> None:
        async with asking(server.talk) as client:
            for _ in range(3):
                assert await whole(client) == (200, b"hello")

    run(make_loop, work())
    assert server.connections == 1
    assert server.bodies == [b"a body"] * 3
    head = server.heads[0].decode()
    assert head.startswith("POST /v1/chat?a=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert "\r\ncontent-type: application/json\r\n" in head
    assert "\r\nx-one: 1\r\n" in head


@_LOOPS
def test_headers_are_those_of_the_answer_alone_by_lower_case_names(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    informed = b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n"
    first = b"HTTP/1.1 200 OK\r\nX-First: 1\r\nContent-Length: 2\r\nX-First: 2\r\n\r\nok"
    server = Server(informed + first, _OK)

    async def work() -> None:
        async with asking(server.talk) as client:
            until = asyncio.get_running_loop().time() + 20
            seen = []
            for _ in range(2):
                response = await client.post(b"", b"body", until)
                while not response.complete:
                    await response.connection.wait(response, until)
                seen.append((response.headers, response.at_once()))
                response.give_back()
            assert seen == [
                ({b"x-first": b"2", b"content-length": b"2"}, b"ok"),
                ({b"content-length": b"5"}, b"hello"),
            ]

    run(make_loop, work())
    assert server.connections == 1


@_LOOPS
def test_only_what_is_whole_and_not_encoded_is_had_at_once(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    answers = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\ncontent-length: 2\r\n\r\nok",
    )

    async def work() -> None:
        for answer in answers:
            async with asking(Server(answer, hang_up=True).talk) as client:
                until = asyncio.get_running_loop().time() + 20
                response = await client.post(b"", b"body", until)
                assert response.at_once() is None
                while not response.complete:
                    await response.connection.wait(response, until)
                assert response.at_once() is None
                response.give_back()

    run(make_loop, work())


@_LOOPS
def test_connection_that_may_not_be_kept_is_not(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    closing = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"
    another = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nforeign"
    informed = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    server = Server(closing, _OK + another, _OK + b"HTTP/1.1 2", informed + _OK + another[:40], informed + _OK, _OK)

    async def work() -> None:
        async with asking(server.talk) as client:
            for _ in range(6):
                assert await whole(client) == (200, b"hello")

    run(make_loop, work())
    assert server.connections == 5


@_LOOPS
def test_headers_of_what_follows_an_answer_are_not_its_own(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    another = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 7\r\n\r\nforeign"

    async def work() -> None:
        async with asking(Server(_OK + another).talk) as client:
            response = await client.post(b"", b"body", asyncio.get_running_loop().time() + 20)
            assert (response.headers, response.at_once()) == ({b"content-length": b"5"}, b"hello")
            response.give_back()
            response.give_back()
            assert client.idle == []

    run(make_loop, work())


@_LOOPS
def test_connection_that_the_server_closed_is_not_asked_over(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    server = Server(_OK, _OK, hang_up=True)

    async def work() -> None:
        async with asking(server.talk) as client:
            for _ in range(2):
                assert await whole(client) == (200, b"hello")
                while client.idle:
                    await asyncio.sleep(0.001)

    run(make_loop, work())
    assert server.connections == 2


@_LOOPS
@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"", HungUp), (b"H", Disconnected), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", CutOff)],
    ids=["nothing", "a byte", "half an answer"],
)
def test_kept_connection_that_is_closed_as_it_is_used_is_told_apart(
    make_loop: Callable[[], asyncio.AbstractEventLoop], answer: bytes, expected: type[HttpFailed]
) -> None:
    talks: set[asyncio.Task[None] | None] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for said in (_OK, answer):
                await reader.readuntil(b"body")
                writer.write(said)
                await writer.drain()
        writer.close()

    async def work() -> None:
        async with asking(talk) as client:
            # Two that are kept: the one that was not asked over is not trusted any more either.
            await asyncio.gather(whole(client), whole(client))
            assert len(client.idle) == 2
            with pytest.raises(HttpFailed) as caught:
                await whole(client)
            assert type(caught.value) is expected
            assert len(client.idle) == (0 if expected is HungUp else 1)
            await client.close()
            await asyncio.wait([talk for talk in talks if talk is not None])

    run(make_loop, work())


@_LOOPS
def test_kept_connection_that_is_closed_from_here_is_not_taken_for_the_server_s_doing(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        writer.write(_OK)
        with suppress(ConnectionError):
            await reader.read()  # until the client hangs up
        writer.close()

    async def work() -> None:
        async with asking(talk) as client:
            await whole(client)
            asked = asyncio.create_task(whole(client))
            await asyncio.sleep(0.01)
            await client.close()
            with pytest.raises(HttpFailed) as caught:
                await asked
            assert type(caught.value) is Disconnected
            await asyncio.sleep(0.01)

    run(make_loop, work())


@_LOOPS
def test_connection_that_nobody_uses_is_closed(
    make_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "_LOOKED_S", 0.01)
    server = Server(_OK, _OK, _OK)

    async def work() -> None:
        async with asking(server.talk) as client:
            assert await whole(client) == (200, b"hello")
            (first,) = client.idle
            while first.unused_looks < 3:
                await asyncio.sleep(0.001)
            assert await whole(client) == (200, b"hello")
            assert (client.idle, first.unused_looks) == ([first], 0)
            while client.idle:
                await asyncio.sleep(0.001)
            assert not first.usable
            assert await whole(client) == (200, b"hello")
            assert client.idle != [first]

    run(make_loop, work())
    assert server.connections == 2


@_LOOPS
@pytest.mark.parametrize(
    ("answer", "expected"),
    {
        "a length": (_OK, b"hello"),
        "chunks": (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
            b"hello",
        ),
        "until the end": (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        "behind another head": (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + _OK,
            b"hello",
        ),
        "single line breaks": (b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello", b"hello"),
    }.values(),
    ids=["length", "chunks", "until the end", "nothing", "informed", "line breaks"],
)
def test_every_framing_is_read(
    make_loop: Callable[[], asyncio.AbstractEventLoop], answer: bytes, expected: bytes
) -> None:
    async def work() -> None:
        async with asking(Server(answer, hang_up=True).talk) as client:
            assert (await whole(client))[1] == expected

    run(make_loop, work())


@_LOOPS
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", Disconnected),
        (b"HTTP/1.1 200 OK\r\ncontent-le", Disconnected),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", CutOff),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", CutOff),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nno size\r\n", CutOff),
        (b"SSH-2.0-OpenSSH_9.9\r\n", NotHttp),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx", NotHttp),
        (b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"x" * 400_000, NotHttp),
    ],
    ids=["none", "half a head", "short", "unended", "broken", "no HTTP", "upgrade", "endless head"],
)
def test_what_is_no_whole_answer_is_an_error(
    make_loop: Callable[[], asyncio.AbstractEventLoop], answer: bytes, expected: type[HttpFailed]
) -> None:
    async def work() -> None:
        async with asking(Server(answer, hang_up=True).talk) as client:
            with pytest.raises(expected):
                await whole(client)

    run(make_loop, work())


@_LOOPS
@pytest.mark.parametrize("headed", [False, True], ids=["head", "body"])
def test_what_is_broken_is_told_at_once_though_the_server_stays(
    make_loop: Callable[[], asyncio.AbstractEventLoop], headed: bool
) -> None:
    had, ended = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        if headed:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            await had.wait()
        writer.write(b"no size\r\n")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async def work() -> None:
        async with asking(talk) as client:
            until = asyncio.get_running_loop().time() + 20
            if headed:
                response = await client.post(b"", b"body", until)
                read = asyncio.create_task(response.readany(until))
                await asyncio.sleep(0)
                had.set()
                with pytest.raises(CutOff):
                    await read
                response.give_back()
            else:
                with pytest.raises(NotHttp):
                    await client.post(b"", b"body", until)
            await ended.wait()

    run(make_loop, work())


@_LOOPS
def test_where_there_is_no_head_there_is_no_answer(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        async with asking(Server(b"HTTP/1.1 200 OK\r\ncontent-le", hang_up=True).talk) as client:
            with pytest.raises(Disconnected):
                await client.post(b"", b"body", asyncio.get_running_loop().time() + 20)

    run(make_loop, work())


@_LOOPS
@pytest.mark.parametrize("answer", [b"", _OK[:-2]], ids=["head", "body"])
def test_silence_has_a_bound_and_ends_the_connection(
    make_loop: Callable[[], asyncio.AbstractEventLoop], answer: bytes
) -> None:
    server = Server()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # By the connection: the first may be over before anything of it was read.
        server.answers = [_OK] if server.connections else [answer]
        await server.talk(reader, writer)

    async def work() -> None:
        async with asking(talk) as client:
            with pytest.raises(TimeoutError):
                await whole(client, 0.1)
            assert await whole(client) == (200, b"hello")

    run(make_loop, work())
    assert server.connections == 2


@_LOOPS
def test_cancelling_closes_the_connection(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    gone = asyncio.Event()
    asked = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        gone.set()
        writer.close()

    async def work() -> None:
        async with asking(talk) as client:
            task = asyncio.create_task(whole(client))
            await asked.wait()
            task.cancel()
            await gone.wait()
            assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    run(make_loop, work())


@_LOOPS
def test_server_that_answers_before_it_has_read_is_asked_anew(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """What is left of the request stands before whatever is asked next."""
    large = b"x" * 16 * 1024 * 1024
    heads = ended = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heads, ended
        await reader.readuntil(b"\r\n\r\n")
        heads += 1
        writer.write(_OK)
        with suppress(ConnectionError):
            while heads == 1:
                await asyncio.sleep(0.01)
            await reader.read()
        writer.close()
        ended += 1

    async def work() -> None:
        async with asking(talk) as client:
            until = asyncio.get_running_loop().time() + 20
            (await client.post(b"", large, until)).give_back()
            assert await whole(client) == (200, b"hello")
            await client.close()
            while ended < heads:
                await asyncio.sleep(0.01)

    run(make_loop, work())
    assert heads == 2


@_LOOPS
def test_connection_that_took_a_large_request_is_kept(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    server = Server(_OK, _OK)

    async def work() -> None:
        async with asking(server.talk) as client:
            until = asyncio.get_running_loop().time() + 20
            response = await client.post(b"", b"x" * 16 * 1024 * 1024, until)
            assert await response.readany(until) == b"hello"
            response.give_back()
            assert await whole(client) == (200, b"hello")

    run(make_loop, work())
    assert server.connections == 1


@_LOOPS
def test_trailers_without_end_are_not_held(
    make_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "_FRAMING_BYTES", 500_000)

    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n")
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x-name: value\r\n" * 1000)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        ended.set()

    async def work() -> None:
        async with asking(talk) as client:
            with pytest.raises(CutOff, match="no end"):
                await whole(client)
            await ended.wait()

    run(make_loop, work())


@_LOOPS
def test_server_waits_for_a_reader_that_does_not_read(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    size = 64 * 1024 * 1024
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"body")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        try:
            while sent < size:
                writer.write(b"x" * 65_536)
                sent += 65_536
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def work() -> None:
        async with asking(talk) as client:
            until = asyncio.get_running_loop().time() + 20
            response = await client.post(b"", b"body", until)
            before = -1
            while before != sent:  # until the server cannot go on
                before = sent
                for _ in range(50):
                    await asyncio.sleep(0.002)
            assert sent < size / 2
            got = 0
            while data := await response.readany(until):
                got += len(data)
            assert got == size
            response.give_back()

    run(make_loop, work())


@_LOOPS
def test_certificate_is_checked(
    make_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = tmp_path / "localhost.pem"
    pem.write_bytes(_certificate("localhost"))
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(pem)

    async def work() -> None:
        async with asking(Server(_OK, _OK).talk, own) as client:
            with pytest.raises(ssl.SSLCertVerificationError):
                await whole(client)
            monkeypatch.setattr(http1, "_tls_context", lambda: ssl.create_default_context(cafile=str(pem)))
            assert await whole(client) == (200, b"hello")

    run(make_loop, work())


def test_head_is_refused_that_would_say_more_than_it_should() -> None:
    with pytest.raises(ValueError, match="line break"):
        Http1(URL("http://127.0.0.1:1/"), {"x-tenant": "a\r\nx-admin: yes"})


def test_user_of_the_address_is_sent_unless_a_key_is() -> None:
    url = URL("http://me:secret@127.0.0.1:1/")
    assert b"authorization: Basic bWU6c2VjcmV0\r\n" in Http1(url, {}).head
    assert b"Basic" not in Http1(url, {"authorization": "Bearer x"}).head


def _certificate(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)  # noqa: TID251 - a certificate holds at the real time
    made = (
        x509.CertificateBuilder()
        .subject_name(named)
        .issuer_name(named)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + made.public_bytes(serialization.Encoding.PEM)
