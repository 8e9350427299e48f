"""Background runs by real processes: handed over at a signal, executed by several workers of one server, looked at by the command."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.e2e.chaos_drill import Process, _free_port
from tests.e2e.program import program, run
from tests.replies import answer, call
from tests.serving import native_config
from tests.upstream import ScriptedUpstream
from tests.valkey import valkey

PLUGIN = """\
from pathlib import Path
from gateway.tools import tool

@tool(writes=True)
async def pay() -> str:
    \"\"\"Pay.\"\"\"
    with (Path(__file__).parent.parent / "paid").open("a") as file:
        file.write("x")
    return "paid"

def register(registry):
    registry.add(pay)
"""
ASKING = {"model": "auto", "metadata": {"background": "true"}, "messages": [{"role": "user", "content": "pay"}]}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as it:
        yield it


def write_files(folder: Path, base_url: str, **more: Any) -> None:
    config = native_config(base_url, tools={"plugins": ["plugins"]}, server={"drain_s": 6}, **more)
    config["storage"] = {"database": f"sqlite:///{folder / 'hermes.db'}"}
    route = {"route": "all", "model": "m", "match": "when", "when": {"models": ["auto"]}, "tools": ["pay"]}
    for name in ("config", "routes", "plugins"):
        (folder / name).mkdir()
    (folder / "config" / "gateway.yaml").write_text(yaml.safe_dump(config))
    (folder / "routes" / "all.yaml").write_text(yaml.safe_dump(route))
    (folder / "plugins" / "pay.py").write_text(PLUGIN)


async def ask(http: aiohttp.ClientSession, url: str) -> str:
    async with http.post(f"{url}/v1/chat/completions", json=ASKING) as response:
        said = await response.json()
        assert response.status == 202, said
        return str(said["id"])


async def until(http: aiohttp.ClientSession, url: str, run_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"{url}/v1/runs/{run_id}") as response:
                found: dict[str, Any] = await response.json()
            if found["status"] == status:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.timeout(240)
async def test_a_worker_that_is_told_to_stop_hands_its_long_run_to_another_and_ends_with_0(
    tmp_path: Path, stack: ExitStack
) -> None:
    server = stack.enter_context(valkey())
    variables = {"REDIS_URL": server.url}
    async with (
        ScriptedUpstream(answer(calls=[call("c", "pay", "{}")]), answer("never").held()) as upstream,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.to_thread(write_files, tmp_path, upstream.base_url)
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        api = Process(tmp_path, "api", ["serve", "--port", str(port)], "curl", variables)
        first, second = [Process(tmp_path, f"w{n}", ["worker"], "executes", variables) for n in range(2)]
        for each in (api, first, second):
            stack.callback(each.kill)
        api.start()
        await api.until_ready()
        first.start()
        await first.until_ready()
        run_id = await ask(http, url)
        await upstream.stalled(timeout_s=60)
        second.start()
        await second.until_ready()
        upstream.enqueue(answer("paid it"))
        async with asyncio.timeout(30):
            assert await first.end(signal.SIGTERM) == 0
        found = await until(http, url, run_id, "completed")
        assert found["response"]["choices"][0]["message"]["content"] == "paid it"
        assert found["deliveries"] == 1
        assert await asyncio.to_thread((tmp_path / "paid").read_text) == "x"
        for each in (second, api):
            assert await each.end(signal.SIGTERM) == 0


@pytest.mark.timeout(240)
async def test_the_processes_of_one_server_execute_runs_themselves_and_the_command_shows_them(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=lambda _: answer("done")) as upstream,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.to_thread(write_files, tmp_path, upstream.base_url)
        with ExitStack() as stack:
            serving = await asyncio.to_thread(stack.enter_context, program(tmp_path, "--workers", "2"))
            ids = [await ask(http, serving.url) for _ in range(6)]
            for each in ids:
                await until(http, serving.url, each, "completed")
            listed = await asyncio.to_thread(run, tmp_path, "runs", "--json", GATEWAY_URL=serving.url)
            assert {row["id"] for row in json.loads(listed.stdout)["data"]} == set(ids)
            refused = await asyncio.to_thread(run, tmp_path, "runs", "retry", ids[0], GATEWAY_URL=serving.url)
            assert refused.returncode == 1
            assert "completed" in refused.stderr
            assert await asyncio.to_thread(serving.stop) == 0
        shown = await asyncio.to_thread(run, tmp_path, "runs", "show", ids[0])
        assert shown.returncode == 0
        assert "done" in shown.stdout
        assert (await asyncio.to_thread(run, tmp_path, "runs", "cancel", "run_none")).returncode == 1
        assert (await asyncio.to_thread(run, tmp_path, "runs", "show")).returncode == 2
        alone = await asyncio.to_thread(run, tmp_path, "worker")
        assert alone.returncode == 1
        assert "REDIS_URL" in alone.stderr
