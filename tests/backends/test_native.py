from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from gateway.backends.backend import Backend, ModelCall
from gateway.backends.native import NATIVE_PROVIDERS, NativeBackend
from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.config.models import BackendConfig
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from tests.backends.contract import BackendContract, model_call, read_stream
from tests.backends.openai_schemas import check_chunk
from tests.upstream import (
    DONE,
    FRAMINGS,
    Frame,
    Framing,
    Reply,
    ScriptedUpstream,
    Stall,
    UpstreamRequest,
    answer,
    body,
    call,
    chunk,
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

DIALECTS = pytest.mark.parametrize("dialect", ["openai", "compatible"])
PLAIN = [*words("hello big world"), f("stop"), u(3, 4), DONE]


@asynccontextmanager
async def native(upstream: ScriptedUpstream | None, **config: Any) -> AsyncIterator[NativeBackend]:
    address = {"base_url": upstream.base_url} if upstream is not None else {}
    settings = {"provider": "openai", "model": "up", **address, **config}
    backend = NativeBackend("b1", BackendConfig.model_validate(settings))
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def scripted(
    *script: Any, then: Any = None, **config: Any
) -> AsyncIterator[tuple[ScriptedUpstream, NativeBackend]]:
    async with ScriptedUpstream(*script, then=then) as upstream, native(upstream, **config) as backend:
        yield upstream, backend


async def failure(backend: Backend, *, streamed: bool, call: ModelCall | None = None) -> GatewayError:
    asked = call or model_call("hi")
    with pytest.raises(GatewayError) as caught:
        await read_stream(backend, asked) if streamed else await backend.complete(asked)
    return caught.value


class NativeContract(BackendContract):
    dialect = ""

    @asynccontextmanager
    async def texting(self) -> AsyncIterator[Backend]:
        def script(request: UpstreamRequest) -> Reply:
            refused = strict_history(request)
            return refused or (
                stream(PLAIN) if request.json.get("stream") else answer("hello big world", tokens=(3, 4))
            )

        async with scripted(then=script, dialect=self.dialect) as (_, backend):
            yield backend

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Backend]:
        arguments = '{"expression":"12 + 30"}'
        made = [tc(0, id="a", name="calculator", arguments=arguments[:5]), tc(0, arguments=arguments[5:])]
        streamed = stream(d({"role": "assistant", "content": None}), *made, f("tool_calls"), u(1, 1), DONE)

        def script(request: UpstreamRequest) -> Reply:
            return streamed if request.json.get("stream") else answer(calls=[call("a", "calculator", arguments)])

        async with scripted(then=script, dialect=self.dialect) as (_, backend):
            yield backend

    @asynccontextmanager
    async def failing(self) -> AsyncIterator[tuple[Backend, ModelCall]]:
        async with scripted(then=error(500, "out of order"), dialect=self.dialect) as (_, backend):
            yield backend, model_call("hi")


class TestExactNativeMeetsTheContract(NativeContract):
    dialect = "openai"

    @asynccontextmanager
    async def texting(self) -> AsyncIterator[Backend]:
        # What a server vouches for when it is declared exact: every field the schema requires.
        message = {"role": "assistant", "content": "hello big world", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        whole = answer(choices=[choice], usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})
        async with scripted(
            then=lambda request: stream(PLAIN) if request.json.get("stream") else whole, dialect=self.dialect
        ) as (_, backend):
            yield backend

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Backend]:
        arguments = '{"expression":"12 + 30"}'
        message = {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [call("a", "calculator", arguments)],
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
        made = [tc(0, id="a", name="calculator", arguments=arguments[:5]), tc(0, arguments=arguments[5:])]
        streamed = stream(d({"role": "assistant", "content": None}), *made, f("tool_calls"), u(1, 1), DONE)
        async with scripted(
            then=lambda request: streamed if request.json.get("stream") else answer(choices=[choice]),
            dialect=self.dialect,
        ) as (_, backend):
            yield backend


class TestCompatibleNativeMeetsTheContract(NativeContract):
    dialect = "compatible"


del NativeContract, BackendContract  # collected through their children alone


# --- what is sent --------------------------------------------------------------------------------------------------


async def test_request_is_the_client_s_with_the_backend_s_model_and_settings() -> None:
    settings = {
        "params": {"top_k": 5, "temperature": 9},
        "drop_params": ["seed"],
        "api_key": "sk-key",
        "headers": {"X-Team": "a"},
    }
    async with scripted(answer("x"), stream(PLAIN), **settings) as (upstream, backend):
        asked = model_call("hi", temperature=0.5, seed=1, vendor={"a": [1]})
        await backend.complete(asked)
        await read_stream(backend, asked)
        whole, streamed = upstream.requests
        common = {
            "model": "up",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "vendor": {"a": [1]},
            "top_k": 5,
        }
        assert whole.json == common
        assert streamed.json == {**common, "stream": True, "stream_options": {"include_usage": True}}
        for request in (whole, streamed):
            assert request.path == "/v1/chat/completions"
            assert request.headers["authorization"] == "Bearer sk-key"
            assert request.headers["x-team"] == "a"
            assert request.headers["traceparent"].split("-")[1] == asked.trace_id
            assert "user-agent" not in request.headers


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5}, {"stream_options": {}}, {"stream_options": {"x": 1}}])
@pytest.mark.parametrize("dropped", [[], ["stream_options"]])
async def test_request_is_json_whatever_is_in_it(fields: dict[str, Any], dropped: list[str]) -> None:
    sent = b'{"role": "user",  "content": "as it came"}'
    messages = (Message("system", (Text("made"),)), Message("user", (Text("as it came"),), wire=sent))
    async with scripted(answer("x"), stream(PLAIN), drop_params=dropped) as (upstream, backend):
        asked = model_call(*messages, **fields)
        await backend.complete(asked)
        await read_stream(backend, asked)
        whole, streamed = upstream.requests
        said = [{"role": "system", "content": "made"}, {"role": "user", "content": "as it came"}]
        kept = {name: value for name, value in fields.items() if name not in dropped}
        assert whole.json == {"model": "up", "messages": said, **kept}
        asks = {} if dropped else {"stream_options": {"include_usage": True, **fields.get("stream_options", {})}}
        assert streamed.json == {"model": "up", "messages": said, **kept, "stream": True, **asks}


async def test_configured_header_takes_the_place_of_the_usual_one() -> None:
    async with scripted(answer("x"), api_key="sk-key", headers={"Authorization": "Basic abc"}) as (upstream, backend):
        await backend.complete(model_call("hi"))
        assert upstream.requests[0].headers["authorization"] == "Basic abc"
        assert b"sk-key" not in upstream.requests[0].raw


async def test_query_of_the_base_url_is_kept() -> None:
    async with ScriptedUpstream(answer("x")) as upstream:
        async with native(upstream, base_url=f"{upstream.base_url}/?key=abc") as backend:
            await backend.complete(model_call("hi"))
        assert upstream.requests[0].path == "/v1/chat/completions?key=abc"


@DIALECTS
async def test_tool_history_is_what_strict_servers_take_B045(dialect: str) -> None:
    history = [
        Message("user", (Text("hi"),)),
        Message("assistant", (ToolCall("a", "f", "{}"),)),
        Message("tool", (ToolResult("a", "r"),)),
    ]
    async with scripted(then=lambda request: strict_history(request) or answer("ok"), dialect=dialect) as (
        upstream,
        backend,
    ):
        assert (await backend.complete(model_call(*history))).message.text == "ok"
        sent = upstream.requests[0].messages[1]
        assert "content" in sent
        assert sent["content"] is None


async def test_cookies_of_the_upstream_are_not_sent_back() -> None:
    cookie = body(answer("x").body, headers={"set-cookie": "who=me; Path=/"})
    async with ScriptedUpstream(cookie, answer("x")) as upstream:
        async with native(upstream, base_url=f"http://localhost:{upstream.port}/v1") as backend:
            await backend.complete(model_call("hi"))
            await backend.complete(model_call("hi"))
        assert "cookie" not in upstream.requests[1].headers


async def test_redirect_is_not_followed() -> None:
    async with ScriptedUpstream(answer("stolen")) as elsewhere:
        moved = Reply(307, (("location", f"{elsewhere.base_url}/chat/completions"),))
        async with scripted(then=moved, api_key="sk-key") as (_, backend):
            for streamed in (False, True):
                assert isinstance(await failure(backend, streamed=streamed), UpstreamBroken)
        assert elsewhere.requests == []


def test_only_openai_itself_is_taken_for_exact() -> None:
    def exact(**settings: Any) -> bool:
        return NativeBackend("b", BackendConfig.model_validate({"model": "m", **settings}))._exact

    assert exact(provider="openai")
    assert not exact(provider="openai", base_url="http://127.0.0.1:1/v1")
    assert exact(provider="openai", base_url="http://127.0.0.1:1/v1", dialect="openai")
    assert not exact(provider="openai", dialect="compatible")
    assert not any(exact(provider=name) for name in NATIVE_PROVIDERS if name != "openai")


# --- usage ---------------------------------------------------------------------------------------------------------


@DIALECTS
async def test_server_that_cannot_be_asked_for_usage_is_asked_without_and_not_again_B070(dialect: str) -> None:
    def picky(request: UpstreamRequest) -> Reply:
        if "stream_options" in request.json:
            return error(400, "unknown field `stream_options`", kind="invalid_request_error")
        return stream(*words("ok"), f("stop"), DONE)

    async with scripted(then=picky, dialect=dialect) as (upstream, backend):
        for _ in range(2):
            streamed = await read_stream(backend, model_call("hi"))
            assert (streamed.text, streamed.usages) == ("ok", [])
        assert ["stream_options" in request.json for request in upstream.requests] == [True, False, False]


# --- what comes back -----------------------------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize(
    "ending",
    [
        [chunk(choices=[{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]), u(5, 1), DONE],
        [
            d({"content": "42"}),
            chunk(
                choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
                usage={"prompt_tokens": 5, "completion_tokens": 1},
            ),
            DONE,
        ],
        [d({"content": "42"}), f("stop"), u(5, 1), b"data: [DONE]"],
        [d({"content": "42"}), f("stop"), u(5, 1)],
        [
            d({"content": "42"}),
            b": PROCESSING\n\n",
            b"event: ping\ndata: {}\n\n",
            b"id: 7\nretry: 1000\n\n",
            f("stop"),
            u(5, 1),
            DONE,
        ],
    ],
    ids=["finish with text", "usage with finish", "no blank line", "no end mark", "comments and pings"],
)
async def test_legal_shapes_of_a_stream_are_one_complete_answer_B071_B072(dialect: str, ending: list[Any]) -> None:
    async with scripted(stream(d({"role": "assistant"}), *ending), dialect=dialect) as (_, backend):
        streamed = await read_stream(backend, model_call("hi"))
    assert (streamed.text, streamed.finish_reasons) == ("42", ["stop"])
    assert [(usage.prompt_tokens, usage.completion_tokens) for usage in streamed.usages] == [(5, 1)]


@DIALECTS
@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS.keys())
async def test_every_framing_is_read_whole_and_byte_by_byte_B073(dialect: str, framing: Framing) -> None:
    calls = [tc(0, id="a", name="f", arguments='{"city":'), tc(0, arguments='"東京"}')]
    reply = stream(*words("你好🌧️é"), *calls, f("tool_calls"), u(1, 2), DONE, framing=framing)
    async with scripted(reply, reply.cut(1), dialect=dialect) as (_, backend):
        whole = await read_stream(backend, model_call("hi"))
        bytewise = await read_stream(backend, model_call("hi"))
    assert (whole.text, whole.finish_reasons) == ("你好🌧️é", ["tool_calls"])
    assert whole.calls == (ToolCall("a", "f", '{"city":"東京"}'),)
    assert (bytewise.text, bytewise.calls, bytewise.usages) == (whole.text, whole.calls, whole.usages)


@DIALECTS
async def test_characters_cut_at_any_byte_or_in_half_stay_whole_B074(dialect: str) -> None:
    reply = stream(d({"role": "assistant", "content": "🌧️é"}), f("stop"), DONE)
    head = b'data: {"id":"i","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    halves = stream(d({"role": "assistant"}), head % b"a\\ud83d", head % b"\\ude00b", f("stop"), DONE)
    async with scripted(*(reply.cut(size) for size in range(1, 8)), halves, dialect=dialect) as (_, backend):
        for _ in range(7):
            assert (await read_stream(backend, model_call("hi"))).text == "🌧️é"
        streamed = await read_stream(backend, model_call("hi"))
        assert streamed.text == "a😀b"
        for each in streamed.chunks:
            check_chunk(each.data)


async def test_preamble_without_choices_and_nulls_are_read_B069() -> None:
    preamble = Frame(
        {
            "id": "",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "",
            "choices": [],
            "prompt_filter_results": [],
        }
    )
    frames = [
        preamble,
        d({"role": "assistant"}),
        d({"content": None}),
        d({"content": "Hi"}),
        Frame({"choices": None}),
        f("stop"),
        u(3, 1),
        DONE,
    ]
    async with scripted(stream(frames), stream(frames), dialect="compatible") as (_, backend):
        streamed = await read_stream(backend, model_call("hi"))
    assert (streamed.text, streamed.finish_reasons, len(streamed.usages)) == ("Hi", ["stop"], 1)
    assert all(json.loads(each.data)["id"] for each in streamed.chunks)


@DIALECTS
async def test_exact_chunks_are_relayed_byte_for_byte_and_others_rewritten(dialect: str) -> None:
    odd = b'{ "id":"i", "created":1,"model":"m","vendor":1,"choices":[{"index":0,"delta":{"role":"assistant","content":"x"},"finish_reason":null}]}'
    async with scripted(stream(b"data: " + odd + b"\n\n", f("stop"), DONE), dialect=dialect) as (_, backend):
        streamed = await read_stream(backend, model_call("hi"))
    assert (streamed.chunks[0].data == odd) is (dialect == "openai")


# --- failures ------------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])


@BOTH
@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [(429, {"Retry-After": "17"}, 17), (429, {"retry-after-ms": "1700"}, 1.7), (503, {"Retry-After": "2"}, 2)],
)
async def test_upstream_s_wait_is_kept_B009(
    streamed: bool, status: int, headers: dict[str, str], seconds: float
) -> None:
    reply = error(
        status, "slow down", code="rate_limit_exceeded", headers={**headers, "set-cookie": "a=b", "server": "x"}
    )
    async with scripted(reply) as (_, backend):
        caught = await failure(backend, streamed=streamed)
    assert isinstance(caught, UpstreamUnavailable)
    assert (caught.status, caught.code) == (status, "rate_limit_exceeded")
    assert caught.retry_after_s == pytest.approx(seconds)


@BOTH
async def test_no_secret_and_no_address_is_in_any_error_B013(streamed: bool) -> None:
    async with ScriptedUpstream(
        then=lambda request: error(400, f"bad request {request.path} {request.headers}")
    ) as upstream:
        base = f"{upstream.base_url}?key=TEST-SECRET-123"
        settings = {"base_url": base, "headers": {"x-api-key": "TEST-SECRET-456"}, "api_key": "TEST-SECRET-789"}
        async with native(upstream, **settings) as backend:
            seen = [await failure(backend, streamed=streamed)]
            upstream._then = error(404, f"no such thing at {base}")
            seen.append(await failure(backend, streamed=streamed))
            upstream._then = hang_up()
            seen.append(await failure(backend, streamed=streamed))
    async with native(None, **{**settings, "base_url": "http://127.0.0.1:9/v1?key=TEST-SECRET-123"}) as backend:
        seen.append(await failure(backend, streamed=streamed))
    for caught in seen:
        for words_of in (caught.message, str(caught)):
            assert "TEST-SECRET" not in words_of
            assert "http://127.0.0.1" not in words_of
    assert isinstance(seen[0], UpstreamRefused)
    assert "`asked`" in seen[2].message
    assert type(seen[3]) is UpstreamError


@BOTH
@pytest.mark.parametrize(
    "reply",
    [
        body(b"<html><h1>Bad gateway</h1></html>", status=502, headers={"content-type": "text/html"}),
        body(b"<html>Welcome</html>", headers={"content-type": "text/html"}),
        body(b'{"choices":', headers={"content-type": "application/json"}),
        body({"object": "list"}),
        body(b""),
    ],
    ids=["HTML error", "HTML page", "half JSON", "other JSON", "nothing"],
)
async def test_what_is_no_answer_is_an_upstream_error(streamed: bool, reply: Reply) -> None:
    async with scripted(reply) as (_, backend):
        caught = await failure(backend, streamed=streamed)
    assert isinstance(caught, UpstreamError)
    assert "<" not in caught.message


@BOTH
async def test_prompt_that_does_not_fit_is_told_apart_B012(streamed: bool) -> None:
    async with scripted(error(400, "The input is longer than the model's context length")) as (_, backend):
        assert isinstance(await failure(backend, streamed=streamed), ContextTooLong)


@BOTH
async def test_error_with_a_status_of_success_is_told_in_its_words(streamed: bool) -> None:
    page = Reply(headers=(("content-type", "text/html"),), steps=(b"<h1>hello</h1>",))
    async with scripted(body({"error": {"message": "not loaded"}}), body({"error": "no such path"}), page) as (
        _,
        backend,
    ):
        assert (await failure(backend, streamed=streamed)).message == "not loaded"
        assert (await failure(backend, streamed=streamed)).message == "no such path"
        assert isinstance(await failure(backend, streamed=streamed), UpstreamBroken)


@DIALECTS
async def test_error_frame_is_raised_behind_what_came_before_it_B068(dialect: str) -> None:
    frames = [*words("Hello"), Frame({"error": {"message": "overloaded", "type": "server_error", "code": None}})]
    together = stream(b"".join(Framing().event(frame) for frame in frames))
    async with scripted(stream(frames), together, dialect=dialect) as (_, backend):
        for _ in range(2):
            text, caught = "", None
            try:
                async with aclosing(backend.stream(model_call("hi"))) as batches:
                    async for batch in batches:
                        text += "".join(str(c.delta.content or "") for each in batch for c in each.choices if c.delta)
            except UpstreamBroken as error:
                caught = error.message
            assert (text, caught) == ("Hello", "overloaded")


@DIALECTS
@pytest.mark.parametrize("how", ["reset_at", "eof_at", "end_at"])
async def test_stream_that_is_cut_before_its_finish_is_an_error_B068(dialect: str, how: str) -> None:
    whole = stream(*words("Hello there"), f("stop"), DONE)
    finish = whole.body.index(b'"finish_reason": "stop"')
    async with scripted(getattr(whole, how)(finish - 20), dialect=dialect) as (_, backend):
        assert isinstance(await failure(backend, streamed=True), UpstreamBroken)


@DIALECTS
@pytest.mark.parametrize("how", ["reset_at", "eof_at", "end_at"])
async def test_stream_that_is_cut_behind_its_finish_is_complete(dialect: str, how: str) -> None:
    whole = stream(*words("Hello"), f("stop"), DONE)
    async with scripted(getattr(whole, how)(whole.body.index(b"data: [DONE]")), dialect=dialect) as (_, backend):
        streamed = await read_stream(backend, model_call("hi"))
    assert (streamed.text, streamed.finish_reasons) == ("Hello", ["stop"])


@BOTH
async def test_hang_up_without_an_answer_is_an_upstream_error(streamed: bool) -> None:
    async with scripted(hang_up()) as (_, backend):
        assert isinstance(await failure(backend, streamed=streamed), UpstreamError)


async def test_answer_that_is_cut_is_broken() -> None:
    async with scripted(answer("a long text").reset_at(30), answer("a long text").eof_at(30)) as (_, backend):
        for _ in range(2):
            assert type(await failure(backend, streamed=False)) is UpstreamBroken


async def test_chunk_that_is_no_json_is_broken() -> None:
    async with scripted(stream(*words("x"), b"data: {nonsense\n\n")) as (_, backend):
        assert isinstance(await failure(backend, streamed=True), UpstreamBroken)


# --- time ----------------------------------------------------------------------------------------------------------


async def test_whole_answer_has_a_bound() -> None:
    async with scripted(answer("x").held(), answer("x").held(), timeout_s=0.05) as (upstream, backend):
        assert isinstance(await failure(backend, streamed=False), UpstreamTimeout)
        await upstream.aborted()
    async with scripted(answer("x").held()) as (upstream, backend):
        assert isinstance(
            await failure(backend, streamed=False, call=model_call("hi", timeout_s=0.05)), UpstreamTimeout
        )


@pytest.mark.parametrize("before", [True, False], ids=["no header", "no first byte"])
async def test_first_token_has_a_bound(before: bool) -> None:
    reply = stream(PLAIN)
    slow = reply.held() if before else reply.stall_at(0)
    async with scripted(slow, first_token_timeout_s=0.5) as (upstream, backend):
        assert isinstance(await failure(backend, streamed=True), UpstreamTimeout)
        await upstream.aborted()


async def test_silence_in_mid_stream_has_a_bound() -> None:
    async with scripted(stream(*words("x"), Stall(), f("stop"), DONE), idle_timeout_s=0.05) as (upstream, backend):
        assert isinstance(await failure(backend, streamed=True), UpstreamTimeout)
        await upstream.aborted()


async def test_stream_as_a_whole_has_a_bound_though_it_never_is_silent() -> None:
    async with scripted(stream(*words("x"), Stall(), f("stop"), DONE)) as (_, backend):
        async with asyncio.timeout(5):
            caught = await failure(backend, streamed=True, call=model_call("hi", timeout_s=0.1))
    assert isinstance(caught, UpstreamTimeout)


async def test_nobody_waits_long_for_what_follows_the_finish_or_the_end_mark() -> None:
    async with scripted(stream(PLAIN, Stall()), idle_timeout_s=30) as (_, backend), asyncio.timeout(2):
        assert (await read_stream(backend, model_call("hi"))).text == "hello big world"
    endless = stream(*words("hello big world"), f("stop"), Stall(), DONE)
    async with scripted(endless, idle_timeout_s=0.1) as (_, backend), asyncio.timeout(2):
        assert (await read_stream(backend, model_call("hi"))).finish_reasons == ["stop"]


# --- connections ---------------------------------------------------------------------------------------------------


@DIALECTS
async def test_connection_is_used_again_after_the_end_mark(dialect: str) -> None:
    async with scripted(then=stream(PLAIN), dialect=dialect) as (upstream, backend):
        for _ in range(3):
            await read_stream(backend, model_call("hi"))
        assert (len(upstream.requests), upstream.connections) == (3, 1)


async def test_connection_is_used_again_after_an_error_body() -> None:
    async with scripted(then=error(400)) as (upstream, backend):
        for streamed in (False, True, True):
            await failure(backend, streamed=streamed)
        assert upstream.connections == 1


async def test_closing_the_iterator_aborts_the_upstream_within_a_second() -> None:
    async with scripted(stream(*words("hello"), Stall(), f("stop"), DONE)) as (upstream, backend):
        batches = backend.stream(model_call("hi"))
        await anext(batches)
        await batches.aclose()
        assert (await upstream.aborted(timeout_s=1))[0].request.number == 1


@BOTH
async def test_cancelling_the_caller_aborts_the_upstream_within_a_second(streamed: bool) -> None:
    async with scripted(stream(PLAIN).held() if streamed else answer("x").held()) as (upstream, backend):
        asked = read_stream(backend, model_call("hi")) if streamed else backend.complete(model_call("hi"))
        task = asyncio.ensure_future(asked)
        await upstream.received()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.aborted(timeout_s=1)


@BOTH
@DIALECTS
async def test_answer_nested_too_deeply_is_a_broken_upstream(dialect: str, streamed: bool) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    whole = f'{{"choices":[{{"message":{{"content":"x"}},"finish_reason":"stop"}}],"x":{deep}}}'
    piece = f'data: {{"choices":[{{"index":0,"delta":{{"content":"x"}}}}],"x":{deep}}}\n\n'
    reply = stream(piece.encode(), f("stop"), DONE) if streamed else body(whole.encode())
    async with scripted(reply, dialect=dialect) as (_, backend):
        assert isinstance(await failure(backend, streamed=streamed), UpstreamBroken)


@BOTH
async def test_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    # More than can have come before anybody reads it: that is no answer without end.
    limit = 1000 if streamed else 1_000_000
    monkeypatch.setattr("gateway.backends.reading.ANSWER_BYTES", limit)
    monkeypatch.setattr("gateway.backends.native._STREAM_BYTES", limit)
    reply = stream(*words("many " * 100), f("stop"), DONE) if streamed else answer("many " * 400_000)
    async with scripted(reply) as (_, backend):
        error = await failure(backend, streamed=streamed)
        assert isinstance(error, UpstreamBroken)
        assert f"more than {limit} bytes" in error.message
