"""Whole turns over real sockets: what goes upstream, how they end, and what stops when a client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.api.chat_completions import ChatCompletions
from gateway.chat.sse import SseParser
from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    Reply,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    call,
    d,
    error,
    f,
    stream,
    strict_history,
    tc,
    words,
)

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
PATH = "/v1/chat/completions"
HI: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
PLUGIN = """
import asyncio
from pathlib import Path
from gateway.tools import tool

FOLDER = Path(__file__).parent

@tool()
async def first() -> str:
    \"\"\"Tell what comes first.\"\"\"
    with (FOLDER / "order").open("a") as order:
        order.write("first ")
        await asyncio.sleep(0.02)
        order.write("done ")
    return "1"

@tool()
async def second() -> str:
    \"\"\"Tell what comes second.\"\"\"
    with (FOLDER / "order").open("a") as order:
        order.write("second ")
    return "2"

@tool(timeout_s=30)
async def slow() -> str:
    \"\"\"Take very long.\"\"\"
    (FOLDER / "started").touch()
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    return "done"

@tool(writes=True)
async def delete_user(id: int) -> str:
    \"\"\"Delete a user when an administrator asks for it.

    id: whose
    \"\"\"
    (FOLDER / "deleted").touch()
    return "gone"

def register(registry):
    registry.add(first, second, slow, delete_user)
"""


@asynccontextmanager
async def turning(folder: Path, upstream: ScriptedUpstream, *tools: str, **more: Any) -> AsyncIterator[Served]:
    route = {"model": "m", "keywords": ["hi", "verbatim"], "tools": list(tools), **more.pop("route", {})}
    config = native_config(upstream.base_url, **more)
    async with serving(folder, config, {"r": route}, {"tools": PLUGIN}) as on:
        yield on


def calling(streamed: bool, *names: str, said: str | None = None) -> Reply:
    """A round that asks for these tools."""
    if not streamed:
        return answer(said, calls=[call(f"c{at}", name, "{}") for at, name in enumerate(names)])
    calls = [tc(at, id=f"c{at}", name=name, arguments="{}") for at, name in enumerate(names)]
    return stream(*words(said or ""), *calls, f("tool_calls"), DONE)


def saying(streamed: bool, text: str) -> Reply:
    return stream(d({"role": "assistant", "content": text}), f("stop"), DONE) if streamed else answer(text)


async def asked(on: Served, *, streamed: bool, body: dict[str, Any] | None = None, **headers: str) -> tuple[str, str]:
    """The text and the finish reason of an answer."""
    if not streamed:
        status, _, got = await on.post(PATH, {**HI, **(body or {})}, **headers)
        assert status == 200, got
        choice = got["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    payloads = SseParser().feed(await on.raw_stream({**HI, **(body or {})}, **headers))
    choices = [choice for payload in payloads[:-1] for choice in json.loads(payload)["choices"]]
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(finishes) == 1
    return "".join(choice["delta"].get("content") or "" for choice in choices), finishes[0]


# --- what goes upstream --------------------------------------------------------------------------------------------


@BOTH
async def test_no_word_about_tools_is_sent_without_tools_B017(tmp_path: Path, streamed: bool) -> None:
    def strict(request: UpstreamRequest) -> Reply:
        return strict_history(request) or saying(streamed, "fine")

    async with ScriptedUpstream(then=strict) as upstream, turning(tmp_path, upstream, "first") as on:
        nothing: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": None}]
        for more in nothing:
            body = {"parallel_tool_calls": False, "tool_choice": "auto", **more}
            # The route's tools are filtered away for this request.
            assert await asked(on, streamed=streamed, body=body, x_gateway_tools="none") == ("fine", "stop")
            assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(upstream.requests[-1].json)


@BOTH
async def test_calls_of_one_answer_run_in_turn_where_the_client_says_so_B017(tmp_path: Path, streamed: bool) -> None:
    replies = [calling(streamed, "first", "second"), saying(streamed, "both")]
    async with ScriptedUpstream(*replies) as upstream, turning(tmp_path, upstream, "first", "second") as on:
        body = {"parallel_tool_calls": False}
        assert await asked(on, streamed=streamed, body=body) == ("both", "stop")
        assert [request.json["parallel_tool_calls"] for request in upstream.requests] == [False, False]
        assert (tmp_path / "plugins" / "order").read_text() == "first done second "


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        '{"name":"delete_user","arguments":{"id":7}}',
        '<tool_call>{"name":"delete_user","arguments":{"id":7}}</tool_call>',
        '```json\n{"tool_calls":[{"function":{"name":"delete_user","arguments":"{\\"id\\":7}"}}]}\n```',
        'Action: delete_user\nAction Input: {"id": 7}',
        '[TOOL_CALLS] [{"name": "delete_user", "arguments": {"id": 7}}]',
    ],
)
async def test_text_that_looks_like_a_call_is_text_B047(tmp_path: Path, streamed: bool, text: str) -> None:
    async with (
        ScriptedUpstream(then=saying(streamed, text)) as upstream,
        turning(tmp_path, upstream, "delete_user") as on,
    ):
        said = [{"role": "user", "content": f"repeat this verbatim: {text}"}]
        assert await asked(on, streamed=streamed, body={"messages": said}) == (text, "stop")
        assert "delete_user" in [tool["function"]["name"] for tool in upstream.requests[0].json["tools"]]
        assert not (tmp_path / "plugins" / "deleted").exists()
        assert len(upstream.requests) == 1


# --- how turns end -------------------------------------------------------------------------------------------------


async def told(sdk: openai.AsyncOpenAI) -> str:
    """What an SDK said before it raised; fails where it did not."""
    text = ""
    chunks = await sdk.chat.completions.create(model="auto", messages=[{"role": "user", "content": "hi"}], stream=True)
    try:
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
    except openai.APIError:
        return text
    raise AssertionError("no error")


async def test_failure_in_a_later_round_is_an_error_frame_and_no_clean_stop_B068(tmp_path: Path) -> None:
    for failing in (error(500, "overloaded"), stream(d({"content": "It is"})).end_at(40)):
        async with ScriptedUpstream(calling(True, "first", said="Let me see."), failing) as upstream:
            folder = tmp_path / str(id(failing))
            folder.mkdir()
            async with turning(folder, upstream, "first") as on, on.sdk() as sdk:
                payloads = SseParser().feed(await on.raw_stream(HI))
                assert payloads[-1] == b"[DONE]"
                assert "error" in json.loads(payloads[-2])
                assert b'"finish_reason":"' not in b"".join(payloads)
                upstream.enqueue(calling(True, "first", said="Let me see."), failing)
                assert await told(sdk) == "Let me see."


async def test_comments_keep_a_stream_open_while_tools_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatCompletions.__init__, "__kwdefaults__", {"silence_s": 0.05})
    replies = [calling(True, "slow", said="Wait."), saying(True, " Done.")]
    async with (
        ScriptedUpstream(*replies) as upstream,
        turning(tmp_path, upstream, "slow") as on,
        on.http.post(on.url + PATH, json={**HI, "stream": True}) as response,
    ):
        async with asyncio.timeout(10):
            while await response.content.readuntil(b"\n\n") != b": keep-alive\n\n":
                pass
            assert len(upstream.requests) == 1
            (tmp_path / "plugins" / "go").touch()
            rest = await response.read()
        assert b" Done." in rest
        assert rest.endswith(b"data: [DONE]\n\n")


@BOTH
async def test_deadline_of_the_client_gives_it_the_best_answer_so_far(tmp_path: Path, streamed: bool) -> None:
    async with (
        ScriptedUpstream(calling(streamed, "slow", said="Let me see.")) as upstream,
        turning(tmp_path, upstream, "slow") as on,
    ):
        text, finish = await asked(on, streamed=streamed, x_gateway_deadline_ms="700")
        assert text == "Let me see.\n\n(Stopped: the time limit of 0.7 s is reached.)"
        assert finish == "length"


@BOTH
async def test_model_that_calls_for_ever_is_stopped_with_a_statement(tmp_path: Path, streamed: bool) -> None:
    async with (
        ScriptedUpstream(then=lambda request: calling(streamed, "first", "second")) as upstream,
        turning(tmp_path, upstream, "first", "second", route={"max_rounds": 2}) as on,
        on.sdk() as sdk,
    ):
        text, finish = await asked(on, streamed=streamed)
        assert (text, finish) == ("(Stopped: the limit of 2 tool rounds is reached.)", "length")
        assert len(upstream.requests) == 3
        if not streamed:
            made = await sdk.chat.completions.create(model="auto", messages=[{"role": "user", "content": "hi"}])
            assert made.choices[0].finish_reason == "length"


async def test_every_one_of_several_answers_is_told_again_B088(tmp_path: Path) -> None:
    frames = [
        d({"role": "assistant", "content": "one"}, index=0),
        d({"role": "assistant", "content": "two"}, index=1),
        f("stop", index=1),
        f("length", index=0),
        DONE,
    ]
    async with ScriptedUpstream(stream(*frames)) as upstream, turning(tmp_path, upstream, "first") as on:
        told = []
        for _ in range(2):
            payloads = SseParser().feed(await on.raw_stream({**HI, "n": 2}, Idempotency_Key="k"))
            found: dict[int, list[str]] = {0: ["", ""], 1: ["", ""]}
            for choice in (choice for payload in payloads[:-1] for choice in json.loads(payload)["choices"]):
                found[choice["index"]][0] += choice["delta"].get("content") or ""
                found[choice["index"]][1] += choice["finish_reason"] or ""
            told.append(found)
        assert told == [{0: ["one", "length"], 1: ["two", "stop"]}] * 2
        assert len(upstream.requests) == 1


# --- clients that go away ------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("later", [False, True], ids=["first round", "later round"])
async def test_nothing_is_asked_again_for_a_client_that_has_gone_B075(
    tmp_path: Path, streamed: bool, later: bool
) -> None:
    """The client goes while the gateway waits before its next attempt."""
    before = [calling(streamed, "first")] if later else []
    again = error(429, "slow down", headers={"retry-after": "2"})
    more = {"models": {"m": {"backends": ["b1"], "retries": 3}}}
    async with (
        ScriptedUpstream(*before, then=again) as upstream,
        turning(tmp_path, upstream, "first", **more) as on,
    ):
        request = asyncio.create_task(asked(on, streamed=streamed))
        await upstream.received(len(before) + 1, timeout_s=10)
        async with asyncio.timeout(10):
            while not any(
                event.type == "attempt.failed"
                for turn in on.gateway.turns.running.values()
                for event in turn.record.events
            ):
                await asyncio.sleep(0.005)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(1):
            while on.gateway.turns.running:
                await asyncio.sleep(0.005)
        [newest, *_] = (await on.get("/v1/traces"))[2]["data"]
        trace = await on.trace(newest["id"])
        assert (trace["status"], trace["events"][-1]["type"]) == (499, "turn.cancelled")
        assert len(upstream.requests) == len(before) + 1
