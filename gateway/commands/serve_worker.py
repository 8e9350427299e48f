"""One of several processes of `serve`: a gateway on the socket that all of them share.

Knows what its supervisor tells it. Begun by `children.py` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Final

import structlog
import uvloop

from gateway.app import Gateway, open_gateway
from gateway.commands.control import (
    ASK_S,
    Answer,
    Answers,
    Ask,
    Channel,
    Failed,
    Go,
    Job,
    Listening,
    Prepared,
    Proved,
)
from gateway.commands.listening import LEAVE_S, Server, end_within
from gateway.errors import ConfigError, GatewayError, StoreUnavailable
from gateway.routing.encoders.registry import Encoders
from gateway.settings import Settings, read_settings

# Seconds between two looks at whether this worker may decide.
_LOOK_S: Final = 0.05


def main(wire: int, listener: int, encoders: Encoders | None = None) -> int:
    """Serve until told to stop; the exit code.

    Args:
        wire: the file descriptor of the wire to the supervisor.
        listener: that of the socket that all workers share.
        encoders: those that were loaded for all workers.
    """
    return uvloop.run(_work(_handed(wire), _handed(listener), encoders))


async def _work(wire: socket.socket, listener: socket.socket, encoders: Encoders | None) -> int:
    channel = await Channel.over(wire)
    job = await channel.receive()
    if not isinstance(job, Job):
        return 1
    # In every log line of this process, of libraries too.
    structlog.contextvars.bind_contextvars(worker=job.number)
    siblings = Siblings(job.number, channel)
    listening_to = asyncio.create_task(siblings.listen(), name="supervisor")
    try:
        settings = read_settings()
        if job.redis is not None:
            settings = settings.model_copy(update={"redis_url": job.redis})
        return await _serve(job, settings, channel, siblings, listener, encoders)
    except ConfigError as error:
        await channel.send(Failed(error.message))
        return 1
    except StoreUnavailable as error:
        await channel.send(Failed(error.message))
        return 1
    finally:
        listening_to.cancel()
        await asyncio.wait([listening_to])
        await channel.close()
        if siblings.alone and job.folder is not None:
            # The server ended with the supervisor, which cannot clean up any more.
            await asyncio.to_thread(shutil.rmtree, job.folder, ignore_errors=True)


async def _serve(
    job: Job,
    settings: Settings,
    channel: Channel,
    siblings: Siblings,
    listener: socket.socket,
    encoders: Encoders | None,
) -> int:
    async with open_gateway(
        Path(job.config),
        Path(job.routes),
        settings,
        host=job.host,
        files=job.files,
        siblings=siblings,
        # Nobody but these processes reaches a server that the supervisor embeds.
        executes=job.redis is not None,
        encoders=encoders,
    ) as gateway:
        siblings.answers.update(gateway.together.answers)
        snapshot = gateway.versions.current
        drain_s = snapshot.config.server.drain_s
        await channel.send(Prepared(gateway.replica.name, drain_s, needs_key=not await snapshot.keys.is_open()))
        proving = asyncio.create_task(_prove(gateway, channel), name="proved")
        try:
            await siblings.go.wait()
        finally:
            proving.cancel()
            await asyncio.wait([proving])
        telling: list[asyncio.Task[None]] = []

        def listening() -> None:
            telling.append(asyncio.create_task(channel.send(Listening()), name="listening"))

        server = Server(gateway.app, snapshot.config.server, gateway.drain, listening)
        await server.serve_on(listener)
    code = 0 if server.came_up else 1
    end_within(LEAVE_S, code)
    return code


def _handed(descriptor: int) -> socket.socket:
    """A socket of the supervisor's; programs that are started from here do not get it."""
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    return sock


async def _prove(gateway: Gateway, channel: Channel) -> None:
    """Tell the supervisor as soon as this worker may decide."""
    while True:
        with contextlib.suppress(GatewayError):
            gateway.replica.standing.refuse()
            await channel.send(Proved())
            return
        await asyncio.sleep(_LOOK_S)


class Siblings:
    """The other workers, through the supervisor.

    Attributes:
        number: this worker's.
        go: set once connections are to be accepted.
        answers: what this worker answers to the others, by their words.
        alone: whether the supervisor is gone.
    """

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.go = asyncio.Event()
        self.answers: dict[str, Callable[[], Awaitable[bytes]]] = {}
        self.alone = False
        self._channel = channel
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Mapping[int, bytes]]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def ask(self, what: str) -> Mapping[int, bytes]:
        """What the others answer, by their numbers. Who does not within two seconds is missing."""
        id = next(self._numbers)  # noqa: A001 - the message's own word
        future: asyncio.Future[Mapping[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        try:
            await self._channel.send(Ask(id, what))
            async with asyncio.timeout(2 * ASK_S):
                return await future
        except TimeoutError:
            return {}
        finally:
            del self._waiting[id]

    async def listen(self) -> None:
        """Heed the supervisor for as long as it is there; without one, stop as at a signal."""
        while (message := await self._channel.receive()) is not None:
            if isinstance(message, Go):
                self.go.set()
            elif isinstance(message, Ask):
                task = asyncio.create_task(self._answer(message), name="answer")
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            elif isinstance(message, Answers):
                future = self._waiting.get(message.id)
                if future is not None and not future.done():
                    future.set_result(message.contents)
        self.alone = True
        os.kill(os.getpid(), signal.SIGTERM)

    async def _answer(self, asked: Ask) -> None:
        answer = self.answers.get(asked.what)
        if answer is not None:
            await self._channel.send(Answer(asked.id, await answer()))
