"""`hermes-gateway usage`: what was used, by whom and for how much."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any
from urllib.parse import urlencode

from msgspec import json

from gateway.commands.client import Unreachable, get_json, over_http
from gateway.commands.files import paths_of, settings_of, tell
from gateway.config.loader import load
from gateway.errors import ConfigError, InvalidRequest, StoreUnavailable
from gateway.observe.usage_report import Asked, as_csv, asked_for, reported
from gateway.settings import Settings
from gateway.store.sql import SqlStore


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    said = {"by": arguments.by, "from": arguments.since, "to": arguments.until}
    said = {name: value for name, value in said.items() if value is not None}
    try:
        settings = settings_of()
        asked = asked_for(said)
        work = _over_http(said, settings) if over_http(settings) else _in_database(arguments, asked, settings)
        rows = asyncio.run(work)
    except ConfigError as error:
        return tell(error)
    except InvalidRequest as error:
        print(error, file=sys.stderr)
        return 2
    except (StoreUnavailable, Unreachable) as error:
        print(error, file=sys.stderr)
        return 3
    if arguments.csv:
        print(as_csv(rows, asked.by), end="")
    elif arguments.json:
        print(json.encode(rows).decode())
    else:
        print(_table(rows, asked))
    return 0


async def _over_http(said: dict[str, str], settings: Settings) -> list[dict[str, Any]]:
    found = await get_json(settings, f"/v1/usage?{urlencode(said)}")
    rows: list[dict[str, Any]] = (found or {}).get("data", [])
    return rows


async def _in_database(arguments: argparse.Namespace, asked: Asked, settings: Settings) -> list[dict[str, Any]]:
    config = load(*paths_of(arguments, settings), settings).config
    store = SqlStore(config.storage.database)
    try:
        await store.open()
        sums = await store.usage.sums(asked.by, since=asked.since, until=asked.until)
    finally:
        await store.close()
    return [reported(row, asked.by, config.budgets.currency) for row in sums]


def _table(rows: list[dict[str, Any]], asked: Asked) -> str:
    if not rows:
        return "Nothing was used."
    head = [*asked.by, "turns", "failed", "prompt", "cached", "completion", "cost"]
    lines = [head, *([str(cell) for cell in _cells(row, asked)] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(row: dict[str, Any], asked: Asked) -> list[Any]:
    cost = "unknown" if row["cost"] is None else f"{row['cost']:.6f} {row['currency']}"
    if row["cost"] is not None and row["unpriced"]:
        cost += f" and {row['unpriced']} turns of unknown price"
    counts = [row[name] for name in ("turns", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")]
    return [*(row[name] or "-" for name in asked.by), *counts, cost]
