"""`x-gateway-events: tools`: who asks for it sees the gateway's own calls in the stream, and nobody else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.chat.sse import SseParser
from tests.serving import native_config, serving
from tests.upstream import DONE, ScriptedUpstream, answer, call, d, f, stream, tc

HI: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
ROUTE = {"clock": {"model": "m", "keywords": ["hi"], "tools": ["hour"]}}
PLUGIN = """
from gateway.tools import tool

@tool()
async def hour(zone: str) -> str:
    \"\"\"Tell the hour.

    zone: where
    \"\"\"
    return "10:00"

def register(registry):
    registry.add(hour)
"""
DOOR = {"type": "function", "function": {"name": "door", "parameters": {"type": "object"}}}
FIRST = [
    d({"role": "assistant", "content": "Let me see. "}),
    tc(0, id="a", name="hour", arguments='{"zo'),
    tc(1, id="b", name="door", arguments="{}"),
    tc(0, arguments='ne":"UTC"}'),
    f("tool_calls"),
    DONE,
]
SECOND = [d({"role": "assistant", "content": "It is 10."}), f("stop"), DONE]


def chunks_of(raw: bytes) -> list[dict[str, Any]]:
    payloads = SseParser().feed(raw)
    assert payloads[-1] == b"[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


async def test_registry_calls_are_shown_to_who_asks_for_them(tmp_path: Path) -> None:
    rounds = [stream(*(frame for frame in FIRST if "door" not in str(frame.payload))), stream(*SECOND)]
    async with (
        ScriptedUpstream(*rounds) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"hour": PLUGIN}) as on,
    ):
        chunks = chunks_of(await on.raw_stream(HI, x_gateway_events="tools"))
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        shown = [chunk["gateway"] for chunk in chunks if "gateway" in chunk]
        assert all(chunk["choices"] == [] for chunk in chunks if "gateway" in chunk)
        assert shown == [
            {"type": "tool.delta", "round": 1, "index": 0, "id": "a", "name": "hour", "arguments": '{"zo'},
            {"type": "tool.delta", "round": 1, "index": 0, "arguments": 'ne":"UTC"}'},
            {
                "type": "tool.finished",
                "round": 1,
                "id": "a",
                "name": "hour",
                "ok": True,
                "content": '{"ok":true,"result":"10:00"}',
            },
        ]
        said = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        assert said == "Let me see. It is 10."


async def test_registry_calls_are_hidden_from_everybody_else(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*FIRST)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"hour": PLUGIN}) as on,
    ):
        raw = await on.raw_stream({**HI, "tools": [DOOR]})
        assert b"door" in raw
        assert b"hour" not in raw
        assert b"UTC" not in raw
        assert b'"gateway"' not in raw


async def test_client_s_calls_are_no_events(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*FIRST)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"hour": PLUGIN}) as on,
    ):
        chunks = chunks_of(await on.raw_stream({**HI, "tools": [DOOR]}, x_gateway_events="tools"))
        assert {chunk["gateway"].get("name", "hour") for chunk in chunks if "gateway" in chunk} == {"hour"}


async def test_sdk_reads_a_stream_with_shown_calls_as_any_other(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*FIRST)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"hour": PLUGIN}) as on,
        on.sdk(default_headers={"x-gateway-events": "tools"}) as sdk,
        sdk.chat.completions.stream(
            model="auto",
            messages=[{"role": "user", "content": "hi"}],
            tools=[{"type": "function", "function": {"name": "door", "parameters": {"type": "object"}}}],
        ) as got,
    ):
        async for _ in got:
            pass
        message = (await got.get_final_completion()).choices[0].message
        assert [each.function.name for each in message.tool_calls or ()] == ["door"]


@pytest.mark.parametrize("value", ["all", ""])
async def test_other_events_are_refused(tmp_path: Path, value: str) -> None:
    async with ScriptedUpstream() as upstream, serving(tmp_path, native_config(upstream.base_url)) as on:
        status, _, body = await on.post("/v1/chat/completions", HI, x_gateway_events=value)
        assert (status, body["error"]["param"]) == (400, "x-gateway-events")


async def test_whole_answer_is_the_same_with_and_without(tmp_path: Path) -> None:
    script = [answer(calls=[call("a", "hour", '{"zone":"UTC"}')]), answer("It is 10.")] * 2
    async with (
        ScriptedUpstream(*script) as upstream,
        serving(tmp_path, native_config(upstream.base_url), ROUTE, {"hour": PLUGIN}) as on,
    ):
        choices = [
            (await on.post("/v1/chat/completions", HI, **headers))[2]["choices"]
            for headers in ({}, {"x_gateway_events": "tools"})
        ]
        assert choices[0] == choices[1]
