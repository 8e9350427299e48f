"""`hermes-gateway runs`: background runs and what became of them; cancel one, begin a failed one again, ask for one."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from gateway.clock import SystemClock
from gateway.commands.client import Refused, Unreachable, get_json, over_http, send_json
from gateway.commands.files import paths_of, settings_of, tell
from gateway.config.loader import load
from gateway.config.models import GatewayConfig
from gateway.errors import ConfigError, GatewayError, NotFound
from gateway.runs.acceptance import Acceptance
from gateway.runs.followers import Followers
from gateway.runs.memory_queue import MemoryQueue
from gateway.runs.queue import Queue
from gateway.runs.stages import Stages
from gateway.runs.view import summary, view
from gateway.settings import Settings
from gateway.store.sql import SqlStore

_MOST = 100


def run(arguments: argparse.Namespace) -> int:
    """List, show, cancel, retry or submit; 1 where there is no such run, or it is not to be touched or taken on."""
    if (arguments.action == "list") == (arguments.id is not None):
        print("`list` takes no ID; `show`, `cancel` and `retry` take one, `submit` a type of runs.", file=sys.stderr)
        return 2
    if not 1 <= arguments.limit <= _MOST:
        print(f"--limit: expected 1 to {_MOST}, not {arguments.limit}", file=sys.stderr)
        return 2
    try:
        msgspec.json.decode(arguments.input)
    except msgspec.DecodeError as error:
        print(f"--input is no JSON: {error}", file=sys.stderr)
        return 2
    try:
        settings = settings_of()
        # Which types there are, and what they take, knows who has the plugins.
        ask = _over_http if over_http(settings) or arguments.action == "submit" else _in_database
        answer = asyncio.run(ask(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except (Unreachable, Refused, GatewayError) as error:
        print(error, file=sys.stderr)
        return 3 if isinstance(error, Unreachable) else 1
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
    elif arguments.action == "list":
        for row in answer["data"]:
            print(_line(row))
    else:
        print(_line(answer))
        if arguments.action != "show":
            return 0
        if answer["stages"]:
            print(f"stages: {', '.join(answer['stages'])}")
        if answer["response"] is not None:
            print(msgspec.json.format(msgspec.json.encode(answer["response"])).decode())
    return 0


async def _over_http(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    if arguments.action == "list":
        asked = {"limit": arguments.limit, "status": arguments.status, "after": arguments.after}
        asked["dead"] = "true" if arguments.dead else None
        wanted = {name: value for name, value in asked.items() if value is not None}
        found = await get_json(settings, f"/v1/runs?{urlencode(wanted)}")
        return found or {"data": []}
    if arguments.action == "show":
        found = await get_json(settings, f"/v1/runs/{arguments.id}")
        if found is None:
            raise Refused(f"There is no run {arguments.id!r}.")
        return found
    if arguments.action == "submit":
        asked = {"type": arguments.id, "input": msgspec.json.decode(arguments.input)}
        return await _posted(settings, "/v1/runs", asked)
    asked = {"from": arguments.stage} if arguments.action == "retry" else {}
    return await _posted(settings, f"/v1/runs/{arguments.id}/{arguments.action}", asked)


async def _posted(settings: Settings, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    return await send_json(settings, "POST", path, asked, taken=range(400))


async def _in_database(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    config_path, routes_path = paths_of(arguments, settings)
    config = (await asyncio.to_thread(load, config_path, routes_path, settings, offline=True)).config
    store = SqlStore(config.storage.database)
    queue = _queue(config)
    try:
        await store.open()
        stages = Stages(store.journal, store.effects)
        # Whether there is anything to undo, whoever executes it finds out.
        followers = Followers(lambda: config.webhooks, lambda: True)
        runs = Acceptance(store.runs, queue, SystemClock(), lambda: config.runs, stages, followers)
        if arguments.action == "list":
            rows = await runs.newest(
                None,
                status=arguments.status,
                dead=True if arguments.dead else None,
                limit=arguments.limit,
                after=arguments.after,
            )
            return {"object": "list", "data": [summary(row) for row in rows]}
        if arguments.action == "cancel":
            return view(await runs.cancel(arguments.id, None))
        if arguments.action == "retry":
            # Without a shared queue, the gateway that executes runs finds it in the database.
            return view(await runs.retry(arguments.id, None, arguments.stage))
        row = await runs.get(arguments.id, None)
        if row is None:
            raise NotFound(f"There is no run {arguments.id!r}.")
        return {**view(row), "stages": await runs.stages(row)}
    finally:
        await queue.close()
        await store.close()


def _queue(config: GatewayConfig) -> Queue:
    if config.storage.redis is None:
        return MemoryQueue(SystemClock())
    from gateway.runs.valkey_queue import ValkeyQueue

    return ValkeyQueue(config.storage.redis, config.storage.redis_prefix, SystemClock())


def _line(row: Mapping[str, Any]) -> str:
    status = f"{row['status']} (dead)" if row["dead"] else row["status"]
    words = [row["id"], status, row["type"], row["priority"], row["created_at"], f"deliveries={row['deliveries']}"]
    if row["error"] is not None:
        words.append(row["error"]["message"])
    return "  ".join(words)
