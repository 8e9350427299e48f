"""A scripted upstream that speaks the OpenAI protocol over real sockets, and remembers everything it was sent.

It knows requests, replies and connections. It has no opinion about their content: a script may be a function of the
request, and `strict_history` is one such opinion.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import httptools

from tests.frames import (
    BOM,
    COMMENTS,
    CR,
    CRLF,
    DONE,
    FIELDS,
    FRAMINGS,
    LF,
    MULTI_LINE,
    NO_SPACE,
    Frame,
    Framing,
    chunk,
    d,
    f,
    tc,
    u,
    words,
)
from tests.replies import Eof, Pause, Reply, Reset, Stall, Step, answer, body, call, error, hang_up, stream
from tests.strict_history import history_fault

__all__ = [
    "BOM",
    "COMMENTS",
    "CR",
    "CRLF",
    "DONE",
    "FIELDS",
    "FRAMINGS",
    "LF",
    "MULTI_LINE",
    "NO_SPACE",
    "Abort",
    "Eof",
    "Frame",
    "Framing",
    "Pause",
    "Reply",
    "Reset",
    "Script",
    "ScriptedUpstream",
    "Stall",
    "UpstreamRequest",
    "answer",
    "body",
    "call",
    "chunk",
    "d",
    "error",
    "f",
    "hang_up",
    "stream",
    "strict_history",
    "tc",
    "u",
    "words",
]


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """One request as it arrived.

    Attributes:
        number: 1 for the first.
        path: as sent, with its query.
        headers: names in lower case; of a repeated name the last.
        raw: the body's bytes.
        at: the event loop's time when it was complete.
        connection: which connection carried it, 1 for the first.
    """

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    at: float
    connection: int

    @property
    def json(self) -> dict[str, Any]:
        """The body, parsed anew each time."""
        return cast(dict[str, Any], json.loads(self.raw))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The body's messages."""
        return cast(list[dict[str, Any]], self.json["messages"])


@dataclass(frozen=True, slots=True)
class Abort:
    """A connection that its client gave up before the reply was complete; `at` is the event loop's time."""

    request: UpstreamRequest
    at: float


Script = Reply | Callable[[UpstreamRequest], Reply | Awaitable[Reply]]


def strict_history(request: UpstreamRequest) -> Reply | None:
    """A 400 when the request's history or tools are malformed, else None: `strict_history(r) or answer("ok")`."""
    fault = history_fault(request.json)
    return error(400, fault[1], kind="invalid_request_error", param=fault[0]) if fault else None


class ScriptedUpstream:
    """An async context manager that serves on a free port of 127.0.0.1.

    Replies are used up in the order of the requests; `then` answers all later ones. A request that nothing answers,
    and a script that raises, get a 500 and fail the test when the context ends.
    """

    def __init__(self, *script: Script, then: Script | None = None) -> None:
        self.requests: list[UpstreamRequest] = []
        self.aborts: list[Abort] = []
        self.stalls: list[str] = []
        self.connections = 0
        self._script = list(script)
        self._then = then
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._faults: list[Exception] = []
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*(connection.close() for connection in list(self._open)))
        async with asyncio.timeout(5):
            await self._server.wait_closed()
        if kind is None and self._faults:
            raise self._faults[0]

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None, "the upstream listens inside `async with` only"
        return cast(int, self._server.sockets[0].getsockname()[1])

    @property
    def base_url(self) -> str:
        """What a client or a backend is given as `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def connected(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    def enqueue(self, *script: Script) -> None:
        """Add replies for the next requests."""
        self._script += script

    def release(self, gate: str = "") -> None:
        """Let pass, from now on, every reply that waits for this gate."""
        self._gate(gate).set()

    async def received(self, count: int = 1, timeout_s: float = 20.0) -> list[UpstreamRequest]:
        """Wait until this many requests have arrived in all."""
        await self._until(lambda: len(self.requests) >= count, timeout_s, f"{count} requests")
        return self.requests

    async def stalled(self, count: int = 1, timeout_s: float = 20.0) -> None:
        """Wait until this many replies have come to a gate."""
        await self._until(lambda: len(self.stalls) >= count, timeout_s, f"{count} stalls")

    async def aborted(self, count: int = 1, timeout_s: float = 2.0) -> list[Abort]:
        """Wait until clients have given up this many replies in all."""
        await self._until(lambda: len(self.aborts) >= count, timeout_s, f"{count} aborted connections")
        return self.aborts

    async def _until(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not ready():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            seen = f"{len(self.requests)} requests, {len(self.stalls)} stalls, {len(self.aborts)} aborts"
            raise AssertionError(f"expected {what} within {timeout_s} s, saw {seen}") from None

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def opened(self, connection: _Connection) -> int:
        """A connection has come; answers its number."""
        self._open.add(connection)
        self.connections += 1
        return self.connections

    def lost(self, connection: _Connection, unanswered: UpstreamRequest | None) -> None:
        """A connection has gone; `unanswered` is what it was still owed."""
        self._open.discard(connection)
        if unanswered is not None:
            self.aborts.append(Abort(unanswered, asyncio.get_running_loop().time()))
        self._changed.set()

    async def reply_to(self, request: UpstreamRequest) -> Reply:
        """Record the request and find its reply."""
        self.requests.append(request)
        self._changed.set()
        script = self._script.pop(0) if self._script else self._then
        try:
            if script is None:
                raise AssertionError(
                    f"request {request.number} ({request.method} {request.path}) has no reply scripted"
                )
            if isinstance(script, Reply):
                return script
            made = script(request)
            return await made if inspect.isawaitable(made) else made
        except Exception as fault:  # noqa: BLE001 - the outermost handler of a script: the test fails with it at the end
            self._faults.append(fault)
            return error(500, f"the script failed: {fault!r}")

    async def wait_at(self, gate: str) -> None:
        """Hold a reply until its gate is released."""
        self.stalls.append(gate)
        self._changed.set()
        await self._gate(gate).wait()


class _Connection(asyncio.Protocol):
    """One connection: reads requests with httptools, performs replies step by step."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._current: UpstreamRequest | None = None
        self._begin()

    def _begin(self) -> None:
        self._path = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Zero: `_writable` then means that everything has been handed to the kernel.
        self._transport.set_write_buffer_limits(high=0)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = self._upstream.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        unanswered, self._current = self._current, None
        if self._task is not None:
            self._task.cancel()
        self._upstream.lost(self, unanswered)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        upstream = self._upstream
        method, path = self._parser.get_method().decode(), self._path.decode()
        now = asyncio.get_running_loop().time()
        number = len(upstream.requests) + 1
        request = UpstreamRequest(number, method, path, self._headers, bytes(self._body), now, self._number)
        self._begin()
        self._current = request
        self._task = asyncio.ensure_future(self._answer(request))

    async def close(self) -> None:
        """End the connection from this side; whatever it was owed is no abort."""
        self._current = None
        self._transport.abort()
        async with asyncio.timeout(5):
            await self._gone.wait()

    async def _answer(self, request: UpstreamRequest) -> None:
        reply = await self._upstream.reply_to(request)
        for step in reply.before:
            if not await self._perform(step, reply):
                return
        await self._write(self._head(reply))
        for step in reply.steps:
            if not await self._perform(step, reply):
                return
        self._current = None
        if reply.transfer == "chunked":
            await self._write(b"0\r\n\r\n")
        if reply.transfer == "close" or request.headers.get("connection", "").lower() == "close":
            self._transport.close()

    def _head(self, reply: Reply) -> bytes:
        ends = {
            "length": f"content-length: {len(reply.body) if reply.length is None else reply.length}",
            "chunked": "transfer-encoding: chunked",
            "close": "connection: close",
        }
        reason = http.client.responses.get(reply.status, "Scripted")
        lines = [f"HTTP/1.1 {reply.status} {reason}", *(f"{name}: {value}" for name, value in reply.headers)]
        return "\r\n".join([*lines, ends[reply.transfer], "", ""]).encode("latin-1")

    async def _perform(self, step: Step, reply: Reply) -> bool:
        """Do one step; False when it ended the connection."""
        if isinstance(step, bytes):
            for piece in _pieces(step, reply.sizes):
                await self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.transfer == "chunked" else piece)
        elif isinstance(step, Stall):
            await self._upstream.wait_at(step.gate)
        elif isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        else:
            self._current = None
            if isinstance(step, Reset):
                # Linger of zero seconds: closing discards what is unsent and sends RST instead of FIN.
                sock = self._transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
            else:
                self._transport.close()
            return False
        return True

    async def _write(self, data: bytes) -> None:
        self._transport.write(data)
        await self._writable.wait()
        # Lets a reader in this event loop see the piece alone.
        await asyncio.sleep(0)


def _pieces(data: bytes, sizes: tuple[int, ...]) -> list[bytes]:
    """Cut as told, sizes in turn; without sizes in one piece."""
    if not sizes:
        return [data] if data else []
    pieces = []
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[position : position + size])
        position += size
        turn += 1
    return pieces
