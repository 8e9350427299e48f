"""`hermes-gateway serve`: the gateway on a socket."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Iterator
from types import FrameType

import uvicorn
import uvloop

from gateway.api.connection import Connection
from gateway.api.services import Drain
from gateway.app import open_gateway
from gateway.commands.files import paths_of, settings_of, tell
from gateway.errors import ConfigError, StoreUnavailable
from gateway.settings import Settings

_TRY = """\
Hermes Gateway serves on {at}
Try:
  curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\
    {key}-d '{{"model": "auto", "messages": [{{"role": "user", "content": "what is 12.5% of 18,640?"}}]}}'
"""


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    if arguments.workers != 1:
        print("--workers: this version serves with one worker process", file=sys.stderr)
        return 2
    try:
        settings = settings_of()
        return uvloop.run(_serve(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except StoreUnavailable as error:
        print(error.message, file=sys.stderr)
        return 1


async def _serve(arguments: argparse.Namespace, settings: Settings) -> int:
    config_path, routes_path = paths_of(arguments, settings)
    async with open_gateway(config_path, routes_path, settings, host=arguments.host) as gateway:
        server_config = gateway.versions.current.config.server
        host = arguments.host or server_config.host
        port = arguments.port if arguments.port is not None else server_config.port
        for warning in settings.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        listen = uvicorn.Config(
            gateway.app,
            host=host,
            port=port,
            loop="none",
            http=Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(server_config.drain_s),
            timeout_keep_alive=75,
        )
        try:
            # At once, before the encoder's thread has begun to load: an exit would have to wait for it.
            bound = listen.bind_socket()
        except SystemExit:
            # uvicorn's way to say that it could not bind; it has logged the system's words for it.
            print(f"Cannot listen on {_url(host, port)}.", file=sys.stderr)
            return 1
        server = _Server(listen, gateway.drain, needs_key=not gateway.versions.current.keys.open)
        # What start-up made stays; the collector need not look at it again. A turn leaves some three objects in cycles
        # (the server's), so looking at the young ones rarely is enough, and ten thousand of them are a megabyte or two.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        await server.serve(sockets=[bound])
    return 0 if server.came_up else 1


def how_to_try(host: str, port: int, *, needs_key: bool) -> str:
    """Where the gateway serves, and a line to try from this machine; `KEY` in it where a key is asked for."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - looked up, not bound
    return _TRY.format(
        at=_url(host, port), url=_url(near, port), key="-H 'authorization: Bearer KEY' " if needs_key else ""
    )


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server, which says how to try it once it listens."""

    def __init__(self, config: uvicorn.Config, drain: Drain, *, needs_key: bool) -> None:
        super().__init__(config)
        self.came_up = False
        self._drain = drain
        self._needs_key = needs_key

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
        await super().startup(sockets=sockets)  # type: ignore[arg-type]
        if self.servers:
            self.came_up = True
            address = self.servers[0].sockets[0].getsockname()
            print(how_to_try(address[0], address[1], needs_key=self._needs_key), flush=True)
