"""Background runs by real processes: handed over at a signal, executed by several workers of one server, looked at by the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.api.response_events import events_in
from tests.e2e.chaos_drill import Process, _free_port
from tests.e2e.program import program, run
from tests.replies import Reply
from tests.serving import native_config
from tests.upstream import DONE, ScriptedUpstream, Stall, UpstreamRequest, answer, call, f, stream, words
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

async def double(number: int) -> int:
    return 2 * number

def register(registry):
    registry.add(pay)
    registry.add_run_type("double", double)
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


async def ask(http: aiohttp.ClientSession, url: str, words_said: str = "pay") -> str:
    body = {**ASKING, "messages": [{"role": "user", "content": words_said}]}
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
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


def scripted(request: UpstreamRequest) -> Reply:
    """What each of those who ask gets, by their words."""
    words_said = str(request.messages[-1]["content"])
    asked = next(str(message["content"]) for message in request.messages if message["role"] == "user")
    if asked == "pay":
        if request.messages[-1]["role"] == "user":
            return answer(calls=[call("c", "pay", "{}")])
        return answer("paid it").held("paid")
    if asked.startswith("stream"):
        return stream(*words("once upon"), Stall(words_said), *words(" a time"), f("stop"), DONE)
    return answer("done").delayed(0.2)


@pytest.mark.timeout(240)
async def test_a_rolling_restart_loses_nothing_that_is_in_flight_B066(tmp_path: Path, stack: ExitStack) -> None:
    """Three workers and two replicas, 50 runs and 30 streams; one run takes longer than the grace, and so do some streams."""
    server = stack.enter_context(valkey())
    variables = {"REDIS_URL": server.url}
    async with ScriptedUpstream(then=scripted) as upstream, aiohttp.ClientSession() as http:
        await asyncio.to_thread(write_files, tmp_path, upstream.base_url)
        ports = [_free_port() for _ in range(3)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        apis = [Process(tmp_path, f"a{port}", ["serve", "--port", str(port)], "curl", variables) for port in ports]
        workers = [Process(tmp_path, f"w{n}", ["worker"], "executes", variables) for n in range(4)]
        for each in (*apis, *workers):
            stack.callback(each.kill)
        apis[0].start()
        await apis[0].until_ready()  # it makes the tables
        for each in (*apis[1:], *workers[:3]):
            each.start()
        for each in (*apis[1:], *workers[:3]):
            await each.until_ready()
        long = await ask(http, urls[0])
        await upstream.stalled()
        streams = [
            asyncio.create_task(streamed(http, urls[n % 2], "stream short" if n % 3 else "stream long"))
            for n in range(30)
        ]
        await upstream.stalled(31)
        quick = await asyncio.gather(*(ask(http, urls[n % 2], "quick") for n in range(50)))
        workers[3].start()
        await workers[3].until_ready()
        started = time.monotonic()
        ends = [asyncio.create_task(each.end(signal.SIGTERM)) for each in (*apis[:2], *workers[:3])]
        await not_ready(http, urls[0])
        upstream.release("stream short")
        assert await asyncio.gather(*ends) == [0] * 5
        # The grace is 6 seconds; the rest is for a busy machine.
        assert time.monotonic() - started < 6 + 20
        upstream.release("paid")
        for run_id in (*quick, long):
            assert (await until(http, urls[2], run_id, "completed"))["deliveries"] == 1
        found = await until(http, urls[2], long, "completed")
        assert found["response"]["choices"][0]["message"]["content"] == "paid it"
        assert await asyncio.to_thread((tmp_path / "paid").read_text) == "x"
        asked = [request for request in upstream.requests if request.messages[-1]["content"] == "quick"]
        assert len(asked) == 50
        for n, told in enumerate(await asyncio.gather(*streams)):
            assert told.rstrip().endswith("data: [DONE]")
            assert ('"finish_reason":"stop"' in told, '"code":"draining"' in told) == (bool(n % 3), not n % 3)
        for each in (apis[2], workers[3]):
            assert await each.end(signal.SIGTERM) == 0


async def streamed(http: aiohttp.ClientSession, url: str, words_said: str) -> str:
    """All that a streamed answer says."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": words_said}]}
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        return (await response.read()).decode()


async def not_ready(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until a process takes no more traffic: it says so, or no connection."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with http.get(f"{url}/readyz", headers={"connection": "close"}) as response:
                    if response.status == 503:
                        return
            except aiohttp.ClientConnectionError:
                return
            await asyncio.sleep(0.02)


# A worker whose leases are short enough for a test to outwait.
BRIEF = """\
import sys
import gateway.runs.worker, gateway.turn.joining
gateway.runs.worker.LEASE_S = gateway.turn.joining.HELD_S = 2.0
from gateway.cli import main
sys.exit(main(["worker"]))
"""


def stop_between_writes(process: Process, database: Path) -> None:
    """Stop a process while somebody else has the database's lock: with it in its hands, nobody could go on before it does."""
    with closing(sqlite3.connect(database, timeout=20, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        process.signal(signal.SIGSTOP)
        held.execute("ROLLBACK")


@pytest.mark.timeout(240)
async def test_a_worker_that_is_stopped_and_goes_on_makes_no_effect_a_second_time_B063(
    tmp_path: Path, stack: ExitStack
) -> None:
    server = stack.enter_context(valkey())
    variables = {"REDIS_URL": server.url}
    pays = answer(calls=[call("c", "pay", "{}")])
    async with (
        ScriptedUpstream(pays.held(), pays, answer("paid it"), answer("done")) as upstream,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.to_thread(write_files, tmp_path, upstream.base_url)
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        api = Process(tmp_path, "api", ["serve", "--port", str(port)], "curl", variables)
        brief = (sys.executable, "-c", BRIEF)
        first, second = [Process(tmp_path, f"w{n}", [], "executes", variables, brief) for n in range(2)]
        for each in (api, first, second):
            stack.callback(each.kill)
        api.start()
        await api.until_ready()
        first.start()
        await first.until_ready()
        run_id = await ask(http, url)
        await upstream.stalled()
        await asyncio.to_thread(stop_between_writes, first, tmp_path / "hermes.db")
        second.start()
        found = await until(http, url, run_id, "completed")
        assert found["deliveries"] == 2
        assert await asyncio.to_thread((tmp_path / "paid").read_text) == "x"
        await second.end(signal.SIGTERM)
        # It gets the answer that it had been waiting for, which asks it to pay.
        upstream.release()
        first.signal(signal.SIGCONT)
        async with asyncio.timeout(30):
            while "somebody else's by now" not in first.says:
                await asyncio.sleep(0.05)
        # It lives, and executes what is its own.
        await until(http, url, await ask(http, url, "quick"), "completed")
        assert await asyncio.to_thread((tmp_path / "paid").read_text) == "x"
        assert await until(http, url, run_id, "completed") == found
        assert first.lives


async def test_a_streamed_response_of_a_killed_process_says_so_to_whoever_comes_back(tmp_path: Path) -> None:
    said = stream(*words("once upon"), Stall(), *words(" a time"), f("stop"), DONE)
    async with ScriptedUpstream(said) as upstream, aiohttp.ClientSession() as http:
        await asyncio.to_thread(write_files, tmp_path, upstream.base_url)
        with ExitStack() as stack:
            killed = await asyncio.to_thread(stack.enter_context, program(tmp_path))
            body = {"model": "m", "input": "tell me", "stream": True}
            raw = b""
            async with http.post(f"{killed.url}/v1/responses", json=body) as response:
                while b" upon" not in raw:
                    raw += await response.content.readany()
                response_id = events_in(raw[: raw.rindex(b"\n\n")])[0]["response"]["id"]
                await kept(tmp_path, response_id, events_in(raw[: raw.rindex(b"\n\n") + 2])[-1]["sequence_number"])
                await asyncio.to_thread(killed.stop, signal.SIGKILL)
                with contextlib.suppress(aiohttp.ClientPayloadError):
                    raw += await response.content.read()
            serving = await asyncio.to_thread(stack.enter_context, program(tmp_path))
            before = events_in(raw[: raw.rindex(b"\n\n") + 2])
            async with http.get(f"{serving.url}/v1/responses/{response_id}") as response:
                found = await response.json()
            query = {"stream": "true", "starting_after": str(before[-1]["sequence_number"])}
            async with http.get(f"{serving.url}/v1/responses/{response_id}", params=query) as response:
                rest = events_in(await response.read())
            assert await asyncio.to_thread(serving.stop) == 0
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    [item] = found["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "once upon")
    assert [event["type"] for event in rest[-2:]] == ["error", "response.failed"]
    assert rest[-1]["response"]["output"] == found["output"]
    whole = [*before, *rest]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))


async def kept(folder: Path, response_id: str, number: int) -> None:
    """Wait until events are in the database up to this one."""

    def last() -> int:
        with closing(sqlite3.connect(folder / "hermes.db", timeout=20)) as database:
            query = "SELECT coalesce(max(last), -1) FROM response_events WHERE response_id = ?"
            return int(database.execute(query, [response_id]).fetchone()[0])

    async with asyncio.timeout(20):
        while await asyncio.to_thread(last) < number:
            await asyncio.sleep(0.05)


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
            listed = await asyncio.to_thread(
                run, tmp_path, "runs", "--json", GATEWAY_URL=serving.url, GATEWAY_KEY="any"
            )
            assert {row["id"] for row in json.loads(listed.stdout)["data"]} == set(ids)
            refused = await asyncio.to_thread(
                run, tmp_path, "runs", "retry", ids[0], GATEWAY_URL=serving.url, GATEWAY_KEY="any"
            )
            assert refused.returncode == 1
            assert "completed" in refused.stderr
            asked = ["runs", "submit", "double", "--input", '{"number": 21}', "--json"]
            submitted = await asyncio.to_thread(run, tmp_path, *asked, GATEWAY_URL=serving.url)
            assert submitted.returncode == 0, submitted.stderr
            doubled = await until(http, serving.url, json.loads(submitted.stdout)["id"], "completed")
            assert doubled["response"] == 42
            told = await asyncio.to_thread(run, tmp_path, *asked[:-1], GATEWAY_URL=serving.url)
            assert told.returncode == 0, told.stderr
            assert told.stdout.startswith("run_")
            assert await asyncio.to_thread(serving.stop) == 0
        shown = await asyncio.to_thread(run, tmp_path, "runs", "show", ids[0])
        assert shown.returncode == 0
        assert "done" in shown.stdout
        assert (await asyncio.to_thread(run, tmp_path, "runs", "cancel", "run_none")).returncode == 1
        alone = await asyncio.to_thread(run, tmp_path, "worker")
        assert alone.returncode == 1
        assert "REDIS_URL" in alone.stderr
