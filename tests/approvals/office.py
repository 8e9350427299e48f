"""A gateway with tools that have to be approved, an upstream that asks for them, and people who decide.

Knows the tools, the keys and how to ask. What is expected is the test's.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from gateway.runs.engine import Pace
from tests.replies import Reply, answer, call
from tests.serving import Served, native_config, serving
from tests.upstream import Script, ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from gateway.tools import ToolContext, tool

FOLDER = Path(__file__).parent.parent

def insert(name, said, key):
    with closing(sqlite3.connect(FOLDER / "world.db", isolation_level=None, timeout=20)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS done (name TEXT, said TEXT, key TEXT)")
        connection.execute("INSERT INTO done VALUES (?, ?, ?)", (name, said, key))

@tool(writes=True, needs_confirmation=True)
async def pay(to: str, cents: int, ctx: ToolContext) -> dict:
    \"\"\"Pay somebody.

    to: whom
    cents: how much
    \"\"\"
    while (FOLDER / "slow").exists():
        await asyncio.sleep(0.02)
    insert("pay", f"{to} {cents}", ctx.idempotency_key)
    return {"paid": cents, "to": to}

@tool
async def delete_order(order_id: str, ctx: ToolContext) -> dict:
    \"\"\"Delete an order.

    order_id: its number
    \"\"\"
    insert("delete_order", order_id, ctx.idempotency_key)
    return {"deleted": order_id}

@tool(writes=True, confidence_gate=True)
async def refund(order_id: str) -> dict:
    \"\"\"Refund an order.

    order_id: its number
    \"\"\"
    insert("refund", order_id, "")
    return {"refunded": order_id}

@tool
async def look(order_id: str) -> dict:
    \"\"\"Look up an order.

    order_id: its number
    \"\"\"
    return {"order": order_id, "status": "paid"}

def register(registry):
    registry.add(pay, delete_order, refund, look)
"""
# What is approved is looked for every twentieth of a second.
QUICK = Pace(look_s=0.05)
TOOLS = ["pay", "delete_order", "refund", "look"]
ROUTE: Mapping[str, Any] = {"model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": TOOLS}
SECRETS = {name: f"secret-{name}-0000000000000" for name in ("ops", "boss", "clerk", "ui", "app")}
KEYS: Mapping[str, Any] = {
    "static": {
        "ops": {"key": SECRETS["ops"], "roles": ["admin"]},
        "boss": {"key": SECRETS["boss"], "roles": ["admin"]},
        "clerk": {"key": SECRETS["clerk"], "roles": ["approver"]},
        "ui": {"key": SECRETS["ui"], "roles": ["set_user"]},
        "app": {"key": SECRETS["app"]},
    }
}


def asks(name: str, arguments: Any, call_id: str = "call_1") -> Reply:
    """The model asks for one call."""
    return answer(calls=[call(call_id, name, json.dumps(arguments))])


def told(request: UpstreamRequest) -> list[dict[str, Any]]:
    """The results of calls that a model was shown, in order."""
    return [json.loads(message["content"]) for message in request.messages if message["role"] == "tool"]


def as_key(name: str, user: str | None = None) -> dict[str, str]:
    """The headers of a caller."""
    return {"x_api_key": SECRETS[name], **({"x_gateway_user": user} if user else {})}


class Office:
    """Everything of one test.

    Attributes:
        served: the gateway.
        upstream: its model.
    """

    def __init__(self, served: Served, upstream: ScriptedUpstream) -> None:
        self.served = served
        self.upstream = upstream

    async def ask(
        self, said: str | list[dict[str, Any]], headers: Mapping[str, str] | None = None, **more: Any
    ) -> tuple[str, Mapping[str, str]]:
        """A chat completion's text and headers."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        asked = as_key("app") if headers is None else headers
        status, got, body = await self.served.post(
            "/v1/chat/completions", {"model": "auto", "messages": messages, **more}, **asked
        )
        assert status == 200, body
        return body["choices"][0]["message"]["content"], got

    async def approval(self, approval_id: str, who: str = "ops") -> dict[str, Any]:
        status, _, body = await self.served.get(f"/v1/approvals/{approval_id}", **as_key(who))
        assert status == 200, body
        found: dict[str, Any] = body
        return found

    async def decide(
        self, approval_id: str, decision: str, body: Any = None, who: str = "ops", **more: str
    ) -> tuple[int, Any]:
        status, _, answered = await self.served.post(
            f"/v1/approvals/{approval_id}/{decision}", body or {}, **{**as_key(who), **more}
        )
        return status, answered

    async def settled(self, approval_id: str) -> dict[str, Any]:
        """The approval once it has an outcome."""
        found: dict[str, Any] = {}

        async def there() -> bool:
            nonlocal found
            found = await self.approval(approval_id)
            return found["outcome"] is not None

        await until(there)
        return found

    async def listed(self) -> dict[str, Any]:
        """Everybody's approvals."""
        found: dict[str, Any] = (await self.served.get("/v1/approvals", **as_key("ops")))[2]
        return found

    async def pending(self) -> dict[str, Any]:
        """The one approval that waits, once it does."""
        found: list[dict[str, Any]] = []

        async def there() -> bool:
            body = (await self.served.get("/v1/approvals?status=pending", **as_key("ops")))[2]
            found[:] = body["data"]
            return bool(found)

        await until(there)
        [one] = found
        return one

    def done(self) -> list[tuple[str, str]]:
        """What has really happened."""
        return done_in(self.served.folder)


def done_in(folder: Path) -> list[tuple[str, str]]:
    """What has really happened in the world of this folder."""
    if not (folder / "world.db").exists():
        return []
    with closing(sqlite3.connect(folder / "world.db")) as connection:
        return [(name, said) for name, said in connection.execute("SELECT name, said FROM done ORDER BY rowid")]


def config(base_url: str, **more: Any) -> dict[str, Any]:
    """A configuration that does not wait, with keys for everybody."""
    approvals = {"wait_s": 0, **more.pop("approvals", {})}
    return native_config(base_url, keys=KEYS, approvals=approvals, **more)


@asynccontextmanager
async def office(folder: Path, *script: Script, then: Script | None = None, **more: Any) -> AsyncIterator[Office]:
    """Open for business; `more` is merged into the configuration."""
    async with ScriptedUpstream(*script, then=then) as upstream:
        settings = config(upstream.base_url, **more)
        async with serving(folder, settings, {"r": ROUTE}, {"office": PLUGIN}, pace=QUICK) as served:
            yield Office(served, upstream)


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 30) -> None:
    """Wait for something that comes by itself."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)
