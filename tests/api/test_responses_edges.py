"""Responses where something is in the way: hooks, other processes, silence, a gateway that stops, a store that is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.api.responses import Responses
from gateway.chat.codecs.responses_told import items_of
from gateway.errors import StoreUnavailable
from tests.api.response_events import assert_proper, events_in, respond, resumed, stream_of
from tests.replies import Pause
from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, call, chunk, d, error, f, stream, words

HOOK = """
from gateway.chat.blocks import Message, Text

async def on_answer(message, principal):
    return Message("assistant", (Text(message.text.upper()), *message.tool_calls))
"""
TOOL = """
from gateway.tools import tool, ToolFatal

@tool()
async def look() -> str:
    \"\"\"Look.\"\"\"
    return "seen"

@tool()
async def stop() -> str:
    \"\"\"Stop.\"\"\"
    raise ToolFatal("that is enough")

def register(registry):
    registry.add(look)
    registry.add(stop)
"""
OFFERED = {"tools": {"offer": "always", "default": ["look", "stop"]}}


def words_of(response: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_answer_is_seen_by_hooks_before_anybody_else(tmp_path: Path, streamed: bool) -> None:
    replies = [answer("let me look", calls=[call("c1", "look", "{}")]), answer("it is there")]
    async with (
        ScriptedUpstream(*replies) as up,
        serving(tmp_path, native_config(up.base_url, **OFFERED), plugins={"p": TOOL, "h": HOOK}) as on,
    ):
        if streamed:
            events = await stream_of(on, {"input": "hi"})
            response = events[-1]["response"]
            assert not [event for event in events if "let me look" in json.dumps(event)]
        else:
            response = await respond(on, {"input": "hi"})
    assert words_of(response) == ["LET ME LOOKIT IS THERE"]
    assert [item["type"] for item in response["output"]] == ["mcp_call", "message"]


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_calls_of_both_kinds_in_one_round_go_on_together(tmp_path: Path, streamed: bool) -> None:
    both = [call("c1", "look", "{}"), call("c2", "theirs", "{}")]
    pieces = [{"index": index, **each} for index, each in enumerate(both)]
    first = (
        stream(d({"role": "assistant", "tool_calls": pieces}), f("tool_calls"), DONE)
        if streamed
        else answer(calls=both)
    )
    async with (
        ScriptedUpstream(first, then=answer("done")) as up,
        serving(tmp_path, native_config(up.base_url, **OFFERED), plugins={"p": TOOL}) as on,
    ):
        body = {"input": "hi", "tools": [{"type": "function", "name": "theirs"}]}
        got = (await stream_of(on, body))[-1]["response"] if streamed else await respond(on, body)
        output = {"type": "function_call_output", "call_id": "c2", "output": "mine"}
        after = await respond(on, {**body, "input": [output], "previous_response_id": got["id"]})
        messages = up.requests[1].messages
    assert sorted(item["type"] for item in got["output"]) == ["function_call", "mcp_call"]
    assert words_of(after) == ["done"]
    assert [message["role"] for message in messages[-3:]] == ["assistant", "tool", "tool"]
    assert {each["id"] for each in messages[-3]["tool_calls"]} == {"c1", "c2"}
    assert {message["tool_call_id"]: message["content"] for message in messages[-2:]}["c2"] == "mine"


async def test_tool_that_ends_the_turn_fails_the_response(tmp_path: Path) -> None:
    said = stream(*words("wait"), d({"tool_calls": [{"index": 0, **call("c1", "stop", "{}")}]}), f("tool_calls"), DONE)
    async with (
        ScriptedUpstream(said) as up,
        serving(tmp_path, native_config(up.base_url, **OFFERED), plugins={"p": TOOL}) as on,
    ):
        events = await stream_of(on, {"input": "hi"})
    response = events[-1]["response"]
    assert (response["status"], response["error"]["message"]) == ("failed", "that is enough")
    assert [(item["type"], item["status"]) for item in response["output"]] == [
        ("message", "completed"),
        ("mcp_call", "failed"),
    ]


async def test_kept_answer_is_a_response_of_its_own(tmp_path: Path) -> None:
    config_of = {"models": {"m": {"backends": ["b1"], "retries": 0, "cache": {"ttl_s": 60}}}}
    async with (
        ScriptedUpstream(answer("ok", tokens=(3, 4))) as up,
        serving(tmp_path, native_config(up.base_url, **config_of)) as on,
    ):
        one, two = [await respond(on, {"input": "hi"}) for _ in range(2)]
        assert len(up.requests) == 1
    assert one["id"] != two["id"]
    assert one["usage"] == two["usage"]
    assert words_of(two) == ["ok"]


@asynccontextmanager
async def two_gateways(tmp_path: Path, base_url: str) -> AsyncIterator[tuple[Served, Served]]:
    """Two gateways over one database."""
    config = {**native_config(base_url), "storage": {"database": f"sqlite:///{tmp_path}/both.db"}}
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    async with serving(folders[0], config) as one, serving(folders[1], config) as two:
        yield one, two


@pytest.mark.parametrize("background", [False, True], ids=["waits", "background"])
async def test_response_is_followed_through_another_process(tmp_path: Path, background: bool) -> None:
    reply = stream(*words("hello"), Stall(), *words(" you"), f("stop"), DONE)
    async with ScriptedUpstream(reply) as up, two_gateways(tmp_path, up.base_url) as (one, two):
        asking = asyncio.create_task(stream_of(one, {"input": "hi", "background": background}))
        await up.stalled()
        async with asyncio.timeout(10):
            while not (ids := [*one.gateway.responding.making, *two.gateway.responding.making]):
                await asyncio.sleep(0.01)
        [response_id] = ids
        following = asyncio.create_task(resumed(two, response_id))
        _, _, live = await two.get(f"/v1/responses/{response_id}")
        up.release()
        mine, theirs = await asyncio.gather(asking, following)
        _, _, kept = await two.get(f"/v1/responses/{response_id}")
    assert live["status"] == "in_progress"
    assert mine == theirs
    assert kept == mine[-1]["response"]


async def test_silence_is_broken_by_comments_and_a_failure_behind_them_is_told(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(error(429, "slow down").held()) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        endpoint = on.gateway.app._hot["/v1/responses"]
        assert isinstance(endpoint, Responses)
        endpoint._silence_s = 0.05
        async with on.http.post(
            f"{on.url}/v1/responses", json={"model": "m", "input": "hi", "stream": True}
        ) as response:
            async with asyncio.timeout(10):
                first = await response.content.readuntil(b"\n\n")
            up.release()
            raw = await response.read()
    assert first == b": keep-alive\n\n"
    events = events_in(raw)
    assert_proper(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}


async def stop_request() -> None:
    """What a server does with requests it can wait no longer for."""
    requests = [task for task in asyncio.all_tasks() if "Cycle.run" in repr(task.get_coro())]
    assert len(requests) == 1
    requests[0].cancel()


async def test_gateway_that_stops_says_so_in_the_stream(tmp_path: Path) -> None:
    reply = stream(*words("hello"), Stall(), f("stop"), DONE)
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        body = {"model": "m", "input": "hi", "stream": True}
        async with on.http.post(f"{on.url}/v1/responses", json=body) as response:
            await response.content.readuntil(b"\n\n")
            await up.stalled()
            await stop_request()
            events = events_in(await response.read())
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "draining"


async def test_gateway_that_stops_answers_whoever_waits(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("x").held()) as up, serving(tmp_path, native_config(up.base_url)) as on:
        asking = asyncio.create_task(on.post("/v1/responses", {"model": "m", "input": "hi"}))
        await up.stalled()
        await stop_request()
        status, _, refused = await asking
        await up.aborted(timeout_s=5)
    assert (status, refused["error"]["code"]) == (503, "draining")


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_answer_that_cannot_be_kept_is_given_and_says_so(
    tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the database cannot be read or written")

    reply = stream(*words("ok"), f("stop"), DONE) if streamed else answer("ok")
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        monkeypatch.setattr(on.gateway.store.responses, "end" if streamed else "add", away)
        got = (await stream_of(on, {"input": "hi"}))[-1]["response"] if streamed else await respond(on, {"input": "hi"})
    assert words_of(got) == ["ok"]
    assert (got["status"], got["store"]) == ("completed", False)


async def test_stream_that_cannot_be_kept_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the database cannot be read or written")

    async with (
        ScriptedUpstream(then=stream(*words("ok"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        monkeypatch.setattr(on.gateway.store.responses, "add", away)
        status, _, refused = await on.post("/v1/responses", {"model": "m", "input": "hi", "stream": True})
        assert (status, refused["error"]["code"]) == (503, "store_unavailable")
        events = await stream_of(on, {"input": "hi", "store": False})
    assert events[-1]["type"] == "response.completed"


async def test_interleaved_calls_are_items_of_their_own(tmp_path: Path) -> None:
    pieces = [
        d(
            {
                "role": "assistant",
                "tool_calls": [{"index": 0, **call("a", "f", "")}, {"index": 1, **call("b", "f", "")}],
            }
        ),
        d({"tool_calls": [{"index": 1, "function": {"arguments": '{"n":'}}]}),
        d({"tool_calls": [{"index": 0, "function": {"arguments": '{"n":'}}]}),
        d(
            {
                "tool_calls": [
                    {"index": 1, "function": {"arguments": "2}"}},
                    {"index": 0, "function": {"arguments": "1}"}},
                ]
            }
        ),
        chunk(choices=[]),
    ]
    async with (
        ScriptedUpstream(stream(*pieces, f("tool_calls"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        events = await stream_of(on, {"input": "hi", "tools": [{"type": "function", "name": "f"}]})
    output = events[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"]) for item in output] == [("a", '{"n":1}'), ("b", '{"n":2}')]


async def test_traces_name_the_response(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        got = await respond(on, {"input": "hi"})
        trace = await on.trace(got["id"])
    assert trace["response_id"] == got["id"]
    assert trace["events"][0]["data"]["endpoint"] == "/v1/responses"


@pytest.mark.parametrize("summary", [False, True], ids=["raw", "summary"])
async def test_events_up_to_any_moment_say_what_the_items_were_then(tmp_path: Path, summary: bool) -> None:
    """Who ends a response without its maker, or goes on with it, has nothing but the events."""
    calls = [
        d({"tool_calls": [{"index": 0, **call("c1", "mine", '{"a":')}]}),
        d({"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}),
    ]
    thought = [d({"role": "assistant", "reasoning_content": "hm, "}), d({"reasoning_content": "well"})]
    said = [*thought, *words("so it is")[1:], *calls, f("tool_calls"), DONE]
    reply = stream(*(step for each in said for step in (each, Pause(0.02))))
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    body: dict[str, Any] = {"input": "hi", "tools": [mine]} | ({"reasoning": {"summary": "auto"}} if summary else {})
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        events = await stream_of(on, body)
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    whole = events[-1]["response"]["output"]
    assert items_of(frames) == whole
    for count in range(len(frames)):
        for item, last in zip(items_of(frames[:count]), whole, strict=False):
            if not item.pop("untold", False):
                assert item == last
                continue
            assert item["status"] == "incomplete"
            assert last.get("arguments", "").startswith(item.get("arguments", ""))
            parts = [*item.get("summary", ()), *item.get("content", ())]
            there = [*last.get("summary", ()), *last.get("content", ())]
            for part, then in zip(parts, there, strict=False):
                assert then["text"].startswith(part["text"])
                assert set(part) <= set(then)
