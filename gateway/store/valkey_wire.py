"""One connection to Redis or Valkey that many tasks use at once, for scripts that are on the way of every request.

Knows as much of the protocol (RESP2) as scripts need that answer with one value. A general client costs four times the CPU of
the whole exchange; and it takes a connection for each task that waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import deque
from typing import Any, Final, cast

from redis.asyncio.connection import parse_url

from gateway.errors import StoreUnavailable

# Seconds to connect, and seconds after a failure in which nobody tries again.
_CONNECT_S: Final = 1.0
_REST_S: Final = 0.5
# Seconds that an answer may take, and how often is looked whether one is late.
ANSWER_S: Final = 1.0
_LOOK_S: Final = 0.25
# Bytes of one reply; ours are hundreds.
_LONGEST: Final = 1024 * 1024


class Script:
    """A script and the name that the server knows it by."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.sha = hashlib.sha1(self.text).hexdigest().encode()  # noqa: S324 - the protocol's name for it


class ServerSaid(Exception):
    """The server answered with an error."""


class ValkeyWire:
    """Connects when it is first asked, and again after a failure.

    Args:
        url: `redis://`, `rediss://` or `unix://`; never shown.
    """

    def __init__(self, url: str) -> None:
        self._options: dict[str, Any] = dict(parse_url(url))
        self._secure = url.startswith("rediss://")
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._rests_until = 0.0

    async def run(self, script: Script, key: bytes, arguments: tuple[bytes, ...]) -> bytes:
        """What a script with one key answers. Sent again only where the server says that it did not run.

        Raises:
            StoreUnavailable: the server is away, does not answer in time, or cannot run it.
        """
        parts = (b"EVALSHA", script.sha, b"1", key, *arguments)
        try:
            connection = self._connection
            if connection is None or connection.closed:
                connection = await self._connect()
            try:
                return await connection.ask(parts)
            except ServerSaid as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
                return await connection.ask((b"EVAL", script.text, *parts[2:]))
        except ServerSaid as error:
            raise StoreUnavailable("The server that `storage.redis` names refused a script of the counters.") from error
        except OSError as error:  # TimeoutError is one
            raise StoreUnavailable("The server that `storage.redis` names cannot be used.") from error

    async def close(self) -> None:
        """Close the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            self._connection.close()
        # The transport closes with the next turn of the loop.
        await asyncio.sleep(0)

    async def _connect(self) -> _Connection:
        now = asyncio.get_running_loop().time()
        if self._connecting is None:
            if now < self._rests_until:
                raise ConnectionError("it failed a moment ago")
            self._connecting = asyncio.create_task(self._open(), name="valkey-wire")
            self._connecting.add_done_callback(self._opened)
        # Who gives up must not take the connection from others who wait for it.
        return await asyncio.shield(self._connecting)

    def _opened(self, task: asyncio.Task[_Connection]) -> None:
        self._connecting = None
        if task.cancelled():
            return
        if task.exception() is not None:
            self._rests_until = asyncio.get_running_loop().time() + _REST_S
        else:
            self._connection = task.result()

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        options = self._options
        async with asyncio.timeout(_CONNECT_S):
            if path := options.get("path"):
                _, connection = await loop.create_unix_connection(_Connection, path)
            else:
                _, connection = await loop.create_connection(
                    _Connection,
                    options.get("host", "localhost"),
                    options.get("port", 6379),
                    ssl=ssl.create_default_context() if self._secure else None,
                )
            try:
                if options.get("password") is not None:
                    name = [options["username"]] if options.get("username") else []
                    await connection.ask(tuple(str(part).encode() for part in ("AUTH", *name, options["password"])))
                if options.get("db"):
                    await connection.ask((b"SELECT", str(options["db"]).encode()))
            except ServerSaid as error:
                connection.close()
                raise ConnectionError("the server does not let us in") from error
            except BaseException:
                connection.close()
                raise
            return connection


class _Connection(asyncio.Protocol):
    """Requests and their answers, in order.

    An answer that is late ends the connection: those behind it are late too. One timer watches all of them, which costs a
    request nothing.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[asyncio.Future[bytes], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._out: list[bytes] = []
        self._in = b""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        # By what it does, not by its class: uvloop's are none of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """It is gone; nobody knows what became of what was asked."""
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(ConnectionError("the connection was lost"))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Answers, or parts of them."""
        rest = self._in + data if self._in else data
        at = 0
        while (end := rest.find(b"\r\n", at)) >= 0:
            kind, line = rest[at : at + 1], rest[at + 1 : end]
            value: bytes | ServerSaid = line
            at_next = end + 2
            if kind == b"$":
                length = int(line)
                if length > _LONGEST:
                    self.close()
                    return
                if length >= 0:
                    at_next = end + 2 + length + 2
                    if len(rest) < at_next:
                        break
                    value = rest[end + 2 : end + 2 + length]
            elif kind == b"-":
                value = ServerSaid(line.decode("utf-8", "replace"))
            elif kind not in (b"+", b":"):
                self.close()  # nothing that was asked is answered so
                return
            at = at_next
            self._answered(value)
        self._in = rest[at:]

    def ask(self, parts: tuple[bytes, ...]) -> asyncio.Future[bytes]:
        """Send one request, with all others of this moment; its answer. Raises `ServerSaid`, `ConnectionError`."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if self.closed:
            future.set_exception(ConnectionError("the connection was lost"))
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))
        self._waiting.append((future, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(_LOOK_S, self._look)
        return future

    def close(self) -> None:
        """Close it."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        self._watch = None
        if not self._waiting or self.closed:
            return
        if self._loop.time() - self._waiting[0][1] > ANSWER_S:
            self.close()
            return
        self._watch = self._loop.call_later(_LOOK_S, self._look)

    def _flush(self) -> None:
        out, self._out = b"".join(self._out), []
        if self._transport is not None and not self.closed:
            self._transport.write(out)

    def _answered(self, value: bytes | ServerSaid) -> None:
        if not self._waiting:
            self.close()
            return
        future, _ = self._waiting.popleft()
        if future.done():
            return  # who asked has given up
        if isinstance(value, ServerSaid):
            future.set_exception(value)
        else:
            future.set_result(value)
