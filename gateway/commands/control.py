"""What the supervisor of `serve` and its workers say to each other, and the wire for it.

Knows messages and how they are cut. One end closing is a message too: the other process is gone. What follows from a message
is `supervisor.py`'s and `serve_worker.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.config.files import Files

# Seconds that the other workers have to answer a question.
ASK_S: Final = 2.0
# Bytes before each message that say how long it is.
_LENGTH_BYTES: Final = 4
# Seconds that a message may take to leave.
_SEND_S: Final = 5.0


class Job(msgspec.Struct, frozen=True, tag=True):
    """To a worker, first of all: what to serve.

    Attributes:
        number: which worker, from 1.
        config: the gateway's own file.
        routes: the folder of routes.
        files: what they held when all of it began, so that one that is replaced can start while they are being edited.
        host: the address that the socket is bound to.
        redis: the embedded server's URL, or None where the configuration names one.
        folder: the embedded server's folder, to remove where the supervisor cannot any more.
    """

    number: int
    config: str
    routes: str
    files: Files
    host: str
    redis: str | None
    folder: str | None


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """From a worker: everything is built.

    Attributes:
        replica: its name among the replicas.
        drain_s: seconds that its requests have at the end.
        needs_key: whether its configuration asks for keys.
    """

    replica: str
    drain_s: float
    needs_key: bool


class Proved(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it may decide."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """To a worker: accept connections."""


class Listening(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it accepts connections."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot start; in the words that people are to read."""

    text: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """From a worker: ask all others. To a worker: answer."""

    id: int
    what: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """From a worker: what was asked."""

    id: int
    content: bytes


class Answers(msgspec.Struct, frozen=True, tag=True):
    """To a worker: what the others answered, by their numbers; who did not in time is missing."""

    id: int
    contents: Mapping[int, bytes]


Message = Job | Prepared | Proved | Go | Listening | Failed | Ask | Answer | Answers

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Channel:
    """One end of the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Channel:
        """Take one socket of a pair."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    async def send(self, message: Message) -> None:
        """Send one; nothing happens where the other end is gone or does not read: that is found out by reading."""
        content = _encode(message)
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
            async with asyncio.timeout(_SEND_S):
                await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next one; None once the other end is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            return _decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
