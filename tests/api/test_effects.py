"""Effects on the operators' list: shown, settled, run again, over HTTP and at the terminal."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from tests.replies import answer, call
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream, UpstreamRequest

PLUGIN = """\
import sqlite3
from contextlib import closing
from pathlib import Path
from gateway.tools import ToolContext, tool

FOLDER = Path(__file__).parent.parent

def rows():
    connection = sqlite3.connect(FOLDER / "paid.db", isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS paid (amount INTEGER, key TEXT, user TEXT)")
    return closing(connection)

def insert(amount, ctx):
    with rows() as connection:
        connection.execute("INSERT INTO paid VALUES (?, ?, ?)", (amount, ctx.idempotency_key, ctx.user))
    return {"paid": amount}

@tool(writes=True)
async def pay(amount: int, ctx: ToolContext) -> dict:
    \"\"\"Pay.

    amount: in cents
    \"\"\"
    if not (FOLDER / "open").exists():
        raise ConnectionResetError("the bank hung up")
    return insert(amount, ctx)

def booked(ctx):
    return {"booked": True} if (FOLDER / "open").exists() else None

@tool(writes=True, probe=booked)
async def book(amount: int, ctx: ToolContext) -> dict:
    \"\"\"Book.

    amount: in cents
    \"\"\"
    raise ConnectionResetError("the office hung up")

@tool(writes=True)
async def refuse(amount: int) -> dict:
    \"\"\"Refuse.

    amount: in cents
    \"\"\"
    if (FOLDER / "open").exists():
        return {"refused": False}
    raise ValueError("refused")

def register(registry):
    registry.add(pay, book, refuse)
"""
ROUTE = {"model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": ["pay", "book", "refuse"]}
KEYS = {
    "static": {
        "ops": {"key": "secret-ops-00000000000", "roles": ["admin"]},
        "app": {"key": "secret-app-00000000000", "roles": ["set_user"]},
    }
}
OPS, APP = {"x_api_key": "secret-ops-00000000000"}, {"x_api_key": "secret-app-00000000000", "x_gateway_user": "ann"}


def model(request: UpstreamRequest) -> Any:
    if request.messages[-1]["role"] == "tool":
        return answer(request.messages[-1]["content"])
    return answer(calls=[call("c", request.messages[-1]["content"], '{"amount": 5}')])


@asynccontextmanager
async def office(folder: Path) -> AsyncIterator[Served]:
    async with ScriptedUpstream(then=model) as upstream:
        config = native_config(upstream.base_url, keys=KEYS)
        async with serving(folder, config, {"all": ROUTE}, {"office": PLUGIN}) as on:
            yield on


def paid(folder: Path) -> list[tuple[int, str, str]]:
    with sqlite3.connect(folder / "paid.db") as connection:
        return [tuple(row) for row in connection.execute("SELECT amount, key, user FROM paid")]


async def effect(on: Served, tool: str) -> tuple[str, dict[str, Any]]:
    """Have the model call this tool; its trace and the effect that is listed first then."""
    body = {"model": "auto", "messages": [{"role": "user", "content": tool}]}
    status, headers, answered = await on.post("/v1/chat/completions", body, Idempotency_Key=f"k-{tool}", **APP)
    assert status == 200, answered
    status, _, found = await on.get("/v1/effects", **OPS)
    assert status == 200, found
    return headers["x-gateway-trace"], found["data"][0]


async def test_a_connection_that_broke_leaves_an_effect_that_an_operator_settles(tmp_path: Path) -> None:
    async with office(tmp_path) as on:
        trace_id, shown = await effect(on, "pay")
        assert {name: shown[name] for name in ("object", "tool", "status", "arguments", "owner", "trace_id")} == {
            "object": "effect",
            "tool": "pay",
            "status": "unknown",
            "arguments": {"amount": 5},
            "owner": "app/ann",
            "trace_id": trace_id,
        }
        assert "not known" in shown["content"]["error"]
        place = f"/v1/effects/{shown['id']}/settle"
        for body, param in (
            ({"status": "done"}, None),
            ({"status": "unknown", "reason": "x"}, None),
            ({"status": "done", "reason": " "}, "reason"),
            ({"status": "done", "reason": "x", "so": 1}, None),
        ):
            status, _, refused = await on.post(place, body, **OPS)
            assert (status, refused["error"]["param"]) == (400, param)
        said = {"status": "done", "reason": "it is on the statement", "content": {"paid": 5}}
        status, _, settled = await on.post(place, said, **OPS)
        assert (status, settled["status"], settled["note"]) == (200, "done", "ops: it is on the statement")
        assert settled["content"] == {"ok": True, "result": {"paid": 5}}
        status, headers, refused = await on.post(place, said, **OPS)
        assert (status, refused["error"]["code"], headers["x-should-retry"]) == (409, "effect_settled", "false")
        assert (await on.post("/v1/effects/eff_none/settle", said, **OPS))[0] == 404
        _, _, metrics = await on.get("/metrics", **OPS)
        assert 'hermes_effects_total{status="unknown",tool="pay"} 1.0' in metrics


async def test_what_did_not_happen_is_run_again_for_whom_it_was_asked(tmp_path: Path) -> None:
    async with office(tmp_path) as on:
        trace_id, shown = await effect(on, "pay")
        (tmp_path / "open").touch()
        retried = await asyncio.gather(*(on.post(f"/v1/effects/{shown['id']}/retry", None, **OPS) for _ in range(3)))
        assert sorted(status for status, _, _ in retried) == [200, 409, 409]
        (done,) = [body for status, _, body in retried if status == 200]
        assert (done["status"], done["content"]) == ("done", {"ok": True, "result": {"paid": 5}})
        assert paid(tmp_path) == [(5, f"{trace_id}.1.0", "ann")]
        assert (await on.post(f"/v1/effects/{shown['id']}/retry", None, **OPS))[0] == 409
        assert len(paid(tmp_path)) == 1


async def test_a_retry_asks_the_probe_first(tmp_path: Path) -> None:
    async with office(tmp_path) as on:
        _, shown = await effect(on, "book")
        (tmp_path / "open").touch()
        status, _, done = await on.post(f"/v1/effects/{shown['id']}/retry", None, **OPS)
        assert (status, done["status"], done["note"]) == (200, "done", "probe")


async def test_a_failed_effect_is_run_again_and_refused_where_the_tool_has_gone(tmp_path: Path) -> None:
    async with office(tmp_path) as on:
        _, shown = await effect(on, "refuse")
        assert (shown["status"], shown["note"]) == ("failed", "refused")
        (tmp_path / "open").touch()
        plugin = tmp_path / "plugins" / "office.py"
        plugin.write_text(PLUGIN.replace("async def refuse(amount: int)", "async def refuse(amount: bool)"))
        assert (await on.post("/v1/reload", None, **OPS))[0] == 200
        status, _, refused = await on.post(f"/v1/effects/{shown['id']}/retry", None, **OPS)
        assert (status, refused["error"]["code"]) == (400, "tool_changed")
        plugin.write_text(PLUGIN)
        assert (await on.post("/v1/reload", None, **OPS))[0] == 200
        status, _, done = await on.post(f"/v1/effects/{shown['id']}/retry", None, **OPS)
        assert (status, done["status"]) == (200, "done")


async def test_the_list_has_pages_and_a_filter_and_is_for_administrators(tmp_path: Path) -> None:
    async with office(tmp_path) as on:
        for tool in ("pay", "refuse", "book"):
            await effect(on, tool)
        _, _, first = await on.get("/v1/effects?limit=2", **OPS)
        assert ([each["tool"] for each in first["data"]], first["has_more"]) == (["book", "refuse"], True)
        _, _, second = await on.get(f"/v1/effects?limit=2&after={first['last_id']}", **OPS)
        assert ([each["tool"] for each in second["data"]], second["has_more"]) == (["pay"], False)
        _, _, failed = await on.get("/v1/effects?status=failed", **OPS)
        assert [each["tool"] for each in failed["data"]] == ["refuse"]
        for query, param in (("status=lost", "status"), ("limit=0", "limit"), ("tool=pay", "tool")):
            status, _, refused = await on.get(f"/v1/effects?{query}", **OPS)
            assert (status, refused["error"]["param"]) == (400, param)
        number = first["data"][0]["id"]
        assert (await on.get("/v1/effects", **APP))[0] == 403
        for act in ("settle", "retry"):
            assert (await on.post(f"/v1/effects/{number}/{act}", {}, **APP))[0] == 403


@pytest.mark.parametrize("over_http", [True, False], ids=["HTTP", "database"])
async def test_the_command_lists_settles_and_retries(
    tmp_path: Path, over_http: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*arguments: str) -> tuple[int, str]:
        files = ("--config", str(tmp_path / "gateway.yaml"), "--routes", str(tmp_path / "routes"))
        code = await asyncio.to_thread(cli.main, ["effects", *arguments, *files])
        said = capsys.readouterr()
        return code, said.out + said.err

    async with office(tmp_path) as on:
        if over_http:
            monkeypatch.setenv("GATEWAY_URL", on.url)
            monkeypatch.setenv("GATEWAY_KEY", OPS["x_api_key"])
        else:
            monkeypatch.delenv("GATEWAY_URL", raising=False)
            monkeypatch.delenv("GATEWAY_KEY", raising=False)
        _, shown = await effect(on, "pay")
        _, other = await effect(on, "refuse")
        code, said = await run("--status", "unknown")
        assert (code, shown["id"] in said, other["id"] in said) == (0, True, False)
        code, said = await run("list", "--limit", "1", "--json")
        listed: list[Mapping[str, Any]] = json.loads(said)
        assert (code, [each["id"] for each in listed]) == (0, [other["id"]])
        assert listed == [other]
        for wrong in (["settle"], ["settle", "x", "--done"], ["retry"], ["list", "--limit", "0"]):
            assert (await run(*wrong))[0] == 2
        assert (await run("settle", "x", "--done", "--reason", "r", "--content", "{"))[0] == 2
        assert (await run("settle", "eff_none", "--done", "--reason", "asked"))[0] == 1
        code, said = await run("settle", shown["id"], "--failed", "--reason", "the bank says so")
        assert (code, "failed" in said, "the bank says so" in said) == (0, True, True)
        assert (await run("settle", shown["id"], "--done", "--reason", "no"))[0] == 1
        if not over_http:
            monkeypatch.setenv("GATEWAY_URL", "http://127.0.0.1:1")
        code, said = await run("retry", other["id"])
        assert (code, "cannot be reached" in said) == ((0, False) if over_http else (3, True))
