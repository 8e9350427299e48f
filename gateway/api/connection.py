"""One client's connection: what uvicorn's HTTP protocol leaves open.

Knows bytes and their timing, before there is a request: clients that never finish one, an `Upgrade` nobody serves, bytes that
are no HTTP. Does not know endpoints.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.api.cycle import Cycle
from gateway.api.errors import ErrorAnswer
from gateway.api.http import JSON_TYPE
from gateway.ids import new_trace_id

# A body that is still coming has to bring at least this much in each `Connection.patience_s`.
_LEAST_BYTES = 4096
# How often a connection is looked at in that time: a client is let go after at most a quarter more of it.
_LOOKS = 4
_UPGRADES = frozenset({b"upgrade", b"http2-settings"})


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with an end to its patience, an ear for requests that offer an upgrade, and a cycle of our own.

    Attributes:
        patience_s: seconds a client may take for the head of a request, and for each `_LEAST_BYTES` of its body.
    """

    patience_s = 60.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._offers_upgrade = False
        # A request that is not complete: its head (`_in_body` false) or its body.
        self._incomplete = True
        self._in_body = False
        self._window_at = 0.0
        self._window_bytes = 0
        self._idle_at = 0.0
        self._look_again: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to listen, and to count the time."""
        super().connection_made(transport)
        self._window_at = self.loop.time()
        self._look_again = self.loop.call_later(self.patience_s / _LOOKS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, but a request that offers an upgrade is read as if it did not: its body is lost otherwise."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("The request is not valid HTTP.")
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("CONNECT is not served here.")
                return
            again = self._plain_head() + data[upgrade.args[0] :]
            self._offers_upgrade = False
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.data_received(again)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read as a request."""
        self.logger.warning(msg)
        self._refuse(ErrorAnswer(400, msg, "invalid_request_error", None, None, ()))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._incomplete = True
        self._in_body = False
        self._window_at = self.loop.time()

    def on_headers_complete(self) -> None:
        """Its head is there; one that offers an upgrade is read again without the offer."""
        if self.parser.should_upgrade():
            self._offers_upgrade = True
            return
        self._in_body = True
        self._window_bytes = 0
        self._begin_cycle()

    def _begin_cycle(self) -> None:
        """As uvicorn's `on_headers_complete`, without what is switched off here, and with a cycle of our own."""
        version = self.parser.get_http_version()
        scope: Any = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        before = self.cycle
        cycle = self.cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        # None before the first request, whatever uvicorn's annotation says.
        if before is None or before.response_complete:  # type: ignore[redundant-expr]
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_response_complete(self) -> None:
        """As uvicorn's, but how long the connection may rest is `_look`'s to say: a timer less for each request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_at = self.loop.time()

    def on_body(self, body: bytes) -> None:
        """A piece of its body is there."""
        self._window_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is complete."""
        if not self._offers_upgrade:
            self._incomplete = False
            super().on_message_complete()

    def _plain_head(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
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
        # None before the first request, whatever uvicorn's annotation says.
        busy = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
        if not self._incomplete and not busy and now - self._idle_at >= self.timeout_keep_alive:
            self.transport.close()
            return
        if not self._incomplete or self.flow.read_paused or (busy and not self._in_body):
            # Nothing is owed; or it is this side that does not read; or the next request is late behind a running one.
            self._window_at, self._window_bytes = now, 0
        elif now - self._window_at >= self.patience_s:
            if not self._in_body or not busy or self._window_bytes < _LEAST_BYTES:
                self._give_up()
                return
            self._window_at, self._window_bytes = now, 0
        self._look_again = self.loop.call_later(self.patience_s / _LOOKS, self._look)

    def _give_up(self) -> None:
        if self._in_body and (self.cycle.response_started or self.cycle.response_complete):
            self.transport.close()  # it was answered, and still sends
            return
        message = f"The request was not complete: too little of it came in {self.patience_s:g} s."
        self._refuse(ErrorAnswer(408, message, "invalid_request_error", "request_timeout", None, ()))

    def _refuse(self, answer: ErrorAnswer) -> None:
        """Answer without a request and hang up."""
        trace_id = new_trace_id().encode()
        headers = (
            JSON_TYPE,
            (b"content-length", str(len(answer.body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", b"req_" + trace_id),
            (b"x-gateway-trace", trace_id),
        )
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[answer.status] + head + b"\r\n" + answer.body)
        self.transport.close()
