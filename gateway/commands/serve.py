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

from gateway.api.services import Drain
from gateway.app import open_gateway
from gateway.commands.files import paths_of, settings_of, tell
from gateway.errors import ConfigError, StoreUnavailable
from gateway.settings import Settings

_TRY = """\
Hermes Gateway serves on {url}
Try:
  curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "auto", "messages": [{{"role": "user", "content": "what is 12.5% of 18,640?"}}]}}'
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
        server = _Server(
            uvicorn.Config(
                gateway.app,
                host=host,
                port=port,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(server_config.drain_s),
                timeout_keep_alive=75,
            ),
            gateway.drain,
        )
        # What start-up made stays; the collector need not look at it again. A turn makes some hundred objects and no
        # cycles to speak of, so looking at the young ones rarely is enough.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        try:
            await server.serve()
        except SystemExit:
            # uvicorn's way to say that it could not bind, with a code of its own; it has logged why.
            return 1
    return 0 if server.came_up else 1


class _Server(uvicorn.Server):
    """uvicorn's server, which says how to try it once it listens."""

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self.came_up = False
        self._drain = drain

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
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            print(_TRY.format(url=f"http://{host}:{address[1]}"), flush=True)
