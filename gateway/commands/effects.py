"""`hermes-gateway effects`: what writing tools did; settle what is unknown, run again what did not happen."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec

from gateway.approvals.masking import masked_arguments
from gateway.clock import SystemClock
from gateway.commands.client import Refused, Unreachable, get_json, over_http, send_json
from gateway.commands.files import paths_of, quiet_log, settings_of, tell
from gateway.commands.private import private_view
from gateway.config.loader import load
from gateway.errors import ConfigError, EffectSettled, NotFound, StoreUnavailable
from gateway.settings import Settings
from gateway.store.audit_records import AuditEntry
from gateway.store.sql import SqlStore
from gateway.tools.settling import EffectView, Settling, views

# A tool may take its time.
_RETRY_TIMEOUT_S = 660.0
_TIMEOUT_S = 30.0
_MOST = 100


def run(arguments: argparse.Namespace) -> int:
    """List, settle or retry; 1 where there is no such effect, or it is not to be touched."""
    wrong = _wrong_usage(arguments)
    if wrong is not None:
        print(wrong, file=sys.stderr)
        return 2
    try:
        settings = settings_of()
        # A retry runs the tool, which only the gateway can.
        ask = _over_http if over_http(settings) or arguments.action == "retry" else _in_database
        shown = asyncio.run(ask(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except (NotFound, EffectSettled, Refused) as error:
        print(error, file=sys.stderr)
        return 1
    except (StoreUnavailable, Unreachable) as error:
        print(error, file=sys.stderr)
        return 3
    if arguments.json:
        print(msgspec.json.encode(shown if arguments.action == "list" else shown[0]).decode())
    else:
        print("\n".join(map(_line, shown)) or "There are none.")
    return 0


def _wrong_usage(arguments: argparse.Namespace) -> str | None:
    if arguments.action == "list":
        return None if 1 <= arguments.limit <= _MOST else f"--limit is {arguments.limit}; expected 1 to {_MOST}."
    if arguments.id is None:
        return f"`effects {arguments.action}` needs the id of an effect."
    if arguments.action == "settle" and (arguments.outcome is None or not (arguments.reason or "").strip()):
        return "`effects settle ID` needs --done or --failed, and a --reason."
    if arguments.content is not None:
        try:
            msgspec.json.decode(arguments.content)
        except msgspec.DecodeError as error:
            return f"--content is no JSON: {error}"
    return None


def _content(arguments: argparse.Namespace) -> Any:
    return msgspec.UNSET if arguments.content is None else msgspec.json.decode(arguments.content)


async def _over_http(arguments: argparse.Namespace, settings: Settings) -> list[EffectView]:
    if arguments.action == "list":
        wanted = {"limit": arguments.limit, "status": arguments.status, "after": arguments.after}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        found = await get_json(settings, f"/v1/effects?{query}")
        return msgspec.convert((found or {}).get("data", []), list[EffectView])
    body: dict[str, Any] = {}
    if arguments.action == "settle":
        body = {"status": arguments.outcome, "reason": arguments.reason}
        if arguments.content is not None:
            body["content"] = _content(arguments)
    timeout_s = _RETRY_TIMEOUT_S if arguments.action == "retry" else _TIMEOUT_S
    answer = await send_json(settings, "POST", f"/v1/effects/{arguments.id}/{arguments.action}", body, timeout_s)
    return [msgspec.convert(answer, EffectView)]


async def _in_database(arguments: argparse.Namespace, settings: Settings) -> list[EffectView]:
    quiet_log("nothing")
    async with _settling(arguments, settings) as (settling, store):
        if arguments.action == "list":
            rows = await settling.newest(status=arguments.status, limit=arguments.limit, after=arguments.after)
            return views(rows, await store.compensations.of_effects([row.id for row in rows]))
        by = f"{getpass.getuser()} at the terminal"
        secrets_of = (await private_view(*paths_of(arguments, settings), settings)).secrets_of
        row = await settling.settle(arguments.id, arguments.outcome, arguments.reason, by, _content(arguments))
        await store.compensations.settle(
            row.id, status=arguments.outcome, error=None if row.status == "done" else row.note, now=SystemClock().now()
        )
        await store.audit.append(
            AuditEntry(
                at=SystemClock().now(),
                actor=by,
                owner=row.owner,
                action="effect.settled",
                subject=row.id,
                tool=row.tool,
                arguments=masked_arguments(row.arguments, secrets_of(row.tool)),
                arguments_hash=row.arguments_hash,
                outcome=row.status,
            )
        )
        return views([row], await store.compensations.of_effects([row.id]))


@asynccontextmanager
async def _settling(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[tuple[Settling, SqlStore]]:
    config_path, routes_path = paths_of(arguments, settings)
    store = SqlStore(load(config_path, routes_path, settings).config.storage.database)
    try:
        await store.open()
        yield Settling(store.effects, SystemClock()), store
    finally:
        await store.close()


def _line(effect: EffectView) -> str:
    at = datetime.fromtimestamp(effect.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    arguments = msgspec.json.encode(effect.arguments).decode()
    note = f"  ({effect.note})" if effect.note else ""
    if effect.compensation is not None:
        note += f"  (undone: {effect.compensation.status})"
    return f"{effect.id}  {at}  {effect.status:<7}  {effect.owner}  {effect.tool} {arguments}{note}"
