"""The OpenAI SDK for Python, unmodified: against the shipped gateway, and through a gateway to a scripted upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.e2e.program import Program
from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, UpstreamRequest, answer, chunk, d, error, f, stream, u, words

QUESTION = "what is 12.5% of 18,640?"
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


def says(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def client(shipped: Program) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{shipped.url}/v1", api_key="any", max_retries=0) as made:
        yield made


# --- The shipped gateway -------------------------------------------------------------------------------------------


async def test_chat_is_answered_by_a_tool_and_typed(client: openai.AsyncOpenAI) -> None:
    got = await client.chat.completions.create(model="auto", messages=says(QUESTION))
    [choice] = got.choices
    assert "2330" in (choice.message.content or "")
    assert (choice.finish_reason, choice.message.role, choice.message.tool_calls) == ("stop", "assistant", None)
    assert got.model == "demo"
    assert got.usage is not None
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens > 0


def test_synchronous_client_gets_the_same_answers(shipped: Program) -> None:
    with openai.OpenAI(base_url=f"{shipped.url}/v1", api_key="any", max_retries=0) as client:
        whole = client.chat.completions.create(model="auto", messages=says(QUESTION)).choices[0].message.content
        pieces = client.chat.completions.create(model="auto", messages=says(QUESTION), stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole
        assert "auto" in [model.id for model in client.models.list()]


async def test_stream_needs_no_guard_and_joins_to_the_plain_answer(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="auto", messages=says(QUESTION))
    chunks = [c async for c in await client.chat.completions.create(model="auto", messages=says(QUESTION), stream=True)]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert len(chunks) > 10
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert [c.choices[0].delta.role for c in chunks if c.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert all(c.usage is None for c in chunks)


async def test_usage_comes_once_and_last_when_asked_for(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="auto", messages=says(QUESTION))
    asked = await client.chat.completions.create(
        model="auto", messages=says(QUESTION), stream=True, stream_options={"include_usage": True}
    )
    chunks = [c async for c in asked]
    assert [bool(c.choices) for c in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])


async def test_typed_stream_helper_accumulates_the_answer(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="auto", messages=says(QUESTION)) as events:
        deltas = [event.delta async for event in events if event.type == "content.delta"]
        final = await events.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert "2330" in "".join(deltas)


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_tool_makes_its_round_trip(client: openai.AsyncOpenAI, *, streamed: bool) -> None:
    messages = says("what is the weather in Rome?")
    if streamed:
        async with client.chat.completions.stream(model="auto", messages=messages, tools=[WEATHER]) as events:
            done = [e async for e in events if e.type == "tool_calls.function.arguments.done"]
            first = await events.get_final_completion()
        assert [event.name for event in done] == ["get_weather"]
        message: Any = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
    else:
        plain = await client.chat.completions.create(model="auto", messages=messages, tools=[WEATHER])
        message = plain.choices[0].message
        assert plain.choices[0].finish_reason == "tool_calls"
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    # Sent back as the SDK itself writes it, null fields and all.
    messages.append(message.model_dump(exclude={"parsed"}))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps({"city": "Rome", "degrees": 23})})
    last = await client.chat.completions.create(model="auto", messages=messages, tools=[WEATHER])
    assert "23" in (last.choices[0].message.content or "")
    assert last.choices[0].finish_reason == "stop"


async def test_structured_answer_is_parsed_into_its_model(client: openai.AsyncOpenAI) -> None:
    class Place(BaseModel):
        city: str
        days: int

    parsed = await client.chat.completions.parse(
        model="demo", messages=says("a trip to Rome for 3 days"), response_format=Place
    )
    assert isinstance(parsed.choices[0].message.parsed, Place)


async def test_models_are_listed_and_retrieved(client: openai.AsyncOpenAI) -> None:
    models = {model.id: model async for model in client.models.list()}
    assert set(models) == {"auto", "demo"}
    assert await client.models.retrieve("demo") == models["demo"]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt-nobody")
    assert caught.value.code == "model_not_found"


async def test_content_parts_and_developer_role_are_understood(client: openai.AsyncOpenAI) -> None:
    got = await client.chat.completions.create(
        model="auto",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "text", "text": "7 * 8?"}]},
        ],
    )
    assert "56" in (got.choices[0].message.content or "")


async def test_headers_of_an_answer_are_reachable_through_the_raw_response(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="auto", messages=says(QUESTION))
    assert raw.headers["x-gateway-route"] == "calculate"
    assert raw.headers["x-gateway-strategy"] == "rule"
    assert raw.headers["x-gateway-model"] == "demo"
    assert raw.headers["x-gateway-backend"] == "demo"
    assert raw.headers["x-gateway-version"].startswith("1-")
    assert raw.headers["x-request-id"] == raw.request_id
    assert len(raw.headers["x-gateway-trace"]) == 32
    assert "x-gateway-score" not in raw.headers
    assert raw.parse().choices


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"extra_body": {"temperature": 0.5, "n": "two"}}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"tools": "hammer"}}, "tools"),
        ({"extra_body": {"stream_options": 7}}, "stream_options"),
    ],
)
async def test_bad_request_names_its_field(client: openai.AsyncOpenAI, changes: dict[str, Any], param: str) -> None:
    request: dict[str, Any] = {"model": "demo", "messages": says("hello"), **changes}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**request)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


async def test_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-nobody", messages=says("hello"))
    assert caught.value.code == "model_not_found"


# --- Through a gateway to a scripted upstream ----------------------------------------------------------------------


async def test_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    keys = {"static": {"app": {"key": "gw-app-1"}}}
    async with (
        ScriptedUpstream(answer("hello")) as upstream,
        serving(tmp_path, native_config(upstream.base_url, keys=keys)) as gateway,
    ):
        async with gateway.sdk("gw-wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.chat.completions.create(model="m", messages=says("x"))
        assert caught.value.code == "invalid_api_key"
        assert "gw-wrong" not in caught.value.message
        async with gateway.sdk("gw-app-1") as client:
            got = await client.chat.completions.create(model="m", messages=says("x"))
        assert got.choices[0].message.content == "hello"


@pytest.mark.parametrize("streamed", [False, True])
async def test_rate_limit_of_the_upstream_reaches_the_sdk_with_its_time(tmp_path: Path, *, streamed: bool) -> None:
    limit = error(429, "slow down", kind="tokens", code="rate_limit_exceeded", headers={"retry-after": "7"})
    async with ScriptedUpstream(limit) as upstream, serving(tmp_path, native_config(upstream.base_url)) as gateway:
        async with gateway.sdk() as client:
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="m", messages=says("x"), stream=streamed)
        assert caught.value.response.headers["retry-after"] == "7"
        assert caught.value.code == "rate_limit_exceeded"
        assert "slow down" in caught.value.message


@pytest.mark.parametrize(
    ("status", "expected", "seen"),
    [
        (400, openai.BadRequestError, 400),
        (422, openai.BadRequestError, 400),
        (500, openai.InternalServerError, 502),
        (503, openai.InternalServerError, 503),
    ],
)
async def test_failure_of_the_upstream_is_the_sdk_s_own_class(
    tmp_path: Path, status: int, expected: type[openai.APIStatusError], seen: int
) -> None:
    refusal = error(status, "no good", kind="invalid_request_error", param="temperature")
    async with ScriptedUpstream(refusal) as upstream, serving(tmp_path, native_config(upstream.base_url)) as gateway:
        async with gateway.sdk() as client:
            with pytest.raises(expected) as caught:
                await client.chat.completions.create(model="m", messages=says("x"))
        assert caught.value.status_code == seen
        if status == 400:
            assert caught.value.param == "temperature"


async def test_credentials_the_upstream_refuses_are_not_the_client_s(tmp_path: Path) -> None:
    refusal = error(401, "Incorrect API key sk-upstream-1 provided", code="invalid_api_key")
    config = {"backend": {"api_key": "sk-upstream-1"}}
    async with (
        ScriptedUpstream(refusal) as upstream,
        serving(tmp_path, native_config(upstream.base_url, **config)) as gateway,
        gateway.sdk() as client,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=says("x"))
    # A client that is told 401 throws its own key away, which is right.
    assert not isinstance(caught.value, openai.AuthenticationError)
    assert "sk-upstream-1" not in str(caught.value)


async def test_sdk_repeats_by_itself_what_a_retry_can_help(tmp_path: Path) -> None:
    limit = error(429, "slow down", headers={"retry-after-ms": "10"})
    async with (
        ScriptedUpstream(limit, answer("now")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
    ):
        async with gateway.sdk(max_retries=2) as client:
            got = await client.chat.completions.create(model="m", messages=says("x"))
        assert got.choices[0].message.content == "now"


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_unknown_fields_reach_the_upstream_untouched(tmp_path: Path, dialect: str, *, streamed: bool) -> None:
    extra = {
        "top_k": 40,
        "vendor_option": {"deep": [1, 2.50, None, "ü"], "empty": {}},
        "frequency_penalty": 0.0,
        "seed": 12345678901234567890,
        "grammar": 'root ::= "a"',
    }
    reply = stream(words("ok"), f("stop"), u(1, 1), DONE) if streamed else answer("ok")
    async with ScriptedUpstream(reply) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect})
        async with serving(tmp_path, config) as gateway, gateway.sdk() as client:
            got = await client.chat.completions.create(
                model="m", messages=says("x"), temperature=0.25, stream=streamed, extra_body=extra
            )
            if isinstance(got, openai.AsyncStream):
                await anext(got)
                await got.close()
    [request] = upstream.requests
    sent = request.json
    assert {name: sent[name] for name in extra} == extra
    assert sent["temperature"] == 0.25
    assert b'"deep":[1,2.5' in request.raw.replace(b" ", b"")
    assert sent["model"] == "upstream-model"
    assert sent["messages"] == says("x")


async def test_parts_and_roles_reach_the_upstream_as_they_were_sent(tmp_path: Path) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Truly."}]},
        {
            "role": "user",
            "name": "ada",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}},
                {"type": "text", "text": "here"},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [_call("call_1", "f", '{"a": 1}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "one"}]},
        {"role": "user", "content": "查 订单"},
    ]
    async with (
        ScriptedUpstream(answer("ok")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
        gateway.sdk() as client,
    ):
        await client.chat.completions.create(model="m", messages=messages)
    assert upstream.requests[0].messages == messages


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_two_choices_come_through(tmp_path: Path, dialect: str) -> None:
    two = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
        for i, text in enumerate(("red", "blue"))
    ]
    streamed = stream(
        d({"role": "assistant", "content": ""}, index=0),
        d({"role": "assistant", "content": ""}, index=1),
        d({"content": "re"}, index=0),
        d({"content": "bl"}, index=1),
        d({"content": "ue"}, index=1),
        d({"content": "d"}, index=0),
        f("stop", index=1),
        f("length", index=0),
        u(3, 4),
        DONE,
    )
    async with ScriptedUpstream(answer(choices=two), streamed) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect})
        async with serving(tmp_path, config) as gateway, gateway.sdk() as client:
            plain = await client.chat.completions.create(model="m", messages=says("x"), n=2)
            assert [choice.message.content for choice in plain.choices] == ["red", "blue"]
            texts, reasons = {0: "", 1: ""}, {}
            async for piece in await client.chat.completions.create(model="m", messages=says("x"), n=2, stream=True):
                for choice in piece.choices:
                    texts[choice.index] += choice.delta.content or ""
                    if choice.finish_reason:
                        reasons[choice.index] = choice.finish_reason
    assert texts == {0: "red", 1: "blue"}
    assert reasons == {0: "length", 1: "stop"}
    assert all(request.json["n"] == 2 for request in upstream.requests)


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
@pytest.mark.parametrize("include", [True, False, None])
async def test_usage_of_the_upstream_is_shown_only_when_asked_for(
    tmp_path: Path, dialect: str, *, include: bool | None
) -> None:
    options: dict[str, Any] = {} if include is None else {"stream_options": {"include_usage": include}}
    async with ScriptedUpstream(stream(words("one two"), f("stop"), u(11, 2), DONE)) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": dialect})
        async with serving(tmp_path, config) as gateway, gateway.sdk() as client:
            got = await client.chat.completions.create(model="m", messages=says("x"), stream=True, **options)
            chunks = [piece async for piece in got]
    usages = [piece.usage for piece in chunks if piece.usage]
    assert [(use.prompt_tokens, use.completion_tokens, use.total_tokens) for use in usages] == (
        [(11, 2, 13)] if include else []
    )
    assert [bool(piece.choices) for piece in chunks].count(False) == (1 if include else 0)
    # The gateway itself always asks, for its own figures.
    assert upstream.requests[0].json["stream_options"] == {"include_usage": True}


async def test_refusals_logprobs_and_reasoning_survive_the_helper(tmp_path: Path) -> None:
    logprobs = {"content": [{"token": "no", "logprob": -0.5, "bytes": [110, 111], "top_logprobs": []}], "refusal": None}
    reply = stream(
        d({"role": "assistant", "content": "", "refusal": None}),
        d({"reasoning_content": "hm"}),
        chunk(choices=[{"index": 0, "delta": {"content": "no"}, "logprobs": logprobs, "finish_reason": None}]),
        d({"refusal": "I will not."}),
        f("stop"),
        u(1, 1),
        DONE,
    )
    async with ScriptedUpstream(then=reply) as upstream:
        config = native_config(upstream.base_url, backend={"dialect": "openai"})
        async with (
            serving(tmp_path, config) as gateway,
            gateway.sdk() as client,
            client.chat.completions.stream(model="m", messages=says("x"), logprobs=True) as events,
        ):
            kinds = {event.type async for event in events}
            final = await events.get_final_completion()
    assert final.choices[0].message.refusal == "I will not."
    assert final.choices[0].message.content == "no"
    assert final.choices[0].logprobs is not None
    assert {"content.delta", "refusal.delta", "logprobs.content.delta"} <= kinds


async def test_client_that_leaves_ends_the_upstream_call_within_a_second(tmp_path: Path) -> None:
    reply = stream(words("one two three"), f("stop"), DONE)
    held = reply.stall_at(len(reply.body) // 2)
    async with ScriptedUpstream(held) as upstream, serving(tmp_path, native_config(upstream.base_url)) as gateway:
        async with gateway.sdk() as client:
            got = await client.chat.completions.create(model="m", messages=says("x"), stream=True)
            await anext(got)
            await upstream.stalled()
            left = asyncio.get_running_loop().time()
            await got.close()
            [abort] = await upstream.aborted(timeout_s=5)
            assert abort.at - left < 1
        assert await _ended(gateway) == 499


async def _ended(gateway: Served) -> int:
    """The status of the newest trace, once there is one."""
    async with asyncio.timeout(5):
        while True:
            _, _, body = await gateway.get("/v1/traces")
            if body["data"]:
                status: int = body["data"][0]["status"]
                return status
            await asyncio.sleep(0.02)


async def test_fifty_streams_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    def echo(request: UpstreamRequest) -> Any:
        text = request.messages[-1]["content"]
        return stream(words(f"you said {text}"), f("stop"), u(1, 1), DONE).cut(7, 1, 40)

    async with (
        ScriptedUpstream(then=echo) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as gateway,
        gateway.sdk() as client,
    ):

        async def one(number: int) -> tuple[str, str]:
            got = await client.chat.completions.create(model="m", messages=says(f"number {number}"), stream=True)
            chunks = [piece async for piece in got]
            assert len({piece.id for piece in chunks}) == 1
            return chunks[0].id, "".join(piece.choices[0].delta.content or "" for piece in chunks)

        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(one(number) for number in range(50)))
    assert [text for _, text in answers] == [f"you said number {number}" for number in range(50)]
    assert len({id_ for id_, _ in answers}) == 50
