"""`hermes-gateway serve`: the gateway on a socket, in this process or in several that share it."""

from __future__ import annotations

import argparse
import asyncio
import sys

import uvloop

from gateway.app import open_gateway
from gateway.commands.files import paths_of, settings_of, tell
from gateway.commands.listening import LEAVE_S, Server, allow_connections, bound, end_within, how_to_try, url_of
from gateway.errors import ConfigError, StoreUnavailable
from gateway.settings import Settings


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    try:
        settings = settings_of()
        allow_connections()
        if arguments.workers > 1:
            # What it imports is nothing that one process needs.
            from gateway.commands.supervisor import supervise

            return uvloop.run(supervise(arguments, settings))
        return uvloop.run(_serve(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except StoreUnavailable as error:
        print(error.message, file=sys.stderr)
        return 1


async def _serve(arguments: argparse.Namespace, settings: Settings) -> int:
    config_path, routes_path = paths_of(arguments, settings)
    accepts = asyncio.Event()
    async with open_gateway(config_path, routes_path, settings, host=arguments.host, listening=accepts) as gateway:
        config = gateway.versions.current.config.server
        host = arguments.host or config.host
        port = arguments.port if arguments.port is not None else config.port
        for warning in settings.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        sock = bound(host, port)
        if sock is None:
            print(f"Cannot listen on {url_of(host, port)}.", file=sys.stderr)
            return 1

        needs_key = not await gateway.versions.current.keys.is_open()

        def listening() -> None:
            accepts.set()
            address = sock.getsockname()
            print(how_to_try(address[0], address[1], needs_key=needs_key), flush=True)

        server = Server(gateway.app, config, gateway.drain, listening)
        await server.serve_on(sock)
    code = 0 if server.came_up else 1
    end_within(LEAVE_S, code)
    return code
