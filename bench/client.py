"""One keep-alive connection of the load generator: writes a request, tells when its answer is complete.

Trusts the subjects to send either a length or chunks; does not parse what it need not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

# Enough to hold `data: [DONE]` with the chunk sizes around it.
_TAIL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: whole and status 200 if `ok`; times in seconds since the request was written."""

    ok: bool
    total_s: float
    first_s: float


class Client(asyncio.Protocol):
    """A connection that calls `on_answer` once an answer is complete or the connection is lost in its middle."""

    def __init__(self, on_answer: Callable[[Client, Answered], None]) -> None:
        self._on_answer = on_answer
        self._busy = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.closed = True
        if self._busy:
            self._finish(ok=False, now=perf_counter())

    def ask(self, request: bytes) -> None:
        """Write one request. The last one must have been answered."""
        self._busy = True
        self._head = b""
        self._in_body = False
        self._stream = False
        self._first_s = 0.0
        self._left = 0
        self._tail = b""
        self._start = perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Drop the connection; an answer still open is forgotten."""
        self._busy = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        if not self._in_body:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._open_body(self._head[:end].lower())
        if not self._first_s and data:
            self._first_s = now - self._start
        if self._stream:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            if self._tail.endswith(b"0\r\n\r\n"):
                self._finish(ok=self._ok and b"data: [DONE]" in self._tail, now=now)
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._finish(ok=self._ok and self._left == 0, now=now)

    def _open_body(self, head: bytes) -> None:
        self._in_body = True
        self._ok = head.startswith(b"http/1.1 200")
        at = head.find(b"\r\ncontent-length:")
        self._stream = at < 0
        if at >= 0:
            self._left = int(head[at + 17 :].split(b"\r\n", 1)[0])

    def _finish(self, *, ok: bool, now: float) -> None:
        self._busy = False
        self._on_answer(self, Answered(ok, now - self._start, self._first_s or now - self._start))


async def connect(url: str, on_answer: Callable[[Client, Answered], None]) -> Client:
    """A connection to the host and port of `url`. Raises OSError when nobody listens there, ValueError without a port."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"{url!r} names no host and port")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(on_answer), parts.hostname, parts.port)
    return client
