"""HTTP/1.1 to one server: POST requests over connections that are kept.

A third of what a general client costs: the head of a request is written once, an answer is read by llhttp straight from the
socket, and one timer serves all waits of a connection. Knows connections, framing and bounds; does not know what is said, nor
redirects, cookies and proxies, none of which an upstream needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, cast

import httptools
import msgspec
from aiohappyeyeballs import start_connection
from yarl import URL

from gateway.backends.tap import Tap

CONNECT_S: Final = 10.0
# Connections that nobody uses are looked at so often, and closed at the sixth look, within 30 s: servers close theirs soon after.
_LOOKED_S: Final = 5.0
_KEPT_LOOKS: Final = 6
# Some send their whole policy with each answer.
_HEAD_BYTES: Final = 256 * 1024
# What stands between a body's pieces and behind them: a few bytes for each piece.
_FRAMING_BYTES: Final = 16 * 1024 * 1024
# What may wait to be read before the server has to wait.
_WAITING_BYTES: Final = 512 * 1024
# From here on, a body is not copied behind its head.
_WRITTEN_APART_BYTES: Final = 64 * 1024
_WHOLE: Final = b"%b%bcontent-length: %d\r\n\r\n%b"
# A name that was looked up is believed for so long; of two addresses, the second is tried after this silence.
_NAMED_S: Final = 10.0
_SECOND_S: Final = 0.25
_ENCODING: Final = b"content-encoding"
# Stands among headers from an answer's end to the next one's beginning; no header has this name.
_ENDED: Final = b""
# What aiohttp, curl and browsers take too: bytes in header values, a line break of one character, spaces behind a size.
_LENIENT: Final = {
    "lenient_headers": True,
    "lenient_optional_cr_before_lf": True,
    "lenient_spaces_after_chunk_size": True,
}


class HttpFailed(Exception):
    """No answer, or half of one."""


class NotHttp(HttpFailed):
    """What came is no HTTP."""


class Disconnected(HttpFailed):
    """The server hung up before it answered."""


class HungUp(Disconnected):
    """The server hung up a connection that had been kept, before anything of another answer: as a rule it had its time."""


class CutOff(HttpFailed):
    """The answer ends before its end."""


class Response(msgspec.Struct, eq=False):
    """One answer, from its head on. Ends by `give_back`.

    Attributes:
        connection: what it comes over.
        parts: what has come of the body and was not read.
        status: of HTTP.
        said: the headers by their names as they were written; of several of one name the last.
        complete: whether no more of it will come.
        error: why it ended before its end.
        reusable: whether all of it has come, and the server takes another request behind it.
        tap: gets what comes of the body, its end aside, while whoever waits has one.
        waiter: whoever waits; until then what comes is kept, and nothing passes it.
    """

    connection: Connection
    parts: list[bytes] = []
    _size: int = 0
    _framing_size: int = 0
    status: int = 0
    said: dict[bytes, bytes] = {}
    _headers: dict[bytes, bytes] | None = None
    complete: bool = False
    error: HttpFailed | None = None
    reusable: bool = False
    tap: Tap | None = None
    waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The headers by lower-case names; of several of one name the last."""
        if self._headers is None:
            said = self.said
            self._headers = dict(zip(map(bytes.lower, said), said.values(), strict=True))
        return self._headers

    def header(self, name: bytes) -> str | None:
        """A header's value by its lower-case name."""
        value = self.headers.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def content_type(self) -> str:
        """The media type alone, in lower case; empty where none was said."""
        return _media_type(self.headers.get(b"content-type", b""))

    async def readany(self, until: float, tap: Tap | None = None) -> bytes:
        """What has come of the body and was not read, at least a byte; empty at its end.

        Args:
            until: when to give up, by the loop's time; with a tap, it says how long there is.
            tap: gets what comes meanwhile.

        Raises:
            TimeoutError: nothing came until that time of the loop.
            HttpFailed: the body is cut off.
        """
        parts = self.parts
        while not parts and not self.complete:
            self.tap = tap
            await self.connection.wait(self, until)
        if parts:
            data = b"".join(parts)
            parts.clear()
            self._size = 0
            self.connection.read_on()
            return data
        if self.error is not None:
            raise self.error
        return b""

    def at_once(self) -> bytes | None:
        """The whole body, where all of it has come unread and in no encoding; None where it has to be read.

        As much as comes before anybody reads: never an answer without end.
        """
        if not self.complete or self.error is not None:
            return None
        # Names are lowered only where one is as long as this.
        if len(_ENCODING) in map(len, self.said) and _ENCODING in self.headers:
            return None
        return b"".join(self.parts)

    def at_eof(self) -> bool:
        """Whether everything has come and was read."""
        return self.complete and self.error is None and not self.parts

    def give_back(self) -> None:
        """Keep the connection of an answer that has come whole; close any other. May be called twice."""
        self.connection.done(self)

    def take(self, pieces: list[bytes], size: int) -> None:
        """Pieces of the body, which came in so many bytes. The list is emptied."""
        self.parts.extend(pieces)
        self._size += size
        pieces.clear()

    def framing_grows(self, size: int) -> bool:
        """Nothing of a body has come: a part of the head, or what stands between pieces and behind them. Whether that may end."""
        self._framing_size += size
        if self._framing_size <= (_FRAMING_BYTES if self.status else _HEAD_BYTES):
            return True
        self.end(CutOff("the answer's framing has no end") if self.status else NotHttp("the answer's head has no end"))
        self.wake()
        return False

    def end(self, error: HttpFailed | None = None) -> None:
        """No more will come."""
        if not self.complete:
            self.complete = True
            self.error = error
            self.tap = None

    def wake(self) -> None:
        """Let whoever waits look again."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = self.tap = None
            if not waiter.done():
                waiter.set_result(None)

    def late(self) -> None:
        """Tell whoever waits that the time is up."""
        waiter = self.waiter
        self.waiter = self.tap = None
        if waiter is not None and not waiter.done():
            waiter.set_exception(TimeoutError())

    def lost(self, failed: type[Disconnected]) -> None:
        """The server has hung up; `failed` is what that is where nothing of an answer had come."""
        if not self.complete:
            if not self.status:
                self.end(failed("the server closed the connection without an answer"))
            else:
                framed = b"content-length" in self.headers or b"transfer-encoding" in self.headers
                self.end(CutOff("the answer is incomplete") if framed else None)
        self.wake()

    @property
    def full(self) -> bool:
        """Whether enough waits to be read."""
        return self._size > _WAITING_BYTES


class Connection(asyncio.Protocol):
    """One connection: one exchange at a time. What llhttp calls are the `on_` methods."""

    def __init__(self, client: Http1, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._head = client.head
        self.usable = True
        self.unused_looks = 0
        self._client = client
        self._transport: asyncio.Transport
        self._response: Response | None = None
        # What llhttp calls where an answer begins, for each header, and for each piece of a body, a hundred times a stream:
        # the containers' own methods.
        self._said: dict[bytes, bytes] = {}
        self.on_message_begin = self._said.clear
        self.on_header = self._said.__setitem__
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(**_LENIENT)
        self._paused = False
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # when the timer goes off

    def ask(self, head: bytes, body: bytes) -> Response:
        """Send a request; its answer, of which nothing has come yet. Give it back, however it ends.

        Args:
            head: further headers, each with its line break.
            body: the request's.
        """
        response = self._response = Response(self)
        size = len(body)
        try:
            if size < _WRITTEN_APART_BYTES:
                self._transport.write(_WHOLE % (self._head, head, size, body))
            else:
                self._transport.writelines((_WHOLE % (self._head, head, size, b""), body))
        except BaseException:
            self.close()  # nobody else has it
            raise
        return response

    def done(self, response: Response) -> None:
        """An exchange is over: keep the connection for another, or close it."""
        if self._response is not response:
            return
        self._response = None
        # Of what has begun behind the answer nobody knows whose it is.
        if response.reusable and self.usable and _ENDED in self._said:
            if self._paused:
                self.read_on()
            self.unused_looks = 0
            self._client.idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        """Hang up at once."""
        self.usable = False
        self._client.forget(self)
        self._transport.abort()

    def wait(self, response: Response, until: float) -> asyncio.Future[None]:
        """What is done once more has come: head, body or end. It raises TimeoutError at that time of the loop."""
        waiter = response.waiter = self.loop.create_future()
        self._until = until
        if until < self._due:
            # A timer that goes off earlier looks again: most waits end long before, and leave nothing to be done.
            self._look_at(until)
        return waiter

    def read_on(self) -> None:
        """Go on where reading was paused."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        response = self._response
        # Where nobody has asked, what comes next on it could be anybody's answer.
        if response is None:
            self.close()
            return
        if response.complete:
            self.usable = False
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._garbled(response, len(data))
        tap = response.tap
        # Whoever waits for an answer that is complete was told, and has no tap any more.
        if tap is None or not tap.takes(self._pieces):
            self._received(response, len(data))

    def _received(self, response: Response, size: int) -> None:
        """What was read brought this to an answer; nothing of it passed a tap."""
        if response.complete:
            return
        pieces = self._pieces
        if not pieces:
            if not response.framing_grows(size):
                self.usable = False
            return
        response.take(pieces, size)
        response.wake()
        if response.full and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _garbled(self, response: Response, size: int) -> None:
        self.usable = False
        if not response.complete:
            response.take(self._pieces, size)
        response.end(NotHttp("the answer is no HTTP") if not response.status else CutOff("the answer is broken"))
        response.wake()

    def pause_writing(self) -> None:
        """The server takes a large request slower than it is sent: if it answers first, what is left of it is not waited for."""
        self.usable = False

    def resume_writing(self) -> None:
        """It has taken it."""
        if self._response is not None and not self._response.complete:
            self.usable = True

    def connection_lost(self, _: Exception | None) -> None:
        """It is closed, by whichever side."""
        self.usable = False
        self._look_at(math.inf)
        self._client.forget(self)
        response = self._response
        if response is None:
            return
        # The last answer's end stands there until the next one begins.
        stale = _ENDED in self._said and not response.complete and not self._client.closed
        if stale:
            self._client.close_idle()
        response.lost(HungUp if stale else Disconnected)

    def on_headers_complete(self) -> None:
        """The head has come; of one that only says that more will follow, nothing is kept."""
        response = self._response
        status = self._parser.get_status_code()
        if response is not None and status >= 200 and not response.complete:
            response.said = self._said.copy()
            response.status = status
            response.wake()

    def on_message_complete(self) -> None:
        """The answer has come whole."""
        response = self._response
        if response is not None and response.status and not response.complete:
            response.reusable = self._parser.should_keep_alive()
            response.parts.extend(self._pieces)
            self._pieces.clear()
            response.complete = True
            self._said[_ENDED] = b""
            if response.waiter is not None:
                response.wake()

    def _look(self) -> None:
        """The timer: whoever waits too long is told; whoever began to wait meanwhile has time left."""
        self._timer, self._due = None, math.inf
        response = self._response
        if response is None:
            return
        until = self._until if response.tap is None else response.tap.until
        if self.loop.time() >= until - 0.0005:
            response.late()
        else:
            self._look_at(until)

    def _look_at(self, due: float) -> None:
        """Set the timer anew, for a time of the loop; without end for none."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self.loop.call_at(due, self._look) if due < math.inf else None


class Http1:
    """A server, and the connections to it.

    Args:
        url: where to post.
        headers: sent with every request, by lower-case names; a user and password in the URL stand in for `authorization`.
        tls: how certificates are checked, where not as the system has it.

    Attributes:
        head: how every request begins.
        idle: connections to be asked over, the one that was used last at the end: it is taken first, because the others may end
            their time.
        closed: whether every connection was closed from this side.

    Raises:
        ValueError: a header cannot be sent.
    """

    def __init__(self, url: URL, headers: Mapping[str, str], *, tls: ssl.SSLContext | None = None) -> None:
        assert url.raw_host is not None
        assert url.port is not None
        self._host, self._port = url.raw_host, url.port
        self._tls = url.scheme == "https"
        self._checked = tls
        named = f"[{self._host}]" if ":" in self._host else self._host
        host = named if url.is_default_port() else f"{named}:{self._port}"
        sent = {"host": host, **headers}
        if url.user is not None and "authorization" not in sent:
            both = f"{url.user}:{url.password or ''}".encode()
            sent["authorization"] = f"Basic {b64encode(both).decode()}"
        lines = [f"POST {url.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        if any(character in line for line in lines for character in "\r\n\0"):
            raise ValueError("a header holds a line break")
        self.head = "\r\n".join([*lines, ""]).encode()
        self.idle: list[Connection] = []
        self.closed = False
        self._open: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._named: tuple[float, list[_Address]] | None = None

    async def post(self, head: bytes, body: bytes, until: float) -> Response:
        """Send a request; the answer, once its head has come. Give it back, however it ends.

        Args:
            head: as `Connection.ask` takes it.
            body: as `Connection.ask` takes it.
            until: when to give up, by the loop's time.

        Raises:
            TimeoutError: it took longer.
            OSError: no connection.
            HttpFailed: no answer.
        """
        connection = self.idle.pop() if self.idle else await self.connected(until)
        return await self.begun(connection.ask(head, body), until)

    async def begun(self, response: Response, until: float) -> Response:
        """The answer that was asked for, once its head has come. See `post`."""
        try:
            await response.connection.wait(response, until)
            if not response.status and response.error is not None:
                raise response.error
        except BaseException:
            response.give_back()
            raise
        return response

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self.idle.remove(connection)

    def close_idle(self) -> None:
        """One that was kept turned out to be closed: so are those that were used before it, or soon will be."""
        for connection in [*self.idle]:
            connection.close()

    async def close(self) -> None:
        """Close every connection; whoever waits for an answer learns that it is cut off."""
        self.closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connection in [*self._open]:
            connection.close()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeping = None
        for connection in [*self.idle]:
            connection.unused_looks += 1
            if connection.unused_looks >= _KEPT_LOOKS:
                connection.close()
        self._sweep_later(loop)

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._open and self._sweeping is None:
            self._sweeping = loop.call_later(_LOOKED_S, self._sweep, loop)

    async def connected(self, until: float) -> Connection:
        """A new connection.

        Raises:
            TimeoutError: it took longer than until that time of the loop, or 10 s.
            OSError: there is none.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(min(until, loop.time() + CONNECT_S)):
            addresses = await self._addresses(loop)
            sock = await start_connection(addresses, happy_eyeballs_delay=_SECOND_S, interleave=1, loop=loop)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                tls = self._checked or await asyncio.to_thread(_tls_context) if self._tls else None
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop), sock=sock, ssl=tls, server_hostname=self._host if tls else None
                )
            except BaseException:
                sock.close()
                raise
        self._open.add(connection)
        self._sweep_later(loop)
        return connection

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> list[_Address]:
        if self._named is None or self._named[0] < loop.time():
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._named = loop.time() + _NAMED_S, list(found)
        return self._named[1]


_Address = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


@lru_cache(maxsize=64)
def _media_type(said: bytes) -> str:
    """Read once of what a server says with every answer."""
    return said.decode("utf-8", "replace").partition(";")[0].strip().lower()


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    """What certificates are checked by: read once, because it is half a megabyte and takes twenty milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
