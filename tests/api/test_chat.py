from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.backends.openai_schemas import check_answer, check_chunk
from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    Frame,
    Reset,
    ScriptedUpstream,
    Stall,
    answer,
    call,
    d,
    error,
    f,
    stream,
    tc,
    u,
    words,
)

HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
PLUGIN = """
from gateway.tools import tool

@tool()
async def now() -> str:
    \"\"\"Say what time it is.\"\"\"
    return "10:00"

def register(registry):
    registry.add(now)
"""
ROUTE = {"clock": {"model": "m", "keywords": ["hi"], "tools": ["now"]}}


def events(raw: bytes) -> list[Any]:
    """Every event of a stream; the framing is what the gateway always writes."""
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    assert all(block.startswith(("data: ", ": ")) for block in blocks)
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(each) for each in data[:-1]]


async def test_plain_answer_carries_the_gateway_s_names_and_headers(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(answer("hello", tokens=(3, 4))) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
    ):
        status, headers, body = await on.post(PATH, {**HI, "x_unknown": {"a": 1}})
        assert status == 200
        check_answer(json.dumps(body).encode())
        trace = headers["x-gateway-trace"]
        assert (body["model"], body["id"], headers["x-request-id"]) == ("m", f"chatcmpl-{trace}", f"req_{trace}")
        assert body["choices"][0]["message"]["content"] == "hello"
        assert body["usage"]["total_tokens"] == 7
        named = {name: headers[f"x-gateway-{name}"] for name in ("route", "strategy", "model", "backend")}
        assert named == {"route": "-", "strategy": "explicit", "model": "m", "backend": "b1"}
        assert headers["x-gateway-version"] == str(on.gateway.versions.current.version)
        assert "x-gateway-score" not in headers
        assert upstream.requests[0].json["x_unknown"] == {"a": 1}


async def test_path_without_v1_works_too(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(then=answer("x")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
    ):
        assert (await on.post("/chat/completions", HI))[0] == 200


@pytest.mark.parametrize("usage", [None, False, True])
async def test_stream_is_one_answer_with_usage_where_asked_B070(tmp_path: Path, usage: bool | None) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello big world"), f("stop"), u(3, 4), DONE)) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
    ):
        body = HI if usage is None else {**HI, "stream_options": {"include_usage": usage}}
        chunks = events(await on.raw_stream(body))
    assert len({(each["id"], each["created"], each["model"]) for each in chunks}) == 1
    assert chunks[0]["model"] == "m"
    for each in chunks:
        check_chunk(json.dumps(each).encode())
    tail = [each for each in chunks if not each["choices"]]
    assert [each["usage"]["total_tokens"] for each in tail] == ([7] if usage else [])
    assert not tail or chunks[-1] is tail[0]
    assert not any(each.get("usage") for each in chunks if each["choices"])


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_tool_rounds_are_one_answer_to_an_sdk_B076(tmp_path: Path, streamed: bool) -> None:
    first = [
        d({"role": "assistant", "content": "Checking… "}),
        tc(0, id="a", name="now", arguments="{}"),
        f("tool_calls"),
        u(10, 5),
        DONE,
    ]
    second = [d({"role": "assistant", "content": "It is 10."}), f("stop"), u(30, 6), DONE]
    whole = [answer("Checking… ", calls=[call("a", "now", "{}")], tokens=(10, 5)), answer("It is 10.", tokens=(30, 6))]
    script = [stream(first), stream(second)] if streamed else whole
    async with ScriptedUpstream(*script) as upstream:
        config = native_config(upstream.base_url)
        async with serving(tmp_path, config, ROUTE, {"clock": PLUGIN}) as on, on.sdk() as sdk:
            if streamed:
                text, usage = "", None
                async with sdk.chat.completions.stream(
                    model="auto", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
                ) as got:
                    async for event in got:
                        if event.type == "content.delta":
                            text += event.delta
                    usage = (await got.get_final_completion()).usage
            else:
                made = await sdk.chat.completions.create(model="auto", messages=[{"role": "user", "content": "hi"}])
                text, usage = made.choices[0].message.content or "", made.usage
                assert made.model == "m"
            assert text == "Checking… It is 10."
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (40, 11, 51)
            assert json.loads(upstream.requests[1].messages[-1]["content"])["result"] == "10:00"


async def told(chunks: Any) -> str:
    """What an SDK said before it raised; fails where it did not."""
    text = ""
    try:
        async for each in chunks:
            text += each.choices[0].delta.content or ""
    except openai.APIError:
        return text
    raise AssertionError("no error")


async def test_failure_in_mid_stream_reaches_the_sdk_as_an_error_B068(tmp_path: Path) -> None:
    broken = [d({"role": "assistant", "content": "Hel"}), d({"content": "lo"})]
    frame = Frame({"error": {"message": "overloaded", "type": "server_error", "code": None}})
    async with (
        ScriptedUpstream(stream(*broken, frame), stream(*broken, Reset()), stream(*broken, frame)) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
        on.sdk() as sdk,
    ):
        for _ in range(2):
            seen = await sdk.chat.completions.create(**HI, stream=True)
            assert await told(seen) == "Hello"
        raw = await on.raw_stream(HI)
        chunks = events(raw)
        assert chunks[-1]["error"]["message"] == "overloaded"
        assert not any(choice["finish_reason"] for each in chunks[:-1] for choice in each["choices"])
        assert b"Traceback" not in raw


async def test_failure_before_content_is_a_plain_http_error(tmp_path: Path) -> None:
    script = [
        error(429, "slow down", headers={"retry-after": "17"}),
        stream(d({"role": "assistant", "content": ""}), Frame({"error": "no"})),
    ]
    async with ScriptedUpstream(*script) as upstream, serving(tmp_path, native_config(upstream.base_url)) as on:
        status, headers, body = await on.post(PATH, {**HI, "stream": True})
        assert (status, headers["retry-after"], body["error"]["code"]) == (429, "17", "rate_limit_exceeded")
        assert headers["content-type"] == "application/json"
        status, headers, body = await on.post(PATH, {**HI, "stream": True})
        assert (status, body["error"]["message"]) == (502, "no")


async def test_defect_in_mid_stream_ends_as_an_error_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello"), f("stop"), DONE)) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
    ):

        async def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("secret inside")

        monkeypatch.setattr(on.gateway.turns._loop._ending, "end", broken)
        raw = await on.raw_stream(HI)
        assert events(raw)[-1]["error"]["code"] == "internal_error"
        assert b"secret" not in raw


async def test_defect_before_an_answer_is_a_500_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, native_config("http://127.0.0.1:9/v1")) as on:

        async def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("secret inside")

        monkeypatch.setattr(on.gateway.turns, "answer", broken)
        status, headers, body = await on.post(PATH, HI)
        assert (status, body["error"]["code"]) == (500, "internal_error")
        assert "secret" not in json.dumps(body)
        assert headers["x-gateway-trace"]


async def test_silent_stream_gets_comments_until_its_answer_comes(tmp_path: Path) -> None:
    reply = stream(Stall("go"), *words("late"), f("stop"), DONE)
    async with ScriptedUpstream(reply) as upstream, serving(tmp_path, native_config(upstream.base_url)) as on:
        endpoint: Any = next(route for route in on.gateway.app.routes if getattr(route, "path", "") == PATH)
        endpoint.app._silence_s = 0.02
        async with on.http.post(on.url + PATH, json={**HI, "stream": True}) as response, asyncio.timeout(5):
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            assert response.headers["x-accel-buffering"] == "no"
            upstream.release("go")
            chunks = events(await response.read())
        assert "".join(choice["delta"].get("content") or "" for each in chunks for choice in each["choices"]) == "late"


async def test_second_name_of_a_model_is_shown_and_the_backend_s_never(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("x"), stream(*words("x"), f("stop"), DONE)) as upstream:
        config = native_config(
            upstream.base_url, aliases={"Qwen/Coder-Big": "m"}, backend={"model": "Qwen/Coder-Big-bf16"}
        )
        async with serving(tmp_path, config) as on:
            body = {**HI, "model": "Qwen/Coder-Big"}
            assert (await on.post(PATH, body))[2]["model"] == "Qwen/Coder-Big"
            assert {each["model"] for each in events(await on.raw_stream(body))} == {"Qwen/Coder-Big"}
            status, _, refused = await on.post(PATH, {**HI, "model": "Qwen/Coder-Big-bf16"})
            assert (status, refused["error"]["code"]) == (404, "model_not_found")


async def status_of(on: Served, **request: Any) -> tuple[int, dict[str, Any]]:
    async with on.http.post(on.url + PATH, **request) as response:
        body: dict[str, Any] = await response.json()
        assert response.headers["x-gateway-trace"]
        return response.status, body["error"]


async def test_body_has_a_limit_and_must_be_readable(tmp_path: Path) -> None:
    config = native_config("http://127.0.0.1:9/v1", server={"body_limit_mb": 0.01})
    async with serving(tmp_path, config) as on:
        large = b'{"x":"' + b"x" * 20_000 + b'"}'

        async def pieces() -> Any:
            for start in range(0, len(large), 1000):
                yield large[start : start + 1000]

        for data in (large, pieces()):
            status, refused = await status_of(on, data=data)
            assert (status, refused["code"]) == (413, "body_too_large")
        status, refused = await status_of(on, data=b"x", headers={"content-encoding": "gzip"})
        assert (status, refused["code"]) == (415, "unsupported_encoding")
        status, refused = await status_of(on, data=b"{")
        assert (status, refused["type"]) == (400, "invalid_request_error")
        status, refused = await status_of(
            on, json={"model": "m", "messages": [{"role": "user", "content": [{"type": "text"}]}]}
        )
        assert (status, refused["param"]) == (400, "messages[0].content[0].text")


async def test_answer_hook_sees_a_streamed_answer_whole_and_changes_it(tmp_path: Path) -> None:
    hook = """
from gateway.chat.blocks import Message, Text

async def on_answer(message, principal):
    return Message("assistant", (Text(message.text.replace("555", "***")), *message.tool_calls))

def register(registry):
    pass
"""
    made = [
        *words("call 5"),
        d({"content": "55"}),
        tc(0, id="a", name="mine", arguments="{}"),
        f("tool_calls"),
        u(1, 1),
        DONE,
    ]
    tools = [{"type": "function", "function": {"name": "mine"}}]
    script = [stream(made), answer("call 555", calls=[call("a", "mine", "{}")])]
    async with (
        ScriptedUpstream(then=lambda r: script[not r.json.get("stream")]) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"guard": hook}) as on,
    ):
        chunks = events(await on.raw_stream({**HI, "tools": tools}))
        choices = [choice for each in chunks for choice in each["choices"]]
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == "call ***"
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
        assert sum("role" in choice["delta"] for choice in choices) == 1
        for each in chunks:
            check_chunk(json.dumps(each).encode())
        whole = (await on.post(PATH, {**HI, "tools": tools}))[2]
        assert whole["choices"][0]["message"]["content"] == "call ***"
        assert len(whole["choices"][0]["message"]["tool_calls"]) == 1
