"""Runs of types that plugins add: asked for over HTTP, executed step by step, taken over, refused by name."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.tools.providers.python import PythonProvider
from tests.runs.stage import fresh_database
from tests.runs.test_chat_runs import KEYS, PACE, appears, bearer, until
from tests.serving import Served, native_config, serving

PLUGIN = """\
import asyncio
from pathlib import Path
from gateway.tools import RunContext, ToolFatal
HERE = Path(__file__).parent.parent

async def lifespan():
    yield {"shop": "open"}

def note(word):
    with (HERE / "notes").open("a") as file:
        file.write(word + " ")

async def charge(cents: int) -> dict:
    note(f"charge{cents}")
    return {"charged": cents}

async def bill(cents: int, run: RunContext, hold: bool = False) -> dict:
    first = await run.step("charge", charge, cents)
    await run.report({"done": 1})
    if hold and run.attempt == 1 and not (HERE / "go").exists():
        (HERE / "holding").touch()
        await asyncio.sleep(60)
    async def post():
        note("post")
        return "posted"
    second = await run.step("post", post)
    return {"first": first, "second": second, "attempt": run.attempt, "user": run.user, "key": run.key,
            "shop": run.resources["shop"], "same": run.idempotency_key == run.id}

async def breaks(how: str, run: RunContext) -> object:
    note(how)
    if how == "fatal":
        raise ToolFatal("never")
    if how == "object":
        return object()
    if how == "slow":
        await asyncio.sleep(60)
    if how == "exit":
        raise SystemExit(3)
    raise ValueError("no luck")

async def secret() -> str:
    return "for administrators"

def register(registry):
    registry.add_run_type("shop/bill", bill)
    registry.add_run_type("breaks", breaks, timeout_s=1)
    registry.add_run_type("secret", secret, allowed_roles=["admin"])
"""


@asynccontextmanager
async def served(folder: Path, plugin: str = PLUGIN, **config: Any) -> AsyncIterator[Served]:
    if not await asyncio.to_thread((folder / "hermes.db").exists):
        await fresh_database(folder / "hermes.db")
    whole = native_config("http://127.0.0.1:1/v1", **config)
    async with serving(folder, whole, {}, {"shop": plugin}, pace=PACE) as gateway:
        yield gateway


async def ask(on: Served, body: dict[str, Any], **headers: str) -> str:
    status, _, said = await on.post("/v1/runs", body, **headers)
    assert status == 202, said
    return str(said["id"])


def due_now(folder: Path) -> None:
    """Have every run that waits for its time be due."""
    with closing(sqlite3.connect(folder / "hermes.db", timeout=20)) as database, database:
        database.execute("UPDATE runs SET due_at = 1")


def notes(folder: Path) -> list[str]:
    return (folder / "notes").read_text().split() if (folder / "notes").exists() else []


async def test_a_plugins_run_is_asked_for_and_executed_step_by_step(tmp_path: Path) -> None:
    async with served(tmp_path) as on:
        asked = {"type": "shop/bill", "input": {"cents": "250"}}
        run = await ask(on, asked, idempotency_key="once")
        assert await ask(on, asked, idempotency_key="once") == run
        found = await until(on, run, "completed")
    assert found["type"] == "shop/bill"
    assert found["response"] == {
        "first": {"charged": 250},
        "second": "posted",
        "attempt": 1,
        "user": None,
        "key": "local",
        "shop": "open",
        "same": True,
    }
    assert found["progress"] == {"done": 1}
    assert found["stages"] is None, "there is nothing to begin again"
    assert notes(tmp_path) == ["charge250", "post"]


async def test_a_plugins_run_that_was_cut_off_goes_on_behind_its_recorded_steps(tmp_path: Path) -> None:
    async with served(tmp_path) as on:
        run = await ask(on, {"type": "shop/bill", "input": {"cents": 1, "hold": True}})
        await appears(tmp_path / "holding")
    (tmp_path / "go").touch()
    async with served(tmp_path) as on:
        found = await until(on, run, "completed")
    assert found["response"]["first"] == {"charged": 1}
    assert notes(tmp_path) == ["charge1", "post"]


async def test_a_plugins_run_is_cancelled_and_begun_again_from_a_step_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path) as on:
        run = await ask(on, {"type": "shop/bill", "input": {"cents": 1, "hold": True}})
        await appears(tmp_path / "holding")
        await on.post(f"/v1/runs/{run}/cancel", {})
        await until(on, run, "cancelled")
        (tmp_path / "go").touch()
        status, _, said = await on.post(f"/v1/runs/{run}/retry", {"from": "post"})
        assert (status, said["error"]["param"]) == (400, "from")
        assert "start, charge, last" in said["error"]["message"]
        assert (await on.post(f"/v1/runs/{run}/retry", {"from": "charge"}))[0] == 200
        await until(on, run, "completed")
    assert notes(tmp_path) == ["charge1", "charge1", "post"]


async def test_a_plugins_run_that_fails_says_why_and_is_tried_again_where_that_may_help(tmp_path: Path) -> None:
    cases = {
        "raise": ("no luck", 2),
        "fatal": ("never", 1),
        "object": ("no JSON form", 1),
        "slow": ("within 1 s", 2),
        "exit": ("SystemExit", 2),
    }
    async with served(tmp_path, runs={"max_deliveries": 2}) as on:
        runs = {how: await ask(on, {"type": "breaks", "input": {"how": how}}) for how in cases}
        for how, (words, tries) in cases.items():
            found = await until(on, runs[how], "failed")
            assert words in found["error"]["message"]
            assert (found["error"]["code"], found["dead"]) == ("tool_failed", tries == 2)
            assert notes(tmp_path).count(how) == tries


async def test_what_no_plugin_executes_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    bodies: list[tuple[Any, str | None]] = [
        ({"type": "shop/bil"}, "type"),
        ({"type": "chat", "input": {}}, "type"),
        ({"type": "shop/bill"}, "input"),
        ({"type": "shop/bill", "input": {"cents": "many"}}, "input"),
        ({"type": "shop/bill", "input": [1]}, "input"),
        ({"type": "shop/bill", "input": {"cents": 1}, "priority": "urgent"}, "priority"),
        ({"type": "shop/bill", "input": {"cents": 1}, "delay_s": -1}, "delay_s"),
        ({"type": "shop/bill", "input": {"cents": 1}, "queue": 1}, None),
        ({}, None),
        ("run it", None),
    ]
    async with served(tmp_path) as on:
        for body, param in bodies:
            status, _, said = await on.post("/v1/runs", body)
            assert (status, said["error"]["param"]) == (400, param), said
        assert (await on.get("/v1/runs"))[2]["data"] == []


async def test_types_are_for_the_keys_that_may_ask_and_runs_their_owners(tmp_path: Path) -> None:
    keys = {"static": {**KEYS["static"], "few": {"key": "sk-few-tools", "tools": ["shop/bill"]}}}
    async with served(tmp_path, keys=keys) as on:
        for key, kind, status in (
            ("sk-one", "secret", 400),
            ("sk-boss", "secret", 202),
            ("sk-few-tools", "breaks", 400),
        ):
            assert (await on.post("/v1/runs", {"type": kind, "input": {}}, **bearer(key)))[0] == status
        run = await ask(on, {"type": "shop/bill", "input": {"cents": 5}}, **bearer("sk-few-tools"))
        found = await until(on, run, "completed", key="sk-few-tools")
        assert found["response"]["key"] == "few"
        assert (await on.get(f"/v1/runs/{run}", **bearer("sk-two")))[0] == 404
        assert (await on.post("/v1/runs", {"type": "shop/bill", "input": {"cents": 5}}))[0] == 401


async def test_a_run_whose_plugin_is_gone_fails_loudly_and_goes_on_once_it_is_back(tmp_path: Path) -> None:
    async with served(tmp_path) as on:
        run = await ask(on, {"type": "shop/bill", "input": {"cents": 7}, "delay_s": 3600})
    await asyncio.to_thread(due_now, tmp_path)
    async with served(tmp_path, "") as on:
        found = await until(on, run, "failed")
        assert found["error"]["code"] == "unknown_run_type"
    async with served(tmp_path) as on:
        assert (await on.post(f"/v1/runs/{run}/retry", {}))[0] == 200
        await until(on, run, "completed")
    assert notes(tmp_path) == ["charge7", "post"]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ('registry.add_run_type("chat", handler)', "of the gateway's own"),
        ('registry.add_run_type("a b", handler)', "its name must be"),
        ("registry.add_run_type(7, handler)", "its name must be"),
        ('registry.add_run_type("a", lambda: 1)', "async def"),
        ('registry.add_run_type("a", untyped)', "`x` has no type"),
        ('registry.add_run_type("a", handler, allowed_roles=["king"])', "no role `king`"),
        ('registry.add_run_type("a", handler, timeout_s=0)', "`timeout_s` is 0"),
        ('registry.add_run_type("a", handler); registry.add_run_type("a", handler)', "already declared at"),
    ],
)
async def test_a_type_that_cannot_be_is_told_with_its_file(declared: str, words: str, tmp_path: Path) -> None:
    plugin = f"""\
async def handler() -> None: ...
async def untyped(x): ...
def register(registry):
    {declared}
"""
    await asyncio.to_thread((tmp_path / "shop.py").write_text, plugin)
    provider = PythonProvider([tmp_path])
    try:
        with pytest.raises(ConfigError) as caught:
            await provider.list()
    finally:
        await provider.close()
    [problem] = caught.value.problems
    assert problem.file.endswith("shop.py")
    assert words in problem.message


async def test_a_schedule_begins_a_run_of_a_plugins_type(tmp_path: Path) -> None:
    schedule = {"cron": "* * * * *", "key": "local", "type": "shop/bill", "input": {"cents": 3}}
    async with served(tmp_path, runs={"schedules": {"minutely": schedule}}) as on:
        async with asyncio.timeout(30):
            while not (rows := (await on.get("/v1/runs"))[2]["data"]):
                await asyncio.sleep(0.05)
        found = await until(on, rows[-1]["id"], "completed")
    assert (found["type"], found["response"]["first"]) == ("shop/bill", {"charged": 3})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "shop/bil"}, "no plugin adds the type `shop/bil`; there are: `breaks`, `secret`, `shop/bill`"),
        ({"input": {"cents": "many"}}, "does not take this input"),
    ],
)
async def test_a_schedule_that_no_plugin_could_execute_is_told_with_its_line(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    schedule = {"cron": "* * * * *", "key": "local", "type": "shop/bill", "input": {"cents": 3}, **change}
    with pytest.raises(ConfigError) as caught:
        async with served(tmp_path, runs={"schedules": {"minutely": schedule}}):
            pass
    [problem] = caught.value.problems
    assert words in problem.message
    assert problem.line > 1
