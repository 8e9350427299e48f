"""`hermes-gateway audit`: who has done what; `audit verify` looks whether anything of it was changed or is missing."""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec

from gateway.commands.client import Unreachable, get_json, over_http
from gateway.commands.files import paths_of, settings_of, tell
from gateway.config.loader import load
from gateway.errors import ConfigError, StoreUnavailable
from gateway.settings import Settings
from gateway.store.audit_records import Verified, view_of
from gateway.store.sql import SqlStore

_MOST = 100


def run(arguments: argparse.Namespace) -> int:
    """List, or verify; 1 where an entry was changed or is missing."""
    if arguments.action == "list" and not 1 <= arguments.limit <= _MOST:
        print(f"--limit is {arguments.limit}; expected 1 to {_MOST}.", file=sys.stderr)
        return 2
    try:
        settings = settings_of()
        if arguments.action == "verify":
            return _tell(asyncio.run(_verified(arguments, settings)), as_json=arguments.json)
        shown = asyncio.run(_listed(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except (StoreUnavailable, Unreachable) as error:
        print(error, file=sys.stderr)
        return 3
    print(msgspec.json.encode(shown).decode() if arguments.json else "\n".join(map(_line, shown)) or "There are none.")
    return 0


async def _listed(arguments: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    if over_http(settings):
        wanted = {"limit": arguments.limit, "after": arguments.after}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return list((await get_json(settings, f"/v1/audit?{query}") or {}).get("data", []))
    store = await _store(arguments, settings)
    try:
        rows = await store.audit.newest(None, limit=arguments.limit, after=arguments.after)
    finally:
        await store.close()
    return [view_of(row) for row in rows]


async def _verified(arguments: argparse.Namespace, settings: Settings) -> Verified:
    # On the database always: a gateway that was tampered with would say what it likes.
    store = await _store(arguments, settings)
    try:
        return await store.audit.verify()
    finally:
        await store.close()


async def _store(arguments: argparse.Namespace, settings: Settings) -> SqlStore:
    config_path, routes_path = paths_of(arguments, settings)
    config = (await asyncio.to_thread(load, config_path, routes_path, settings, offline=True)).config
    store = SqlStore(config.storage.database)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def _tell(found: Verified, *, as_json: bool) -> int:
    if as_json:
        print(msgspec.json.encode(found).decode())
    elif found.faults:
        print("\n".join(f"entry {fault.seq}: {fault.message}" for fault in found.faults))
    else:
        print(f"{found.entries} entries, none changed, none missing; the last one's hash is {found.head}")
    return 1 if found.faults else 0


def _line(entry: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(entry["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    arguments = "" if entry["arguments"] is None else f" {msgspec.json.encode(entry['arguments']).decode()}"
    tool = f"  {entry['tool']}{arguments}" if entry["tool"] else ""
    outcome = f"  ({entry['outcome']})" if entry["outcome"] else ""
    return f"{entry['id']:>6}  {at}  {entry['actor']}  {entry['action']}  {entry['subject']}  {entry['owner']}{tool}{outcome}"
