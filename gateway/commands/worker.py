"""`hermes-gateway worker`: executes background runs, beside any number of others, on any machine."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import Any

import structlog
import uvloop

from gateway.app import open_gateway
from gateway.commands.files import paths_of, settings_of, tell
from gateway.errors import ConfigError, StoreUnavailable
from gateway.settings import Settings

_log: Any = structlog.get_logger("gateway.runs")


def run(arguments: argparse.Namespace) -> int:
    """Execute runs until told to stop."""
    try:
        return uvloop.run(_work(arguments, settings_of()))
    except ConfigError as error:
        return tell(error)
    except StoreUnavailable as error:
        print(error.message, file=sys.stderr)
        return 1


async def _work(arguments: argparse.Namespace, settings: Settings) -> int:
    config_path, routes_path = paths_of(arguments, settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_gateway(config_path, routes_path, settings, executes=True) as gateway:
        storage = gateway.versions.current.config.storage
        if storage.redis is None:
            print(
                "A worker needs the queue that servers put runs in: set REDIS_URL or `storage.redis`. "
                "Without one, `hermes-gateway serve` executes runs itself.",
                file=sys.stderr,
            )
            return 1
        _log.info("this worker takes runs", at_once=gateway.versions.current.config.runs.concurrency)
        print("Hermes Gateway executes runs", flush=True)
        await stop.wait()
        gateway.drain.begun = True
        # A second less than whoever stops processes is told to wait.
        await gateway.engine.drain(max(1.0, gateway.versions.current.config.server.drain_s - 1.0))
        _log.info("this worker has ended")
    return 0
