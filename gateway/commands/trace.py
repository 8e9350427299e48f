"""`hermes-gateway trace ID`: a turn as a readable replay, from a running gateway or from its database."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from gateway.commands.client import Unreachable, get_json, over_http
from gateway.commands.files import paths_of, settings_of, tell
from gateway.config.loader import load
from gateway.errors import ConfigError, StoreUnavailable
from gateway.observe.replay import replay
from gateway.settings import Settings
from gateway.store.sql import SqlStore
from gateway.store.trace_records import TraceRow, TraceSummary


def run(arguments: argparse.Namespace) -> int:
    """Show one turn; 1 where there is no such turn."""
    try:
        settings = settings_of()
        row = asyncio.run(_find(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except (StoreUnavailable, Unreachable) as error:
        print(error, file=sys.stderr)
        return 3
    if row is None:
        print(f"There is no trace {arguments.id!r}.", file=sys.stderr)
        return 1
    if arguments.json:
        print(msgspec.json.encode(row.shown()).decode())
    else:
        print(replay(row))
    return 0


async def _find(arguments: argparse.Namespace, settings: Settings) -> TraceRow | None:
    if over_http(settings):
        found = await get_json(settings, f"/v1/traces/{arguments.id}")
        if found is None:
            return None
        found["trace_id"] = found.pop("id")
        events = msgspec.json.encode(found.pop("events"))
        found.pop("object", None)
        return TraceRow(TraceSummary(**found), events)
    config_path, routes_path = paths_of(arguments, settings)
    store = SqlStore(load(config_path, routes_path, settings).config.storage.database)
    try:
        await store.open()
        return await store.traces.get(arguments.id, None)
    finally:
        await store.close()
