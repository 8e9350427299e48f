"""`hermes-gateway approvals`: what waits for a human; approve or reject it."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from gateway.approvals.desk import Desk
from gateway.approvals.view import view
from gateway.clock import SystemClock
from gateway.commands.client import Refused, Unreachable, get_json, over_http, send_json
from gateway.commands.files import paths_of, quiet_log, settings_of, tell
from gateway.commands.private import PrivateView, private_view
from gateway.config.loader import load
from gateway.errors import ApprovalDecided, ConfigError, InvalidRequest, NotFound, StoreUnavailable
from gateway.settings import Settings
from gateway.store.approval_records import ApprovalRow
from gateway.store.sql import SqlStore

_MOST = 100


def run(arguments: argparse.Namespace) -> int:
    """List, show, approve or reject; 1 where there is no such approval, or it is not to be decided."""
    wrong = _wrong_usage(arguments)
    if wrong is not None:
        print(wrong, file=sys.stderr)
        return 2
    try:
        settings = settings_of()
        ask = _over_http if over_http(settings) else _in_database
        shown = asyncio.run(ask(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except (NotFound, ApprovalDecided, InvalidRequest, Refused) as error:
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
        return f"`approvals {arguments.action}` needs the id of an approval."
    if arguments.action == "reject" and not (arguments.reason or "").strip():
        return "`approvals reject ID` needs a --reason: the model is told, and answers."
    return None


async def _over_http(arguments: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    if arguments.action == "list":
        wanted = {"limit": arguments.limit, "status": arguments.status, "after": arguments.after}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return list((await get_json(settings, f"/v1/approvals?{query}") or {}).get("data", []))
    path = f"/v1/approvals/{quote(arguments.id, safe='')}"
    if arguments.action == "show":
        found = await get_json(settings, path)
        if found is None:
            raise Refused(f"There is no approval {arguments.id!r}.")
        return [found]
    said = {"reason": arguments.reason}
    if arguments.action == "approve":
        said |= {"code": arguments.code}
    return [await send_json(settings, "POST", f"{path}/{arguments.action}", said)]


async def _in_database(arguments: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    config_path, routes_path = paths_of(arguments, settings)
    quiet_log("nothing")
    private = await private_view(config_path, routes_path, settings)
    async with _desk(config_path, routes_path, settings, private) as desk:
        if arguments.action == "list":
            rows = await desk.newest(None, status=arguments.status, limit=arguments.limit, after=arguments.after)
            return [_shown(row, desk, private) for row in rows]
        row = await desk.get(arguments.id, None)
        by = f"{getpass.getuser()} at the terminal"
        if arguments.action == "approve":
            row = await desk.decide(row, "approved", by=by, reason=arguments.reason, code=arguments.code)
        elif arguments.action == "reject":
            row = await desk.decide(row, "rejected", by=by, reason=arguments.reason)
        return [_shown(row, desk, private)]


def _shown(row: ApprovalRow, desk: Desk, private: PrivateView) -> dict[str, Any]:
    # Whoever has the database has the code.
    return private.approval(row, view(row, desk.status_of(row), row.code))


@asynccontextmanager
async def _desk(config_path: Path, routes_path: Path, settings: Settings, private: PrivateView) -> AsyncIterator[Desk]:
    config = load(config_path, routes_path, settings).config
    store = SqlStore(config.storage.database)
    try:
        await store.open()
        yield Desk(
            store.approvals, SystemClock(), lambda: config.approvals, lambda: config.webhooks, private.secrets_of
        )
    finally:
        await store.close()


def _line(approval: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(approval["created_at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    arguments = msgspec.json.encode(approval["arguments"]).decode()
    code = f"  code {approval['code']}" if approval.get("code") and approval["status"] == "pending" else ""
    outcome = approval.get("outcome")
    came = "" if outcome is None else "  done" if outcome["ok"] else "  failed"
    note = f"  ({approval['reason']})" if approval.get("reason") else ""
    return (
        f"{approval['id']}  {at}  {approval['status']:<9}  {approval['owner']}  {approval['tool']} {arguments}"
        f"{code}{came}{note}"
    )
