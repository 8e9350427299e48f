"""One request and its answer on the server's side: uvicorn's cycle, with head and body in one write.

Knows HTTP framing. uvicorn writes the head of an answer as soon as it is said, which is a system call and a packet of its own; here
whoever says that the body follows at once gets both in one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

# In `http.response.start`: the first `http.response.body` is sent without waiting for anything.
BODY_FOLLOWS: Final = "gateway.body_follows"
# There too: is told what writes a piece of the body at once, where there may be such.
STRAIGHT: Final = "gateway.straight"

_LENGTH: Final = b"content-length"
_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = frozenset({_LENGTH, _ENCODING, b"connection"})


class Cycle(RequestResponseCycle):
    """As uvicorn's, but for how an answer is written."""

    _head = b""
    # For a client of HTTP/1.0 that knows no chunks: the end of the connection is the answer's.
    _until_close = False

    async def send(self, message: Any) -> None:
        """Write what an app says."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"{kind!r} came before 'http.response.start'")
            self.response_started = True
            self.waiting_for_100_continue = False
            head = self._begun(message["status"], message.get("headers", ()))
            if STRAIGHT in message and self.chunked_encoding and self.scope["method"] != "HEAD":
                message[STRAIGHT](self._write_at_once)
            if message.get(BODY_FOLLOWS):
                self._head = head
            else:
                self.transport.write(head)
        elif self.response_complete or kind != "http.response.body":
            raise RuntimeError(f"{kind!r} came behind a complete answer or in its middle")
        else:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))

    def _write_at_once(self, body: bytes) -> bool:
        """Write a piece of a body of which some was sent, as `send` does; False where that has to wait, or comes too late."""
        if self.flow.write_paused or self.disconnected:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self._until_close:
            pass
        elif not self.chunked_encoding:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the answer is longer than its content-length")
        elif body:
            body = b"%x\r\n%b\r\n%b" % (len(body), body, b"" if more else b"0\r\n\r\n")
        elif not more:
            body = b"0\r\n\r\n"
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            self.transport.write(body)
        if not more:
            self._ended()

    def _begun(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [STATUS_LINE[status]]
        closes = False
        count = 0
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
            count += 1
            if name not in _FRAMING:
                continue
            if name == _LENGTH and self.chunked_encoding is None:
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == _ENCODING and value.lower() == b"chunked":
                self.expected_content_length = 0
                self.chunked_encoding = True
            elif b"close" in value.lower():
                self.keep_alive = False
                closes = True
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
            count += 1
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            if self.scope["http_version"] == "1.0":
                self._until_close = True
            else:
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
                count += 1
        head = b"".join(lines)
        # One look at all of them: a value with a line break in it would be a header of its own.
        breaks = count + 1
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            raise RuntimeError("a header of the answer holds a line break")
        return head + b"\r\n"

    def _ended(self) -> None:
        if self.expected_content_length != 0:
            raise RuntimeError("the answer is shorter than its content-length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
