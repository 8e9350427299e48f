"""A client that goes away: within a second nothing works for it any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, call, f, stream, tc, words

HI: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
ROUTE = {"slow": {"model": "m", "keywords": ["hi"], "tools": ["slow"]}}
PLUGIN = """
import asyncio
from pathlib import Path
from gateway.tools import tool

FOLDER = Path(__file__).parent

@tool(timeout_s=30, writes=%s)
async def slow() -> str:
    \"\"\"Take very long.\"\"\"
    (FOLDER / "started").touch()
    try:
        while not (FOLDER / "go").exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        (FOLDER / "cancelled").touch()
        raise
    (FOLDER / "finished").touch()
    return "done"

def register(registry):
    registry.add(slow)
"""


async def appears(path: Path, within_s: float = 2.0) -> None:
    async with asyncio.timeout(within_s):
        while not path.exists():  # noqa: ASYNC240 - a look at a file takes microseconds
            await asyncio.sleep(0.005)


async def settled(on: Served) -> dict[str, Any]:
    """The newest trace, once no turn runs any more."""
    async with asyncio.timeout(1):
        while on.gateway.turns.running:
            await asyncio.sleep(0.005)
    rows = (await on.get("/v1/traces"))[2]["data"]
    return await on.trace(rows[0]["id"])


async def leave(request: asyncio.Task[Any]) -> None:
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def ask(on: Served, streamed: bool) -> bytes:
    async with on.http.post(on.url + PATH, json={**HI, "stream": streamed}) as response:
        return await response.read()


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_upstream_call_is_cancelled_within_a_second_B075(tmp_path: Path, streamed: bool) -> None:
    reply = stream(*words("hello"), Stall(), f("stop"), DONE) if streamed else answer("x").held()
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, native_config(upstream.base_url)) as on:
        request = asyncio.create_task(ask(on, streamed))
        await upstream.stalled()
        await leave(request)
        await upstream.aborted(timeout_s=1)
        trace = await settled(on)
        assert (trace["status"], trace["events"][-1]["type"]) == (499, "turn.cancelled")


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_reading_tool_is_cancelled_within_a_second_B075(tmp_path: Path, streamed: bool) -> None:
    whole = answer(calls=[call("a", "slow", "{}")])
    reply = stream(tc(0, id="a", name="slow", arguments="{}"), f("tool_calls"), DONE) if streamed else whole
    async with (
        ScriptedUpstream(reply) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"slow": PLUGIN % False}) as on,
    ):
        request = asyncio.create_task(ask(on, streamed))
        await appears(tmp_path / "plugins" / "started")
        await leave(request)
        await appears(tmp_path / "plugins" / "cancelled", within_s=1)
        assert (await settled(on))["status"] == 499
        assert len(upstream.requests) == 1


async def test_writing_tool_that_has_started_is_finished_and_nothing_after_it_B075(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(answer(calls=[call("a", "slow", "{}")])) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"slow": PLUGIN % True}) as on,
    ):
        request = asyncio.create_task(ask(on, False))
        await appears(tmp_path / "plugins" / "started")
        await leave(request)
        trace = await settled(on)
        assert trace["status"] == 499
        (tmp_path / "plugins" / "go").touch()
        await appears(tmp_path / "plugins" / "finished")
        assert not (tmp_path / "plugins" / "cancelled").exists()
        assert len(upstream.requests) == 1
        entries = await on.gateway.store.journal.of_turn(trace["id"], None)
        assert [(entry.round, entry.kind) for entry in entries] == [(1, "answer")]


async def test_client_that_leaves_in_the_middle_of_its_request_is_nobody(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream, serving(tmp_path, native_config(upstream.base_url)) as on:
        host, port = on.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await on.get("/healthz"))[0] == 200
        assert upstream.requests == []
        assert (await on.get("/v1/traces"))[2]["data"] == []


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_answer_that_a_stopping_gateway_cuts_off_says_so(tmp_path: Path, streamed: bool) -> None:
    reply = stream(*words("hello"), Stall(), f("stop"), DONE) if streamed else answer("x").held()
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, native_config(upstream.base_url)) as on:
        before = asyncio.all_tasks()
        request = asyncio.create_task(ask(on, streamed))
        await upstream.stalled()
        async with asyncio.timeout(2):
            while streamed and not any(turn.first_token_s for turn in on.gateway.turns.running.values()):
                await asyncio.sleep(0.005)
        # As the server does when the time to drain is over.
        for task in asyncio.all_tasks() - before:
            if "Cycle.run" in repr(task.get_coro()):
                task.cancel()
        async with asyncio.timeout(2):
            told = await request
        assert b'"code":"draining"' in told
        assert told.endswith(b"data: [DONE]\n\n") is streamed
