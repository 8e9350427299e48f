"""`serve --workers N`: processes that share one socket, looked after by this one, which serves nothing itself.

Knows their lives: all accept connections once all are ready, one that ends is replaced, all end together. What one of them
does is `serve_worker.py`'s, what is said to them is in `control.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.commands.children import Children, Process, encoder_of
from gateway.commands.control import (
    Answer,
    Ask,
    Channel,
    Failed,
    Go,
    Job,
    Listening,
    Message,
    Prepared,
    Proved,
)
from gateway.commands.exchange import Exchange
from gateway.commands.files import paths_of
from gateway.commands.listening import bound, how_to_try, url_of
from gateway.config.files import Files
from gateway.config.loader import load
from gateway.errors import StoreUnavailable
from gateway.observe.logging import configure_logging
from gateway.observe.redaction import Redactor, secrets_of
from gateway.settings import Settings
from gateway.store.database import Database
from gateway.store.embedded import EmbeddedValkey
from gateway.store.valkey import ValkeyBundles

_log = structlog.stdlib.get_logger("gateway.workers")

# Seconds before one that ended is started again: none for one that had served a while, else more each time.
_STEADY_S: Final = 60.0
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
# Seconds that a worker may take to end after its requests' own.
_END_S: Final = 15.0


async def supervise(arguments: argparse.Namespace, settings: Settings) -> int:
    """Serve by `--workers` processes until told to stop; the exit code.

    Raises:
        ConfigError: the files are wrong.
        StoreUnavailable: the workers could not agree with each other.
    """
    config_path, routes_path = paths_of(arguments, settings)
    bundle = await asyncio.to_thread(load, config_path, routes_path, settings)
    config = bundle.config
    configure_logging(config.observe.log, Redactor(secrets_of(config)))
    if Database(config.storage.database).in_memory:
        raise StoreUnavailable(
            "With --workers the database must be a file: in memory, each worker would have one of its own; see"
            " `storage.database`.",
            retryable=False,
        )
    for warning in settings.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    host = arguments.host or config.server.host
    port = arguments.port if arguments.port is not None else config.server.port
    async with contextlib.AsyncExitStack() as stack:
        sock = bound(host, port)
        if sock is None:
            print(f"Cannot listen on {url_of(host, port)}.", file=sys.stderr)
            return 1
        stack.enter_context(sock)
        children = Children(sock, encoder_of(bundle))
        stack.push_async_callback(children.close)
        await children.open()
        embedded = EmbeddedValkey() if config.storage.redis is None else None
        if embedded is not None:
            stack.push_async_callback(embedded.close)
            await embedded.start()
        url = embedded.url if embedded is not None else str(config.storage.redis)
        leases = ValkeyBundles(url, config.storage.redis_prefix)
        stack.push_async_callback(leases.close)
        if embedded is not None:
            # Else its first reload would wait until leases have run out that nobody ever held.
            await leases.declare_new()
        place = _Place(str(config_path), str(routes_path), bundle.files, host)
        supervisor = Supervisor(arguments.workers, sock, leases, embedded, place, children)
        return await supervisor.run()


@dataclass(frozen=True, slots=True)
class _Place:
    """What all workers serve, as `Job` has it."""

    config: str
    routes: str
    files: Files
    host: str


@dataclass(eq=False)
class _Worker:
    """One process.

    Attributes:
        prepared: what it said when it was built; None before.
        proved: whether it may decide.
        told: whether it was told to accept connections.
        listening: whether it does.
    """

    number: int
    process: Process
    channel: Channel
    prepared: Prepared | None = None
    proved: bool = False
    told: bool = False
    listening: bool = False


class Supervisor:
    """Starts workers, replaces them and ends them."""

    def __init__(
        self,
        workers: int,
        sock: socket.socket,
        leases: ValkeyBundles,
        embedded: EmbeddedValkey | None,
        place: _Place,
        children: Children,
    ) -> None:
        """Nothing runs yet.

        Args:
            workers: how many.
            sock: what they accept connections from.
            leases: where those of workers that ended are given back.
            embedded: the server that is this process's to look after, if it is.
            place: what they serve.
            children: begins their processes.
        """
        self._children = children
        self._count = workers
        self._sock = sock
        self._leases = leases
        self._embedded = embedded
        self._place = place
        self._workers: dict[int, _Worker] = {}
        self._up = False
        self._failure: str | None = None
        self._stopping = asyncio.Event()
        self._exchange = Exchange()

    async def run(self) -> int:
        """Until a signal, or until the first start of a worker fails; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        lives = [asyncio.create_task(self._keep(number), name=f"worker-{number}") for number in self._numbers()]
        server = asyncio.create_task(self._keep_embedded(), name="embedded")
        try:
            await self._stopping.wait()
        finally:
            # New connections are refused once the last worker has closed its own copy.
            self._sock.close()
            await self._children.close()
            self._signal(signal.SIGTERM)
            drain_s = max((w.prepared.drain_s for w in self._workers.values() if w.prepared), default=0.0)
            _, late = await asyncio.wait(lives, timeout=drain_s + _END_S)
            if late:
                self._signal(signal.SIGKILL)
                await asyncio.wait(late, timeout=_END_S)
            server.cancel()
            await asyncio.wait([server])
            await self._exchange.close()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        for life in lives:
            life.result()
        if self._failure is not None:
            print(self._failure, file=sys.stderr)
            return 1
        return 0

    def _numbers(self) -> range:
        return range(1, self._count + 1)

    def _signalled(self, number: int) -> None:
        if self._stopping.is_set() and number == signal.SIGINT:
            self._signal(signal.SIGKILL)  # asked twice from a terminal
        self._stopping.set()

    def _signal(self, number: int) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(number)

    # --- One worker ----------------------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Have a worker of this number for as long as the gateway serves."""
        pause_s = 0.0
        while not self._stopping.is_set():
            begun = time.monotonic()
            code, failure = await self._live(number)
            if self._stopping.is_set():
                return
            if not self._up:
                self._failure = self._failure or failure or f"A worker ended with {code} before it served."
                self._stopping.set()
                return
            steady = time.monotonic() - begun >= _STEADY_S
            pause_s = 0.0 if steady else min(_LONGEST_PAUSE_S, max(_PAUSE_S, 2 * pause_s))
            _log.error("a worker ended; another one takes its place", worker=number, code=code, reason=failure)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _live(self, number: int) -> tuple[int, str | None]:
        """One process from its start to its end; its exit code, and why it could not start if it said so."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await self._children.begin(theirs)
            except OSError as error:
                ours.close()
                return 1, f"A worker cannot begin: {error}."
        worker = _Worker(number, process, await Channel.over(ours))
        self._workers[number] = worker
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        failure = None
        try:
            await worker.channel.send(self._job(number))
            while (message := await worker.channel.receive()) is not None:
                if isinstance(message, Failed):
                    failure = message.text
                await self._heard(worker, message)
            return await process.wait(), failure
        finally:
            del self._workers[number]
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            await worker.channel.close()
            if worker.prepared is not None:
                # It decides nothing any more: no reload has to wait until its lease has run out.
                with contextlib.suppress(StoreUnavailable):
                    await self._leases.release(worker.prepared.replica)
            await self._let_go()

    def _job(self, number: int) -> Job:
        place, embedded = self._place, self._embedded
        return Job(
            number=number,
            config=place.config,
            routes=place.routes,
            files=place.files,
            host=place.host,
            redis=embedded.url if embedded is not None else None,
            folder=str(embedded.folder) if embedded is not None else None,
        )

    async def _heard(self, worker: _Worker, message: Message) -> None:
        if isinstance(message, Prepared):
            worker.prepared = message
        elif isinstance(message, Proved):
            worker.proved = True
        elif isinstance(message, Listening):
            worker.listening = True
            self._tell(worker)
        elif isinstance(message, Ask):
            others = {one.number: one.channel for one in self._workers.values() if one is not worker and one.listening}
            self._exchange.carry(worker.channel, message, others)
        elif isinstance(message, Answer):
            self._exchange.answered(worker.number, message)
        await self._let_go()

    async def _let_go(self) -> None:
        """Tell workers to accept connections: at first once all are built, later each once it may decide."""
        workers = list(self._workers.values())
        if not self._up and (len(workers) < self._count or any(worker.prepared is None for worker in workers)):
            return
        others = any(worker.told for worker in workers)
        for worker in workers:
            # One that may not decide would refuse what the others answer; where there are none, a refusal is an answer.
            if worker.prepared is not None and not worker.told and (worker.proved or not self._up or not others):
                worker.told = True
                await worker.channel.send(Go())

    def _tell(self, worker: _Worker) -> None:
        if not self._up and all(one.listening for one in self._workers.values()):
            self._up = True
            address = self._sock.getsockname()
            needs_key = worker.prepared is None or worker.prepared.needs_key
            print(how_to_try(address[0], address[1], needs_key=needs_key), flush=True)
        elif self._up:
            _log.info("a worker serves", worker=worker.number)

    # --- The embedded server ---------------------------------------------------------------------------------------

    async def _keep_embedded(self) -> None:
        """Have an embedded server for as long as the gateway serves. Workers go on without it, and publish again."""
        if self._embedded is None:
            return
        while True:
            code = await self._embedded.ended()
            _log.error("the embedded Valkey server ended; another one takes its place", code=code)
            await asyncio.sleep(_PAUSE_S)
            try:
                await self._embedded.start()
            except StoreUnavailable as error:
                _log.error("the embedded Valkey server cannot be started", reason=error.message)
