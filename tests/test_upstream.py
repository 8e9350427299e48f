from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replies import Step
from tests.upstream import (
    DONE,
    FRAMINGS,
    Eof,
    Frame,
    Framing,
    Reply,
    Reset,
    ScriptedUpstream,
    Stall,
    UpstreamRequest,
    answer,
    body,
    call,
    d,
    error,
    f,
    hang_up,
    stream,
    strict_history,
    tc,
    u,
    words,
)

ASK: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
]
HELLO = stream(words("hello there, world"), f("stop"), u(3, 4), DONE)


@asynccontextmanager
async def sdk(upstream: ScriptedUpstream) -> Any:
    async with openai.AsyncOpenAI(base_url=upstream.base_url, api_key="sk-test", max_retries=0, timeout=5) as client:
        yield client


@asynccontextmanager
async def posting(upstream: ScriptedUpstream, **body_fields: Any) -> Any:
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{upstream.base_url}/chat/completions", json={"messages": ASK} | body_fields) as response,
    ):
        yield response


async def test_plain_answer_reaches_the_sdk_and_the_request_is_recorded() -> None:
    async with ScriptedUpstream(answer("hi", tokens=(7, 2))) as upstream, sdk(upstream) as client:
        got = await client.chat.completions.create(model="m", messages=ASK)
        assert got.choices[0].message.content == "hi"
        assert got.usage.total_tokens == 9
        request = upstream.requests[0]
        assert (request.method, request.path, request.number) == ("POST", "/v1/chat/completions", 1)
        assert request.headers["authorization"] == "Bearer sk-test"
        assert request.json == {"model": "m", "messages": ASK}
        assert json.loads(request.raw) == request.json


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
async def test_stream_reaches_the_sdk_in_every_framing(framing: Framing) -> None:
    frames = [*words("hello there, world"), f("stop"), u(3, 4), DONE]
    async with ScriptedUpstream(stream(frames, framing=framing)) as upstream, sdk(upstream) as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(model="m", messages=ASK, stream=True)]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello there, world"
    assert chunks[-1].usage.total_tokens == 7


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LF", b'data: {"a": 1, "b": 2}\n\n'),
        ("CRLF", b'data: {"a": 1, "b": 2}\r\n\r\n'),
        ("CR", b'data: {"a": 1, "b": 2}\r\r'),
        ("no space", b'data:{"a": 1, "b": 2}\n\n'),
        ("multi-line data", b'data: {\ndata:  "a": 1,\ndata:  "b": 2\ndata: }\n\n'),
        ("BOM", b'\xef\xbb\xbfdata: {"a": 1, "b": 2}\n\n'),
        ("comments", b': keep-alive\ndata: {"a": 1, "b": 2}\n\n'),
        ("fields", b'event: message\nid: 1\nretry: 1000\ndata: {"a": 1, "b": 2}\n\n'),
    ],
)
def test_framing_writes_the_bytes_it_is_named_for(name: str, expected: bytes) -> None:
    assert FRAMINGS[name].event(Frame({"a": 1, "b": 2}), first=True) == expected


def test_byte_order_mark_precedes_the_first_event_only() -> None:
    assert stream(d({"content": "a"}), DONE, framing=FRAMINGS["BOM"]).body.count(b"\xef\xbb\xbf") == 1


@pytest.mark.parametrize("sizes", [(1,), (2, 3, 5), (1000,)])
async def test_stream_cut_at_any_size_is_the_same_stream(sizes: tuple[int, ...]) -> None:
    async with ScriptedUpstream(HELLO.cut(*sizes)) as upstream, posting(upstream) as response:
        pieces = [piece async for piece, _ in response.content.iter_chunks()]
    assert b"".join(pieces) == HELLO.body
    assert max(map(len, pieces)) <= max(*sizes, *(len(step) for step in HELLO.steps if isinstance(step, bytes)))
    assert (max(map(len, pieces)) == 1) == (sizes == (1,))


async def test_parallel_tool_calls_in_interleaved_fragments_reach_the_sdk_stream_helper() -> None:
    script = stream(
        d({"role": "assistant", "content": None}),
        tc(0, id="call_a", name="weather", arguments=""),
        tc(1, id="call_b", name="weather", arguments='{"city"'),
        tc(0, arguments='{"city":"Os'),
        tc(1, arguments=':"Rome"}'),
        tc(0, arguments='lo"}'),
        f("tool_calls"),
        DONE,
    )
    async with (
        ScriptedUpstream(script.cut(7)) as upstream,
        sdk(upstream) as client,
        client.chat.completions.stream(model="m", messages=ASK, tools=WEATHER) as events,
    ):
        message = (await events.get_final_completion()).choices[0].message
    got = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]
    assert got == [("call_a", "weather", {"city": "Oslo"}), ("call_b", "weather", {"city": "Rome"})]


async def test_whole_tool_call_reaches_the_sdk() -> None:
    script = answer(calls=[call("call_a", "weather", '{"city":"Oslo"}')])
    async with ScriptedUpstream(script) as upstream, sdk(upstream) as client:
        choice = (await client.chat.completions.create(model="m", messages=ASK, tools=WEATHER)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"city":"Oslo"}'


async def test_error_keeps_status_headers_and_body() -> None:
    script = error(429, "slow down", kind="rate_limit_error", code="rate_limit_exceeded", headers={"retry-after": "17"})
    async with ScriptedUpstream(script) as upstream, sdk(upstream) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="m", messages=ASK)
    assert caught.value.response.headers["retry-after"] == "17"
    assert caught.value.code == "rate_limit_exceeded"


async def test_stalled_reply_waits_until_it_is_released() -> None:
    script = stream(d({"content": "a"}), Stall(), d({"content": "b"}), DONE)
    async with ScriptedUpstream(script) as upstream, posting(upstream) as response:
        first = await response.content.readany()
        await upstream.stalled()
        assert first == script.steps[0]
        upstream.release()
        assert first + await response.content.read() == script.body


async def test_held_reply_sends_no_status_until_it_is_released() -> None:
    async with ScriptedUpstream(answer("late").held("gate")) as upstream, sdk(upstream) as client:
        task = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASK))
        await upstream.stalled()
        assert not task.done()
        upstream.release("gate")
        assert (await task).choices[0].message.content == "late"


async def test_client_that_goes_away_is_noticed_with_its_time() -> None:
    loop = asyncio.get_running_loop()
    async with ScriptedUpstream(stream(d({"content": "a"}), Stall())) as upstream:
        async with posting(upstream) as response:
            await response.content.readany()
            assert upstream.aborts == []
            left = loop.time()
        (abort,) = await upstream.aborted(1)
        assert abort.request is upstream.requests[0]
        assert left <= abort.at <= left + 1
        assert upstream.connected == 0


async def test_complete_replies_and_our_own_breaks_are_no_aborts() -> None:
    async with ScriptedUpstream(answer("a"), hang_up(), HELLO.eof_at(5)) as upstream:
        async with posting(upstream) as response:
            await response.read()
        with pytest.raises(aiohttp.ClientError):
            async with posting(upstream):
                pass
        with pytest.raises(aiohttp.ClientPayloadError):
            async with posting(upstream) as response:
                await response.read()
        with pytest.raises(AssertionError, match="saw 3 requests, 0 stalls, 0 aborts"):
            await upstream.aborted(1, 0.01)


@pytest.mark.parametrize("offset", [0, 1, 40, len(HELLO.body) - 1])
async def test_reset_after_any_byte_breaks_the_connection(offset: int) -> None:
    # The gate lets the client read before the reset: what it had not read by then, TCP may discard.
    script = HELLO.stall_at(offset).reset_at(offset)
    held = Reply(script.status, script.headers, (*script.steps[:-1], Stall(), Reset()), transfer="chunked")
    async with ScriptedUpstream(held) as upstream, posting(upstream) as response:
        got = await response.content.readexactly(offset)
        await upstream.stalled()
        upstream.release()
        # aiohttp wraps the reset in a payload error when the body was chunked.
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)) as caught:
            await response.content.read()
    assert got == HELLO.body[:offset]
    assert "reset" in repr(caught.value).lower() or "reset" in repr(caught.value.__cause__).lower()


@pytest.mark.parametrize("script", [answer("ok").eof_at(9), answer("ok").reset_at(9)], ids=["closed", "reset"])
async def test_answer_broken_off_declares_the_length_it_never_reaches(script: Reply) -> None:
    async with ScriptedUpstream(script) as upstream, posting(upstream) as response:
        assert int(response.headers["content-length"]) == len(answer("ok").body)
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await response.read()


@pytest.mark.parametrize("offset", [0, 9, len(HELLO.body)])
async def test_closing_after_any_byte_leaves_the_declared_body_incomplete(offset: int) -> None:
    async with ScriptedUpstream(HELLO.eof_at(offset)) as upstream, posting(upstream) as response:
        assert await response.content.readexactly(offset) == HELLO.body[:offset]
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()


async def test_end_after_any_byte_is_a_complete_body() -> None:
    async with ScriptedUpstream(HELLO.end_at(11), HELLO.end_at(11).until_close()) as upstream:
        for _ in range(2):
            async with posting(upstream) as response:
                assert await response.read() == HELLO.body[:11]


async def test_script_may_be_a_function_of_the_request() -> None:
    async def echo(request: UpstreamRequest) -> Reply:
        return answer(request.messages[-1]["content"].upper())

    async with ScriptedUpstream(answer("first"), then=echo) as upstream, sdk(upstream) as client:
        texts = [
            (await client.chat.completions.create(model="m", messages=ASK)).choices[0].message.content for _ in range(3)
        ]
    assert texts == ["first", "HELLO", "HELLO"]


async def test_request_without_a_script_fails_the_test() -> None:
    async def ask_once_too_often() -> None:
        async with ScriptedUpstream() as upstream, posting(upstream) as response:
            assert response.status == 500

    with pytest.raises(AssertionError, match=r"request 1 \(POST /v1/chat/completions\) has no reply scripted"):
        await ask_once_too_often()


async def test_keep_alive_connection_serves_many_requests() -> None:
    async with ScriptedUpstream(then=HELLO.cut(50)) as upstream, aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(upstream.base_url, json={}) as response:
                assert await response.read() == HELLO.body
        assert (len(upstream.requests), upstream.connections) == (3, 1)


CALLED = {"role": "assistant", "content": None, "tool_calls": [call("a", "weather", "{}"), call("b", "weather", "{}")]}
RESULT_A = {"role": "tool", "tool_call_id": "a", "content": "1"}
RESULT_B = {"role": "tool", "tool_call_id": "b", "content": "2"}


def faulty() -> Iterator[Any]:
    def case(name: str, param: str, messages: list[Any], **fields: Any) -> Any:
        return pytest.param({"messages": messages} | fields, param, id=name)

    yield case("call without result", "messages", [*ASK, CALLED, RESULT_A])
    yield case("result late", "messages[3]", [*ASK, CALLED, RESULT_A, *ASK, RESULT_B])
    yield case("result without call", "messages[1]", [*ASK, RESULT_A])
    yield case("result twice", "messages[3]", [*ASK, CALLED, RESULT_A, RESULT_A, RESULT_B])
    yield case("two calls of one id", "messages[0].tool_calls", [{**CALLED, "tool_calls": [call("a", "w", "{}")] * 2}])
    yield case("no content key", "messages[0].content", [{"role": "assistant", "tool_calls": CALLED["tool_calls"]}])
    yield case("null content", "messages[0].content", [{"role": "user", "content": None}])
    yield case("empty tool calls", "messages[0].tool_calls", [{"role": "assistant", "content": "", "tool_calls": []}])
    yield case("empty tools", "tools", ASK, tools=[])
    yield case("choice without tools", "tool_choice", ASK, tool_choice="auto")
    yield case("parallel without tools", "parallel_tool_calls", ASK, parallel_tool_calls=True)


def request_of(fields: dict[str, Any]) -> UpstreamRequest:
    return UpstreamRequest(1, "POST", "/v1/chat/completions", {}, json.dumps(fields).encode(), 0.0, 1)


@pytest.mark.parametrize(("fields", "param"), list(faulty()))
def test_strict_history_refuses(fields: dict[str, Any], param: str) -> None:
    refused = strict_history(request_of(fields))
    assert refused is not None
    assert refused.status == 400
    assert json.loads(refused.body)["error"]["param"] == param


def test_strict_history_takes_a_well_formed_request() -> None:
    messages = [*ASK, CALLED, RESULT_B, RESULT_A, {"role": "assistant", "content": "done"}, *ASK]
    assert strict_history(request_of({"messages": messages, "tools": WEATHER, "tool_choice": "auto"})) is None


async def test_strict_upstream_answers_400_to_the_sdk() -> None:
    async with ScriptedUpstream(then=lambda r: strict_history(r) or answer("ok")) as upstream, sdk(upstream) as client:
        with pytest.raises(openai.BadRequestError, match="tools is present but empty"):
            await client.chat.completions.create(model="m", messages=ASK, tools=[])
        assert (await client.chat.completions.create(model="m", messages=ASK)).choices[0].message.content == "ok"


@given(st.lists(st.binary(max_size=5), max_size=5), st.data())
def test_breaking_off_keeps_exactly_the_bytes_before_the_offset(parts: list[bytes], data: st.DataObject) -> None:
    steps: tuple[Step, ...] = tuple(parts)
    reply = Reply(steps=steps)
    offset = data.draw(st.integers(0, len(reply.body)))
    assert reply.end_at(offset).body == reply.body[:offset]
    assert reply.eof_at(offset).steps[-1] == Eof()
    assert reply.reset_at(offset).steps[-1] == Reset()
    assert reply.stall_at(offset).body == reply.body


def test_body_may_be_any_json() -> None:
    assert json.loads(body({"data": [1, "查订单"]}).body) == {"data": [1, "查订单"]}
