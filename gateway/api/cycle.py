"""One request and its answer on the server's side.

Knows HTTP framing, the trace id that every answer carries, and that a client gets an answer whatever happens inside. Does not know
endpoints: to most it is ASGI's `receive` and `send`; those that carry the load say whole answers at once, or begin one and go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

import msgspec
import structlog
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.api.errors import ErrorAnswer, describe, internal
from gateway.api.head import Said
from gateway.errors import BodyTooLarge, GatewayError
from gateway.ids import new_trace_id

# In the scope: the cycle itself.
CYCLE: Final = "gateway.cycle"
# In `http.response.start`: headers that are lines already (`head_lines`), beside the others.
LINES: Final = "gateway.lines"

_LENGTH: Final = b"content-length"
_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = frozenset({_LENGTH, _ENCODING, b"connection"})
_CLOSE: Final = b"connection: close\r\n"
# Behind every head, whoever makes it.
_IDS: Final = b"x-request-id: req_%b\r\nx-gateway-trace: %b\r\n\r\n"
_WHOLE: Final = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%b" + _IDS + b"%b"

_log: Any = structlog.get_logger("gateway.edge")


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


class Line(Protocol):
    """The connection that a request came by."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def wants_more(self, *, first: bool) -> None:
        """More of the request is waited for, `first` for the first time."""
        ...

    def answered(self) -> None:
        """The answer is complete."""
        ...


class Cycle(msgspec.Struct, eq=False):
    """One request and its answer.

    Args:
        line: where it came by.
        method: the request's.
        version: of HTTP.
        parts: what has come of its body and was not read.

    Attributes:
        keep_alive: whether the connection outlives it.
        said: what is kept with its head, where that was met before: its body has no encoding.
        received: whether the whole request is there.
        trace_id: 32 hex digits.
        task: what answers it, while it does.
        disconnected: whether the client has gone.
        started: whether the answer has begun, and `complete` whether it is over.
        on_gone: called where the client goes away before its answer is complete.
    """

    _line: Line
    _method: str
    _version: str
    _parts: list[bytes] = []
    keep_alive: bool = True
    said: Said | None = None
    received: bool = False
    trace_id: str = msgspec.field(default_factory=new_trace_id)
    task: asyncio.Task[None] | None = None
    disconnected: bool = False
    started: bool = False
    complete: bool = False
    on_gone: Callable[[], None] | None = None
    _read_out: bool = False
    _size: int = 0
    _news: asyncio.Event | None = None
    _head: bytes = b""
    _chunked: bool | None = None
    _left: int = 0
    # For a client of HTTP/1.0 that knows no chunks: the end of the connection is the answer's.
    _until_close: bool = False

    async def run(self, app: ASGIApp, scope: Scope, tasks: set[asyncio.Task[None]]) -> None:
        """Let the app answer, in a task that is one of `tasks` until then; where it does not, the client gets an error."""
        try:
            await app(scope, self.receive, self.send)
        except GatewayError as error:
            if self.started:
                _log.exception("request.failed", trace_id=self.trace_id, path=scope["path"])
            else:
                self.fail(describe(error))
        except Exception:  # noqa: BLE001 - the outermost handler: nobody is left to tell but the log
            _log.exception("request.failed", trace_id=self.trace_id, path=scope["path"])
            if not self.started:
                self.fail(internal())
        finally:
            if not self.complete and not self.disconnected:
                # Half an answer must not pass for a whole one.
                self._line.transport.close()
            if self.task is not None:
                tasks.discard(self.task)
                self.task = None

    async def body(self, limit_bytes: int) -> bytes:
        """The whole body of the request; most have come whole by the time they are asked for.

        Raises:
            BodyTooLarge: it is larger than the limit; no more than the limit is ever held.
            ClientGone: the client left.
        """
        while not self.received and not self.disconnected:
            if self._size > limit_bytes:
                raise too_large(limit_bytes)
            await self._more()
        return self.whole(limit_bytes)

    def whole(self, limit_bytes: int) -> bytes:
        """The whole body of a request that is all there.

        Raises:
            BodyTooLarge: it is larger than the limit.
            ClientGone: the client left.
        """
        if self.disconnected:
            raise ClientGone
        self._read_out = True
        body = b"".join(self._parts)
        self._parts.clear()
        if len(body) > limit_bytes:
            raise too_large(limit_bytes)
        return body

    async def receive(self) -> dict[str, Any]:
        """ASGI's."""
        while True:
            if self.disconnected or self.complete:
                return {"type": "http.disconnect"}
            if self._parts or (self.received and not self._read_out):
                self._read_out = self.received
                return {"type": "http.request", "body": self._taken(), "more_body": not self.received}
            await self._more()

    async def _more(self) -> None:
        """Wait until there is more of the request, or the client has gone."""
        first = self._news is None
        if self._news is None:
            self._news = asyncio.Event()
        self._news.clear()
        self._line.wants_more(first=first)
        await self._news.wait()

    def _taken(self) -> bytes:
        body = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return body

    def fed(self, pieces: Iterable[bytes], size: int) -> int:
        """Pieces of the body are there, of `size` bytes; how many wait to be read."""
        self._parts += pieces
        self._size += size
        if self._news is not None:
            self._news.set()
        return self._size

    def fed_all(self, pieces: Iterable[bytes]) -> None:
        """The request is complete: these are its last."""
        self._parts += pieces
        self.received = True
        if self._news is not None:
            self._news.set()

    def lost(self) -> None:
        """The client has gone."""
        if self.complete:
            return
        self.disconnected = True
        if self._news is not None:
            self._news.set()
        if self.on_gone is not None:
            self.on_gone()

    def answer(self, status: int, body: bytes, lines: bytes = b"") -> None:
        """Answer with JSON, head and body in one write; `lines` are further ones of the head, made by `head_lines` or alike."""
        if self.started:
            raise RuntimeError("a second answer to one request")
        self.started = True
        if self.disconnected:
            return
        if not self.keep_alive:
            lines += _CLOSE
        trace_id, size = self.trace_id.encode(), len(body)
        if self._method == "HEAD":
            body = b""
        self._line.transport.write(_WHOLE % (STATUS_LINE[status], size, lines, trace_id, trace_id, body))
        self._ended()

    def fail(self, error: ErrorAnswer) -> None:
        """Answer with an error."""
        self.answer(error.status, error.body, head_lines(error.headers))

    def begin(self, lines: bytes) -> None:
        """Begin an answer that comes in pieces; its head, with these lines (see `answer`), is sent with the first of them."""
        if self.started:
            raise RuntimeError("a second answer to one request")
        if self.disconnected:
            return
        self.started = True
        self._head = self._framed(STATUS_LINE[200] + lines)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """What it runs in."""
        return self._line.loop

    @property
    def full(self) -> bool:
        """Whether the client has no room for a piece."""
        return self._line.flow.write_paused and not self.disconnected

    async def room(self) -> None:
        """Wait until it has, if it has none."""
        await self._line.flow.drain()

    def go_on(self, body: bytes, *, more: bool) -> None:
        """Send a piece of an answer that was begun; `more` follow, or it is over."""
        if self.disconnected:
            return
        if self.complete:
            raise RuntimeError("a piece came behind a complete answer")
        self._go_on(body, more=more)

    async def send(self, message: Any) -> None:
        """ASGI's."""
        if self._line.flow.write_paused and not self.disconnected:
            await self._line.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.started:
            if kind != "http.response.start":
                raise RuntimeError(f"{kind!r} came before 'http.response.start'")
            self.started = True
            head = self._begun(message["status"], message.get("headers", ()), message.get(LINES, b""))
            self._line.transport.write(head)
        elif self.complete or kind != "http.response.body":
            raise RuntimeError(f"{kind!r} came behind a complete answer or in its middle")
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def at_once(self) -> AtOnce | None:
        """What writes further pieces of an answer of which some was sent, as `go_on` does; None where it does not come in chunks."""
        return AtOnce(self, self._line) if self._chunked else None

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self._method == "HEAD":
            self._left = 0
            body = b""
        elif self._until_close:
            pass
        elif not self._chunked:
            self._left -= len(body)
            if self._left < 0:
                raise RuntimeError("the answer is longer than its content-length")
        elif body:
            body = b"%x\r\n%b\r\n%b" % (len(body), body, b"" if more else b"0\r\n\r\n")
        elif not more:
            body = b"0\r\n\r\n"
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            self._line.transport.write(body)
        if not more:
            if self._left != 0:
                raise RuntimeError("the answer is shorter than its content-length")
            self._ended()

    def _begun(self, status: int, headers: Iterable[tuple[bytes, bytes]], more: bytes) -> bytes:
        lines = STATUS_LINE[status] + head_lines(headers := tuple(headers)) + more
        closes = False
        for name, value in headers:
            if name not in _FRAMING:
                continue
            if name == _LENGTH and self._chunked is None:
                self._left = int(value)
                self._chunked = False
            elif name == _ENCODING and value.lower() == b"chunked":
                self._left = 0
                self._chunked = True
            elif b"close" in value.lower():
                self.keep_alive = False
                closes = True
        return self._framed(lines, closes=closes, bodiless=status in (204, 304))

    def _framed(self, lines: bytes, *, closes: bool = False, bodiless: bool = False) -> bytes:
        """The head of these lines; where none of them does, it says how the body ends."""
        if not self.keep_alive and not closes:
            lines += _CLOSE
        if self._chunked is None and self._method != "HEAD" and not bodiless:
            if self._version == "1.0":
                self._until_close = True
            else:
                self._chunked = True
                lines += b"transfer-encoding: chunked\r\n"
        trace_id = self.trace_id.encode()
        return lines + _IDS % (trace_id, trace_id)

    def _ended(self) -> None:
        self.complete = True
        if self._news is not None:
            self._news.set()
        if not self.keep_alive:
            self._line.transport.close()
        self._line.answered()


class AtOnce:
    """Writes pieces of an answer that comes in chunks, behind what was sent of it; not those that would have to wait for room.

    Attributes:
        last: when something was written last, by the loop's time; 0 before.
    """

    __slots__ = ("_cycle", "_flow", "_now", "_pattern", "_size", "_transport", "last")

    def __init__(self, cycle: Cycle, line: Line) -> None:
        self._cycle = cycle
        self._flow = line.flow
        self._transport = line.transport
        self._now = line.loop.time
        self.last = 0.0
        self._size: int
        self._pattern: bytes

    def shape(self, before: bytes, behind: bytes) -> None:
        """Say what stands around whatever `alike` writes from now on."""
        self._size = len(before) + len(behind)
        self._pattern = b"%%x\r\n%b%%b%b\r\n" % (before.replace(b"%", b"%%"), behind.replace(b"%", b"%%"))

    def alike(self, varies: bytes) -> bool:
        """Write a piece that differs from others of its shape in this alone; whether that was done."""
        if self._flow.write_paused or self._cycle.disconnected:
            return False
        self._transport.write(self._pattern % (len(varies) + self._size, varies))
        self.last = self._now()
        return True

    def write(self, body: bytes) -> bool:
        """Write a piece; whether that was done."""
        if self._flow.write_paused or self._cycle.disconnected:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        self.last = self._now()
        return True


class Refusal(Cycle, eq=False):
    """The answer to what is no request, in its place behind the answers before it; the connection's last."""

    _answer: ErrorAnswer | None = None

    @classmethod
    def by(cls, line: Line, answer: ErrorAnswer) -> Refusal:
        """What answers so."""
        return cls(line, "-", "1.1", keep_alive=False, _answer=answer)

    async def run(self, app: ASGIApp, scope: Scope, tasks: set[asyncio.Task[None]]) -> None:  # noqa: ARG002 - asks none
        """Its turn has come."""
        self.tell()
        tasks.discard(asyncio.current_task())

    def tell(self) -> None:
        """Answer."""
        assert self._answer is not None, "it is made with one"
        self.fail(self._answer)


def head_lines(headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """Headers as they stand in a head, each with its end.

    Raises:
        RuntimeError: one holds a line break, and would be two.
    """
    return whole_lines(b"".join([b"%b: %b\r\n" % header for header in headers]), len(headers))


def whole_lines(lines: bytes, count: int) -> bytes:
    """The lines as they are: one look at all of them, instead of one at each value.

    Raises:
        RuntimeError: there are others than `count`.
    """
    if lines.count(b"\n") != count or lines.count(b"\r") != count or b"\0" in lines:
        raise RuntimeError("a header of the answer holds a line break")
    return lines


def too_large(limit_bytes: int) -> BodyTooLarge:
    """What to say of a request body that is."""
    return BodyTooLarge(f"The request body is larger than {limit_bytes} bytes (`server.body_limit_mb`).")
