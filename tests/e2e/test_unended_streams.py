"""Streams that end by their end mark alone, without a finish reason: nothing of them is lost, and nothing stays open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving import NOW, Served, native_config, serving
from tests.upstream import DONE, Frame, Pause, Reply, Reset, ScriptedUpstream, chunk, d, stream, tc, u

TOOL = {"type": "function", "function": {"name": "theirs", "parameters": {"type": "object", "properties": {}}}}
DIALECTS = pytest.mark.parametrize("dialect", ["openai", "compatible"])


async def asked(gateway: Served, text: str = "hi", **more: Any) -> list[dict[str, Any]]:
    """The choices of the stream's chunks."""
    raw = await gateway.raw_stream({"model": "m", "messages": [{"role": "user", "content": text}], **more})
    *parts, last = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part]
    assert last == b"[DONE]"
    events = [json.loads(part) for part in parts]
    assert not any("error" in event for event in events), raw
    return [choice for event in events for choice in event["choices"]]


def text_of(choices: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def ends_of(choices: list[dict[str, Any]]) -> list[str]:
    return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


def calls_of(choices: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Names and arguments of the calls, put together."""
    named: dict[int, str] = {}
    said: dict[int, str] = {}
    for choice in choices:
        for piece in choice["delta"].get("tool_calls") or ():
            function = piece.get("function") or {}
            named[piece["index"]] = named.get(piece["index"], "") + (function.get("name") or "")
            said[piece["index"]] = said.get(piece["index"], "") + (function.get("arguments") or "")
    return [(named[index], said[index]) for index in named]


def unended(*frames: Frame) -> Reply:
    return stream(d({"role": "assistant"}), *frames, u(3, 2), DONE)


@DIALECTS
@pytest.mark.parametrize("tools", [["now"], []], ids=["tools of ours", "theirs alone"])
async def test_call_without_arguments_is_said_as_with_a_finish(tmp_path: Path, dialect: str, tools: list[str]) -> None:
    async with ScriptedUpstream(unended(tc(0, id="a", name="theirs", arguments=""))) as upstream:
        models = {"m": {"backends": ["b1"], "retries": 0, "tools": tools}}
        config = native_config(upstream.base_url, backend={"dialect": dialect}, models=models)
        async with serving(tmp_path, config, plugins={"now": NOW}) as gateway:
            choices = await asked(gateway, tools=[TOOL])
    assert ends_of(choices) == ["tool_calls"]
    # Of an exact server alone, what it wrote passes as it is.
    assert calls_of(choices) == [("theirs", "" if dialect == "openai" and not tools else "{}")]


@DIALECTS
async def test_call_that_is_written_as_text_is_read(tmp_path: Path, dialect: str) -> None:
    said = [d({"content": part}) for part in ("Action: the", 'irs\nAction Input: {"a"', ": 1}")]
    async with ScriptedUpstream(unended(*said)) as upstream:
        backend = {"dialect": dialect, "capabilities": {"tools": False}}
        async with serving(tmp_path, native_config(upstream.base_url, backend=backend)) as gateway:
            choices = await asked(gateway, tools=[TOOL])
    assert calls_of(choices) == [("theirs", '{"a": 1}')]
    assert (text_of(choices), ends_of(choices)) == ("", ["tool_calls"])


@DIALECTS
async def test_text_that_might_have_become_a_placeholder_is_given_back(tmp_path: Path, dialect: str) -> None:
    async with ScriptedUpstream(unended(d({"content": "see "}), d({"content": "list[["}))) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect}, privacy={"mode": "mask"})
        async with serving(tmp_path, config) as gateway:
            choices = await asked(gateway, "write to sam.roe@example.org")
    assert (text_of(choices), ends_of(choices)) == ("see list[[", ["stop"])


@DIALECTS
@pytest.mark.parametrize("given", [[0], [0, 1]], ids=["one", "both"])
async def test_of_several_answers_those_that_came_are_ended(tmp_path: Path, dialect: str, given: list[int]) -> None:
    """Some servers give one answer, whatever was asked for."""
    last = chunk(choices=[{"index": given[-1], "delta": {"content": "b"}, "finish_reason": "length"}])
    frames = [d({"content": "a"}, index=index) for index in given]
    async with ScriptedUpstream(unended(*frames, last)) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect})
        async with serving(tmp_path, config) as gateway:
            choices = await asked(gateway, n=2)
    assert {choice["index"] for choice in choices} == set(given)
    assert (given[-1], "length") in [(choice["index"], choice["finish_reason"]) for choice in choices]
    assert len(ends_of(choices)) == len(given)


@DIALECTS
async def test_end_that_was_missing_is_as_any_other(tmp_path: Path, dialect: str) -> None:
    async with ScriptedUpstream(unended(d({"content": "a"}))) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect})
        async with serving(tmp_path, config) as gateway:
            *_, end = await asked(gateway)
    assert end == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}


@DIALECTS
async def test_what_breaks_behind_the_end_mark_is_nobodys_failure(tmp_path: Path, dialect: str) -> None:
    broken = stream(d({"role": "assistant"}), d({"content": "whole"}), DONE, Pause(0.01), Reset())
    async with ScriptedUpstream(broken) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect})
        async with serving(tmp_path, config) as gateway:
            choices = await asked(gateway)
    assert (text_of(choices), ends_of(choices)) == ("whole", ["stop"])
