"""One client's connection: bytes to requests, one answered after the other.

Knows bytes and their timing: requests that come behind each other, clients that never finish one, an `Upgrade` nobody serves, bytes
that are no HTTP. What is well-formed is llhttp's to say. Does not know endpoints. Stands in the place of uvicorn's protocol, under its
server: a request that meets nothing unusual is to cost next to nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from gateway.api.address import ORIGIN, peer_of
from gateway.api.cycle import CYCLE, Cycle, Refusal
from gateway.api.errors import ErrorAnswer
from gateway.api.head import Head, head_of
from gateway.security.principal import Origin

# A body that is still coming has to bring at least this much in each `Connection.patience_s`.
_LEAST_BYTES = 4096
# More than any head has; it is held whole.
_HEAD_BYTES = 65_536
# How often a connection is looked at in that time. What is between two looks is not measured, so a client is let go after at most a
# quarter more of it.
_LOOKS = 8
# Requests that may wait behind a running one. Reading goes on until there are as many: else nobody would see the client leave.
_MOST_WAITING = 8
# Heads that a connection is learned by in vain: its client says another one each time.
_MOST_STRANGE = 4
_UPGRADES = frozenset({b"upgrade", b"http2-settings"})

_log = logging.getLogger("uvicorn.error")


class Connection(asyncio.Protocol):
    """What uvicorn's server makes of each connection it accepts.

    Attributes:
        patience_s: seconds a client may take for the head of a request, and for each `_LEAST_BYTES` of its body.
    """

    patience_s = 60.0

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - uvicorn's, by name
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._keep_alive_s = config.timeout_keep_alive
        self._server = server_state
        self.loop = _loop or asyncio.get_running_loop()
        # llhttp gives a body in pieces, and calls the list's own method.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = self._new_parser()
        # The request that is being read.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._offers_upgrade = False
        # What is the same for most requests of a connection is read once.
        self._asked: tuple[bytes, bytes, str] | None = None
        self._scope: dict[str, Any] = {}
        # Of a body that it does not read, so many bytes are to come.
        self._left = 0
        # The head that is expected again, and how many were in vain since one was met.
        self._head: Head | None = None
        self._strange = 0
        # The one that is being answered, the newest, and those between them: a client may ask without waiting for answers.
        self._running: Cycle | None = None
        self._newest: Cycle | None = None
        self._waiting: deque[tuple[Cycle, Scope]] = deque()
        # A request that is not complete: its head (`_in_body` false) or its body.
        self._incomplete = True
        self._in_body = False
        # Of its head, and of what frames its body, where that came apart; below zero where it began in what is being read.
        self._head_bytes = 0
        # Since when the timer has seen it incomplete, or nothing at all; None where it has not looked since.
        self._since: float | None = None
        self._window_bytes = 0
        self._look_again: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to listen, and to count the time."""
        self._server.connections.add(self)  # type: ignore[arg-type]
        self.transport = transport
        self.flow = FlowControl(transport)
        self._since = self.loop.time()
        self._look_again = self.loop.call_later(self.patience_s / _LOOKS, self._look)

    def connection_lost(self, _: Exception | None) -> None:
        """End: whoever is being answered is told."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        self._server.connections.discard(self)
        self._waiting.clear()
        if self._running is not None:
            self._running.lost()
        self._running = self._newest = None
        self.flow.resume_writing()
        self.transport.close()
        self._parser = None  # it refers to this

    def data_received(self, data: bytes) -> None:
        """Read. A request that offers an upgrade is read as if it did not: its body is lost otherwise."""
        between, head = not self._incomplete, self._head
        if between and head is not None and (read := head.read(data)) is not None:
            scope, body, left = read
            self._strange = 0
            if left:
                self._accept(Cycle(self, head.method, head.version, said=head.said), scope)
                self._begin_body(scope, body, left)
            else:
                self._accept(Cycle(self, head.method, head.version, [body], said=head.said, received=True), scope)
            return
        if self._left:
            self._go_on_with_body(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse_unread("The request is not valid HTTP.")
            return
        except httptools.HttpParserUpgrade as upgrade:
            if self._parser.get_method() == b"CONNECT":
                self._refuse_unread("CONNECT is not served here.")
                return
            again = self._plain_head() + data[upgrade.args[0] :]
            self._offers_upgrade = False
            self._parser = self._new_parser()
            self.data_received(again)
            return
        if self._incomplete:
            self._unfinished(len(data))
        if between and self._in_body and self._strange < _MOST_STRANGE:
            self._learn(data)

    def _begin_body(self, scope: Scope, body: bytes, left: int) -> None:
        """The parser has not seen the head of this request, and does not see its body: so much of it is left."""
        self._left = left
        self._headers = scope["headers"]
        self._incomplete = self._in_body = True
        self._since = None
        self._window_bytes = self._head_bytes = 0
        if body:
            self._pieces.append(body)
            self._unfinished(len(body))

    def _go_on_with_body(self, data: bytes) -> None:
        piece, behind = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self._pieces.append(piece)
        if self._left:
            self._unfinished(len(piece))
            return
        self.on_message_complete()
        if behind:
            self.data_received(behind)

    def _learn(self, data: bytes) -> None:
        """Where `data` is or begins one request, those that begin alike need no parser."""
        self._strange += 1
        if self._newest is not None and self._newest.keep_alive:
            self._head = head_of(data, self._headers, self._scope) or self._head

    def pause_writing(self) -> None:
        """The client takes its answers slower than they are made."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """It has taken enough of them."""
        self.flow.resume_writing()
        self._next()

    def shutdown(self) -> None:
        """The server stops: what was asked is answered, and nothing after it."""
        if self._newest is None or self._newest.complete:
            self.transport.close()
        else:
            self._newest.keep_alive = False

    # What the parser tells.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers = []
        self._incomplete = True
        self._in_body = False
        self._head_bytes = -1
        self._since = None

    def on_url(self, url: bytes) -> None:
        """A piece of its URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Its head is there; one that offers an upgrade is read again without the offer."""
        parser = self._parser
        if parser.should_upgrade():
            self._offers_upgrade = True
            return
        self._in_body = True
        self._window_bytes = 0
        version = parser.get_http_version()
        asked = (parser.get_method(), self._url, version)
        if asked != self._asked:
            self._scope = self._scope_of(*asked)
            self._asked = asked
        scope = self._scope.copy()
        scope["headers"] = self._headers.copy()  # what a chunked body has behind it is no part of the head
        cycle = Cycle(self, scope["method"], version, keep_alive=version != "1.0" and parser.should_keep_alive())
        self._accept(cycle, scope)

    def _accept(self, cycle: Cycle, scope: dict[str, Any]) -> None:
        """Answer a request in its turn."""
        scope[CYCLE] = cycle
        self._newest = cycle
        if self._running is None and not self.flow.write_paused:
            self._start(cycle, scope)
        else:
            self._waiting.append((cycle, scope))
            if len(self._waiting) >= _MOST_WAITING:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """It is complete."""
        if not self._offers_upgrade and self._newest is not None:
            self._incomplete = False
            self._since = None
            self._newest.fed_all(self._pieces)
            self._pieces.clear()

    # What the request that is answered tells.

    def wants_more(self, *, first: bool) -> None:
        """More of the request is waited for: the client may send it."""
        running = self._running
        if self._waiting or running is None:
            return  # what comes next is another's
        if first and self._incomplete and running is self._newest and not running.started and self._expects():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.flow.resume_reading()

    def _expects(self) -> bool:
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)

    def answered(self) -> None:
        """An answer is complete: go on with the next request."""
        self._server.total_requests += 1
        if self.transport.is_closing():
            return
        self._running = None
        self._since = None
        if self._waiting:
            self._next()
            if len(self._waiting) >= _MOST_WAITING:
                return  # one read can bring thousands
        if self.flow.read_paused:
            self.flow.resume_reading()

    def _unfinished(self, read: int) -> None:
        """What was read ends before its request does."""
        pieces = self._pieces
        if not pieces:
            # A head, or what stands between a body's chunks and behind them. What came before it in this read is another's.
            self._head_bytes = 0 if self._head_bytes < 0 else self._head_bytes + read
            if self._head_bytes > _HEAD_BYTES:
                message = f"The head of the request is larger than {_HEAD_BYTES} bytes."
                self._refuse(ErrorAnswer(431, message, "invalid_request_error", "head_too_large", None, ()))
            return
        self._head_bytes = 0
        size = sum(map(len, pieces))
        self._window_bytes += size
        cycle = self._newest
        if cycle is not None and not cycle.complete and cycle.fed(pieces, size) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        pieces.clear()

    def _next(self) -> None:
        if self._waiting and self._running is None and not self.flow.write_paused:
            self._start(*self._waiting.popleft())

    def _start(self, cycle: Cycle, scope: Scope) -> None:
        self._running = cycle
        tasks = self._server.tasks
        cycle.task = self.loop.create_task(cycle.run(self._app, scope, tasks))
        tasks.add(cycle.task)

    def _scope_of(self, method: bytes, url: bytes, version: str) -> dict[str, Any]:
        """ASGI's scope of such requests, but for what each has of its own."""
        asked = httptools.parse_url(url)
        path = asked.path.decode("ascii")
        client = get_remote_addr(self.transport)
        peer = peer_of({"client": client})
        return {
            ORIGIN: Origin(peer, peer),
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": get_local_addr(self.transport),
            "client": client,
            "scheme": "https" if is_ssl(self.transport) else "http",
            "root_path": "",
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": asked.path,
            "query_string": asked.query or b"",
        }

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # What comes behind a request that asks to close is read and left, instead of costing the answer.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _plain_head(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        for name, value in self._headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _UPGRADES]
                if kept:
                    lines.append(name + b": " + b",".join(kept))
            elif name not in _UPGRADES:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _look(self) -> None:
        """The timer: let go of a client that has taken too long for a request, and look again later."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        if self._since is None:
            self._since, self._window_bytes = now, 0
        busy = self._running is not None
        if not self._incomplete and not busy:
            if now - self._since >= self._keep_alive_s:
                self.transport.close()
                return
        elif not self._incomplete or self.flow.read_paused or (busy and not self._in_body):
            # Nothing is owed; or it is this side that does not read; or the next request is late behind a running one.
            self._since = None
        elif now - self._since >= self.patience_s:
            if not self._in_body or not busy or self._window_bytes < _LEAST_BYTES:
                self._give_up()
                return
            self._since = None
        self._look_again = self.loop.call_later(self.patience_s / _LOOKS, self._look)

    def _give_up(self) -> None:
        message = f"The request was not complete: too little of it came in {self.patience_s:g} s."
        self._refuse(ErrorAnswer(408, message, "invalid_request_error", "request_timeout", None, ()))

    def _refuse_unread(self, message: str) -> None:
        _log.warning("%s", message)
        self._refuse(ErrorAnswer(400, message, "invalid_request_error", None, None, ()))

    def _refuse(self, answer: ErrorAnswer) -> None:
        """Answer what is no request, behind the requests before it, and hang up."""
        self._head = None  # nothing counts behind it
        running, newest, waiting = self._running, self._newest, self._waiting
        begun = newest is not None and self._incomplete and self._in_body  # then it is the newest that goes wrong
        if (running is not None and running.started) or (begun and newest is not None and newest.started):
            self.transport.close()  # in the middle of an answer, and behind the answer to half a request, is room for no other
        elif running is None or (begun and newest is running):
            Refusal.by(self, answer).tell()
        elif not waiting or type(waiting[-1][0]) is not Refusal:
            if begun:
                waiting.pop()
            waiting.append((Refusal.by(self, answer), {}))
            self.flow.pause_reading()
