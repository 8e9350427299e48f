"""The socket of `serve` and the server on it, whether one process accepts its connections or several.

Knows uvicorn's settings, its signals, and the line to try. Does not know who builds the gateway.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import Server as HttpServer

from gateway.api.connection import Connection
from gateway.api.services import Drain
from gateway.config.models import ServerConfig

# What tools have left running may take as long as this to end by itself.
LEAVE_S: Final = 5.0
_MOST_FILES: Final = 65_536

_TRY = """\
Hermes Gateway serves on {at}
Try:
  curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\
    {key}-d '{{"model": "auto", "messages": [{{"role": "user", "content": "what is 12.5% of 18,640?"}}]}}'
"""


def how_to_try(host: str, port: int, *, needs_key: bool) -> str:
    """Where the gateway serves, and a line to try from this machine; `KEY` in it where a key is asked for."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - looked up, not bound
    return _TRY.format(
        at=url_of(host, port), url=url_of(near, port), key="-H 'authorization: Bearer KEY' " if needs_key else ""
    )


def url_of(host: str, port: int) -> str:
    """The address as people write it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bound(host: str, port: int) -> socket.socket | None:
    """A socket at this address that does not listen yet; None where there is none to be had: the log says why."""
    try:
        sock = Config(_nothing, host=host, port=port, log_config=None).bind_socket()
    except SystemExit:
        # uvicorn's way to say that it could not bind; it has logged the system's words for it.
        return None
    # uvicorn leaves it open to every program that is started from here: one that lives on would keep the port.
    sock.set_inheritable(False)
    return sock


def allow_connections() -> None:
    """Let this process, and those it starts, have as many files and connections open as its user may, up to 65,536.

    Many systems allow 1,024 at first: 500 clients, each with a connection to an upstream.
    """
    # Windows has no such limit, and another way to ask for it.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def end_within(seconds: float, code: int) -> None:
    """End this process with an exit code, `seconds` from now at the latest.

    For when all that is the gateway's own is closed: a tool that ignores its cancellation, or blocks a thread for ever, would
    keep the process.
    """
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


class Server(HttpServer):
    """uvicorn's server on a socket that is bound already.

    Attributes:
        came_up: whether it ever listened.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, drain: Drain, listening: Callable[[], None]) -> None:
        """Nothing is accepted yet.

        Args:
            app: what answers.
            config: how long requests under way have at the end.
            drain: told when the end has begun.
            listening: called once connections are accepted.
        """
        super().__init__(
            _Config(
                app,
                loop="none",
                http=Connection,
                interface="asgi3",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(config.drain_s),
                timeout_keep_alive=75,
            )
        )
        self.came_up = False
        self._drain = drain
        self._listening = listening

    async def serve_on(self, sock: socket.socket) -> None:
        """Serve until a signal says to stop, then let the requests under way end."""
        # What start-up made stays; the collector need not look at it again. A turn leaves nothing in cycles, a connection a
        # dozen objects, so looking at the young ones rarely is enough, and ten thousand of them are a megabyte or two.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        # The loop would note every asynchronous generator, two for each stream, to close at its end those that are open still.
        # Here whoever reads from one closes it.
        sys.set_asyncgen_hooks(firstiter=None)
        await self.serve(sockets=[sock])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Heed a signal: from here on, `/readyz` says no."""
        self._drain.begun = True
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was heeded is not raised again: it would end the process at once, with traces
        unwritten and the exit code of a failure.
        """
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Accept connections, and say so."""
        await super().startup(sockets=sockets)  # type: ignore[arg-type]
        if self.servers:
            self.came_up = True
            self._listening()


class _Config(Config):
    """uvicorn's settings, with what they name taken from here: it would import all of uvicorn to find that nothing is wanted."""

    def load(self) -> None:
        """As uvicorn's."""
        self.http_protocol_class = Connection
        self.ws_protocol_class = None
        self.lifespan_class = _NoLifespan
        self.ssl = None
        self.encoded_headers = []
        self.loaded_app = self.app  # an ASGI application it is, not a factory
        self.loaded = True


class _NoLifespan:
    """What uvicorn asks of an app's beginning and end, which are `app.py`'s."""

    def __init__(self, _config: Config) -> None:
        self.should_exit = False
        self.state: dict[str, Any] = {}

    async def startup(self) -> None:
        """Nothing."""

    async def shutdown(self) -> None:
        """Nothing."""


async def _nothing(_scope: object, _receive: object, _send: object) -> None:
    """Stands where uvicorn asks for an app before there is one."""
