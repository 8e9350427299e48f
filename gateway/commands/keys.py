"""`hermes-gateway keys`: make, show, change, exchange and end keys."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.clock import SystemClock
from gateway.commands.client import Refused, Unreachable, get_json, over_http, send_json
from gateway.commands.files import settings_of, tell
from gateway.config.defaults import DEFAULT_CONFIG
from gateway.config.loader import load
from gateway.errors import ConfigError, GatewayError, StoreUnavailable
from gateway.security.key_desk import KeyDesk, KeyView, KeyWish
from gateway.settings import Settings
from gateway.store.sql import SqlStore

_PAGE: Final = 100
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NEED_ID: Final = ("change", "rotate", "revoke", "import")


def run(arguments: argparse.Namespace) -> int:
    """Do it; 1 where it was refused."""
    try:
        settings = settings_of()
        wishes = _wishes(arguments)
        ask = _over_http if over_http(settings) else _in_database
        shown = asyncio.run(ask(arguments, settings, wishes))
    except ConfigError as error:
        return tell(error)
    except _Usage as error:
        print(error, file=sys.stderr)
        return 2
    except (StoreUnavailable, Unreachable) as error:
        print(error, file=sys.stderr)
        return 3
    except (GatewayError, Refused) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        many = arguments.action in ("list", "import")
        print(msgspec.json.encode(shown if many else shown[0]).decode())
        return 0
    print("\n".join(map(_line, shown)) or "There are none.")
    for view in shown:
        if isinstance(view.key, str):
            print(f"\n{view.key}\n\nThis is the key of `{view.name}`. It is shown this once.")
    return 0


class _Usage(Exception):
    """The words of the command do not fit together."""


def _wishes(arguments: argparse.Namespace) -> list[KeyWish]:
    """What is asked for: nothing, one key, or those of a file."""
    if arguments.action in _NEED_ID and arguments.id is None:
        what = "a file of JSON lines" if arguments.action == "import" else "the id of a key"
        raise _Usage(f"`keys {arguments.action}` needs {what}.")
    if arguments.action == "import":
        return _imported(Path(arguments.id))
    return [_wish(arguments)] if arguments.action in ("create", "change") else []


def _wish(arguments: argparse.Namespace) -> KeyWish:
    values: dict[str, Any] = {}
    for name in ("name", "team", "sha256", "blocked"):
        if getattr(arguments, name) is not None:
            values[name] = getattr(arguments, name)
    for name in ("roles", "tags", "models", "routes", "tools"):
        if (said := getattr(arguments, name)) is not None:
            values[name] = [part.strip() for part in said.split(",") if part.strip()]
    if arguments.expires is not None:
        values["expires_at"] = _end(arguments.expires)
    for field, said in (("limits", arguments.limit), ("budgets", arguments.budget)):
        if said:
            values[field] = dict(map(_pair, said))
    if arguments.action == "create" and "name" not in values:
        raise _Usage("`keys create` needs --name.")
    if arguments.action == "change" and not values:
        raise _Usage("`keys change ID` needs something to change.")
    return KeyWish(**values)


def _imported(path: Path) -> list[KeyWish]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _Usage(f"{path} cannot be read: {error}") from error
    wishes = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            wish = msgspec.json.decode(line, type=KeyWish)
        except msgspec.DecodeError as error:
            raise _Usage(f"{path}:{number}: {error}") from error
        if wish.sha256 is msgspec.UNSET or wish.name is msgspec.UNSET:
            raise _Usage(f"{path}:{number}: `name` and `sha256` are needed")
        wishes.append(wish)
    return wishes


def _pair(said: str) -> tuple[str, float]:
    name, _, value = said.partition("=")
    try:
        number = float(value)
    except ValueError as error:
        raise _Usage(f"{said!r} is not NAME=NUMBER.") from error
    return name.strip(), int(number) if number.is_integer() else number


def duration_s(said: str) -> float | None:
    """The seconds of `24h`, `30d` or `90`; None where it is no such time."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", said.strip())
    return float(found[1]) * _SECONDS[found[2] or "s"] if found else None


def _end(said: str) -> float | str:
    seconds = duration_s(said)
    return said if seconds is None else time.time() + seconds


def _overlap_s(arguments: argparse.Namespace) -> float:
    seconds = duration_s(arguments.overlap)
    if seconds is None:
        raise _Usage(f"--overlap is {arguments.overlap!r}; expected a time such as 24h.")
    return seconds


async def _over_http(arguments: argparse.Namespace, settings: Settings, wishes: list[KeyWish]) -> list[KeyView]:
    if arguments.action == "list":
        return await _listed(settings)
    if arguments.action in ("create", "import"):
        return [await _sent(settings, "POST", "/v1/keys", msgspec.to_builtins(wish)) for wish in wishes]
    path = f"/v1/keys/{arguments.id}"
    if arguments.action == "change":
        return [await _sent(settings, "PATCH", path, msgspec.to_builtins(wishes[0]))]
    if arguments.action == "rotate":
        return [await _sent(settings, "POST", f"{path}/rotate", {"overlap_s": _overlap_s(arguments)})]
    return [await _sent(settings, "DELETE", path, None)]


async def _listed(settings: Settings) -> list[KeyView]:
    found: list[KeyView] = []
    more = True
    while more:
        after = f"&after={found[-1].id}" if found else ""
        page = await get_json(settings, f"/v1/keys?limit={_PAGE}{after}") or {}
        found += msgspec.convert(page.get("data", []), list[KeyView])
        more = bool(page.get("has_more")) and bool(page.get("data"))
    return found


async def _sent(settings: Settings, method: str, path: str, body: Any) -> KeyView:
    return msgspec.convert(await send_json(settings, method, path, body), KeyView)


async def _in_database(arguments: argparse.Namespace, settings: Settings, wishes: list[KeyWish]) -> list[KeyView]:
    async with _desk(arguments, settings) as desk:
        if arguments.action == "list":
            return list(await desk.every())
        if arguments.action in ("create", "import"):
            by = f"{getpass.getuser()} at the terminal"
            return [await desk.create(wish, by) for wish in wishes]
        if arguments.action == "change":
            return [await desk.change(arguments.id, wishes[0])]
        if arguments.action == "rotate":
            return [await desk.rotate(arguments.id, _overlap_s(arguments))]
        return [await desk.revoke(arguments.id)]


@asynccontextmanager
async def _desk(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[KeyDesk]:
    # `--routes` are the key's here, and of the folder nothing is needed.
    config_path = arguments.config or settings.gateway_config or DEFAULT_CONFIG
    config = load(config_path, None, settings).config
    store = SqlStore(config.storage.database)
    try:
        await store.open()
        yield KeyDesk(store.keys, config.teams, SystemClock())
    finally:
        await store.close()


def _line(view: KeyView) -> str:
    made = datetime.fromtimestamp(view.created_at, UTC).strftime("%Y-%m-%d")
    now = time.time()
    state = "active"
    if view.revoked_at is not None:
        state = "revoked"
    elif view.blocked:
        state = "blocked"
    elif view.expires_at is not None and view.expires_at <= now:
        state = "expired"
    prefixes = ",".join(s.prefix for s in view.secrets if s.expires_at is None or s.expires_at > now)
    more = [f"team={view.team}" if view.team else ""]
    for name in ("roles", "tags", "models", "routes", "tools"):
        more += [f"{name}={','.join(names)}"] if (names := getattr(view, name)) else []
    more += [f"{name}={value:g}" for name, value in {**view.limits, **view.budgets}.items()]
    if view.expires_at is not None:
        more.append("until " + datetime.fromtimestamp(view.expires_at, UTC).strftime("%Y-%m-%d %H:%M"))
    return "  ".join([view.id, made, f"{state:<7}", f"{prefixes}…", view.name, *filter(None, more)])
