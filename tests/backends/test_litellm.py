from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.backends.backend import Backend, ModelCall
from gateway.backends.factory import BackendShelf
from gateway.backends.litellm import LitellmBackend, _import_litellm
from gateway.chat.blocks import Image, Message, Reasoning, Text, ToolCall, ToolResult
from gateway.config.models import BackendConfig
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from tests.backends import anthropic_wire as wire
from tests.backends.contract import CALCULATOR, QUESTION, BackendContract, model_call, parsed, read_stream
from tests.replies import Reply, answer, body, hang_up, stream
from tests.upstream import DONE, Script, ScriptedUpstream, UpstreamRequest, f, tc, u, words

# Pydantic's warnings about litellm's own types, which it builds and reads on first use; nothing of ours is at fault.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Items? '.*' on TypedDict class '.*' (is|are) using the `ReadOnly` qualifier:UserWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:Accessing the 'model_.*' attribute on the instance is deprecated:DeprecationWarning"
    ),
]

KEY = "sk-ant-very-secret"


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """The import takes seconds, on a busy machine many; it is not what the tests' bounds are about."""
    _import_litellm()


@asynccontextmanager
async def anthropic(
    *script: Script, then: Script | None = None, **settings: Any
) -> AsyncIterator[tuple[LitellmBackend, ScriptedUpstream]]:
    async with ScriptedUpstream(*script, then=then) as upstream:
        config = BackendConfig(
            provider="anthropic",
            model="claude-sonnet-4-5",
            api_key=KEY,
            base_url=f"http://127.0.0.1:{upstream.port}",
            **settings,
        )
        backend = LitellmBackend("claude", config)
        try:
            yield backend, upstream
        finally:
            await backend.close()


def replying(*blocks: wire.Block) -> Script:
    def script(request: UpstreamRequest) -> Reply:
        return wire.streamed(*blocks) if request.json.get("stream") else wire.whole(*blocks)

    return script


class TestLitellmMeetsTheContract(BackendContract):
    @asynccontextmanager
    async def texting(self) -> AsyncIterator[Backend]:
        async with anthropic(then=replying(wire.text("It is 42, I think."))) as (backend, _):
            yield backend

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Backend]:
        async with anthropic(then=replying(wire.use("toolu_1", "calculator", expression="12 + 30"))) as (backend, _):
            yield backend

    @asynccontextmanager
    async def failing(self) -> AsyncIterator[tuple[Backend, ModelCall]]:
        async with anthropic(then=wire.refusal(500, "api_error", f"no, {KEY}, see http://internal.example/x")) as (
            backend,
            _,
        ):
            yield backend, model_call(QUESTION)


def test_litellm_is_not_imported_before_a_call() -> None:
    code = (
        "import sys, gateway.backends.factory as f; from gateway.config.models import BackendConfig as C;"
        "f.make_backend('a', C(provider='anthropic', model='m')); sys.exit('litellm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_what_needs_litellm_is_prepared_when_it_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []
    monkeypatch.setattr("gateway.backends.litellm._import_litellm", lambda: began.append("import"))
    shelf = BackendShelf()
    configs = {name: BackendConfig(provider="anthropic", model="m", api_key=name) for name in ("a", "b", "c")}
    for name, config in configs.items():
        shelf.take(name, config)
    for _ in range(2):
        shelf.prepare()
    assert LitellmBackend._importing is not None
    await LitellmBackend._importing
    shelf.prepare()
    assert began == ["import"], "one for all"
    for name, config in configs.items():
        await shelf.put_back(name, config)


async def test_import_that_is_given_up_or_fails_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("no such thing")

    async with anthropic(then=replying(wire.text("ok"))) as (backend, _):
        with monkeypatch.context() as patched:
            patched.setattr("gateway.backends.litellm._import_litellm", fail)
            with pytest.raises(ImportError):
                await backend.complete(model_call(QUESTION))
        waiting = asyncio.ensure_future(backend.complete(model_call(QUESTION)))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await backend.complete(model_call(QUESTION))).message.text == "ok"


async def test_request_reaches_the_provider_in_its_own_form() -> None:
    system = Message("system", (Text("Be brief."),))
    async with anthropic(then=replying(wire.text("ok"))) as (backend, upstream):
        await backend.complete(model_call(system, QUESTION, tools=[CALCULATOR], temperature=0.5, max_tokens=77))
    request = upstream.requests[0]
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert request.json["model"] == "claude-sonnet-4-5"
    assert request.json["max_tokens"] == 77
    assert request.json["temperature"] == 0.5
    assert request.json["tools"][0]["name"] == "calculator"
    assert "Be brief." in json.dumps(request.json["system"])


async def test_tool_round_is_handed_back_in_the_provider_s_form() -> None:
    history = (
        Message("assistant", (ToolCall("toolu_1", "calculator", '{"expression":"12+30"}'),)),
        Message("tool", (ToolResult("toolu_1", "42"),)),
    )
    async with anthropic(then=replying(wire.text("42"))) as (backend, upstream):
        await backend.complete(model_call(QUESTION, *history, tools=[CALCULATOR]))
    roles = [
        (message["role"], [part["type"] for part in message["content"]]) for message in upstream.requests[0].messages
    ]
    assert roles == [("user", ["text"]), ("assistant", ["tool_use"]), ("user", ["tool_result"])]


async def test_parallel_calls_and_text_come_whole_in_both_forms() -> None:
    blocks = (
        wire.text("Let me see."),
        wire.use("toolu_1", "calculator", expression="1+1"),
        wire.use("toolu_2", "calculator", expression="2+2"),
    )
    async with anthropic(then=replying(*blocks)) as (backend, _):
        whole = await backend.complete(model_call(QUESTION, tools=[CALCULATOR]))
        read = await read_stream(backend, model_call(QUESTION, tools=[CALCULATOR]))
    expected = [("calculator", {"expression": "1+1"}), ("calculator", {"expression": "2+2"})]
    assert parsed(whole.message.tool_calls) == parsed(read.calls) == expected
    assert [call.id for call in read.calls] == ["toolu_1", "toolu_2"]
    assert whole.message.text == read.text == "Let me see."
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (11, 5)
    assert (read.usages[0].prompt_tokens, read.usages[0].completion_tokens) == (11, 5)


ERRORS: list[tuple[Reply, type[GatewayError], str, dict[str, Any]]] = [
    (
        wire.refusal(429, "rate_limit_error", "slow down", retry_after="7"),
        UpstreamUnavailable,
        "slow down",
        {"status": 429, "retry_after_s": 7.0},
    ),
    (
        wire.refusal(400, "invalid_request_error", "temperature: must be below 1"),
        UpstreamRefused,
        "temperature: must be below 1",
        {"status": 400},
    ),
    (
        wire.refusal(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        ContextTooLong,
        "prompt is too long",
        {},
    ),
    (
        wire.refusal(401, "authentication_error", f"invalid x-api-key {KEY}"),
        UpstreamDenied,
        "credentials",
        {"status": 401},
    ),
    (wire.refusal(404, "not_found_error", "model: claude-x"), UpstreamRefused, "model: claude-x", {"status": 404}),
    (wire.refusal(500, "api_error", "boom"), UpstreamUnavailable, "boom", {}),
    (wire.refusal(529, "overloaded_error", "Overloaded"), UpstreamUnavailable, "Overloaded", {}),
    (body(b"<html>not json</html>"), UpstreamBroken, "protocol", {}),
    (hang_up(), UpstreamError, "connection", {}),
]


@pytest.mark.parametrize(("reply", "kind", "words_of_it", "attributes"), ERRORS)
@pytest.mark.parametrize("form", ["whole", "streamed"])
async def test_errors_are_translated_by_status_and_keep_the_provider_s_words(
    reply: Reply, kind: type[GatewayError], words_of_it: str, attributes: dict[str, Any], form: str
) -> None:
    async with anthropic(then=reply) as (backend, upstream):
        ask = backend.complete if form == "whole" else functools.partial(read_stream, backend)
        with pytest.raises(kind) as caught:
            await ask(model_call(QUESTION))
    error = caught.value
    if form == "whole" or kind is not UpstreamBroken:
        assert words_of_it in error.message
    for name, value in attributes.items():
        assert getattr(error, name) == value
    assert KEY not in error.message
    assert "litellm" not in error.message.lower()
    assert len(upstream.requests) == 1, "retries are the pool's business"


async def test_refused_connection_is_unavailable() -> None:
    async with ScriptedUpstream() as upstream:
        address = f"http://127.0.0.1:{upstream.port}"
    backend = LitellmBackend("claude", BackendConfig(provider="anthropic", model="m", api_key=KEY, base_url=address))
    with pytest.raises(UpstreamUnavailable) as caught:
        await backend.complete(model_call(QUESTION))
    await backend.close()
    assert address not in caught.value.message


async def test_stream_that_is_cut_is_broken_and_not_finished() -> None:
    steps = wire.events(wire.text("one two three four"))
    async with anthropic(then=stream(*steps[:5])) as (backend, _):
        with pytest.raises(UpstreamBroken):
            await read_stream(backend, model_call(QUESTION))


async def test_error_event_inside_a_stream_is_raised() -> None:
    steps = wire.events(wire.text("one two three four"))[:4]
    fault = wire.event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    async with anthropic(then=stream(*steps, fault)) as (backend, _):
        with pytest.raises(UpstreamError):
            await read_stream(backend, model_call(QUESTION))


async def test_closing_the_stream_aborts_the_upstream_request() -> None:
    steps = wire.events(wire.text("one two three four"))
    reply = stream(*steps).stall_at(sum(len(step) for step in steps[:4]))
    async with anthropic(then=reply) as (backend, upstream):
        batches = backend.stream(model_call(QUESTION))
        async with asyncio.timeout(5):
            await anext(batches)
            await batches.aclose()
            await upstream.aborted()


async def test_cancelling_a_call_aborts_the_upstream_request() -> None:
    async with anthropic(then=wire.whole(wire.text("late")).held()) as (backend, upstream):
        task = asyncio.ensure_future(backend.complete(model_call(QUESTION, timeout_s=30)))
        await upstream.stalled(timeout_s=30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.aborted()


async def test_silent_upstream_times_out() -> None:
    async with anthropic(then=wire.whole(wire.text("late")).held(), first_token_timeout_s=0.3) as (backend, _):
        with pytest.raises(UpstreamTimeout):
            await backend.complete(model_call(QUESTION, timeout_s=0.3))
        with pytest.raises(UpstreamTimeout):
            await read_stream(backend, model_call(QUESTION))


async def test_client_s_fields_cannot_steer_the_library() -> None:
    async with anthropic(then=replying(wire.text("true answer"))) as (backend, upstream):
        call = model_call(
            QUESTION,
            api_base="http://127.0.0.1:1",
            mock_response="made up",
            api_key="mine",
            num_retries=3,
            fallbacks=["x"],
        )
        said = await backend.complete(call)
    assert said.message.text == "true answer"
    assert upstream.requests[0].headers["x-api-key"] == KEY


async def test_parameter_the_provider_lacks_is_refused_unless_dropped() -> None:
    async with anthropic(then=replying(wire.text("ok"))) as (backend, _):
        with pytest.raises(UpstreamRefused) as caught:
            await backend.complete(model_call(QUESTION, seed=1))
    assert caught.value.param == "seed"
    async with anthropic(then=replying(wire.text("ok")), drop_params=("seed",)) as (backend, _):
        assert (await backend.complete(model_call(QUESTION, seed=1))).message.text == "ok"


async def test_configured_parameters_are_defaults() -> None:
    async with anthropic(then=replying(wire.text("ok")), params={"max_tokens": 9, "temperature": 0.1}) as (
        backend,
        upstream,
    ):
        await backend.complete(model_call(QUESTION, temperature=0.9))
    assert upstream.requests[0].json["max_tokens"] == 9
    assert upstream.requests[0].json["temperature"] == 0.9


async def test_field_of_a_client_takes_no_setting_of_the_operator_s_away() -> None:
    params = {"api_version": "2024-10-21", "top_k": 5, "max_tokens": 9}
    async with anthropic(then=replying(wire.text("ok")), params=params) as (backend, upstream):
        arguments = backend._arguments(model_call(QUESTION, api_version="x", api_base="http://x"), 1.0)
        assert (arguments["api_version"], arguments["api_base"].startswith("http://127")) == ("2024-10-21", True)
        await backend.complete(model_call(QUESTION, top_k=7, max_completion_tokens=3))
        await backend.complete(model_call(QUESTION))
    told = [(request.json["top_k"], request.json["max_tokens"]) for request in upstream.requests]
    assert told == [(7, 3), (5, 9)]


@pytest.mark.parametrize(
    ("provider", "setting", "field"),
    [
        ("deepseek", "auto", "reasoning_content"),
        ("deepseek", "off", None),
        ("hosted_vllm", "auto", None),
        ("hosted_vllm", "reasoning", "reasoning"),
    ],
)
async def test_thoughts_behind_calls_go_to_providers_that_want_them(
    provider: str, setting: Any, field: str | None
) -> None:
    call = ToolCall("a", "calculator", "{}")
    asked = model_call(
        QUESTION, Message("assistant", (Reasoning("hmm"), call)), Message("tool", (ToolResult("a", "1"),))
    )
    async with ScriptedUpstream(then=answer("ok")) as upstream:
        config = BackendConfig(
            provider=provider, model="m", api_key=KEY, base_url=upstream.base_url, send_reasoning=setting
        )
        backend = LitellmBackend(provider, config)
        await backend.complete(asked)
        await backend.close()
    said = upstream.requests[0].messages[1]
    assert {name: said[name] for name in said if name.startswith("reasoning")} == ({field: "hmm"} if field else {})


async def test_provider_that_speaks_openai_s_protocol_works_too() -> None:
    def script(request: UpstreamRequest) -> Reply:
        if request.json.get("stream"):
            return stream(words("hello there"), f("stop"), u(3, 2), DONE)
        return answer("hello there", tokens=(3, 2))

    async with ScriptedUpstream(then=script) as upstream:
        config = BackendConfig(provider="deepseek", model="deepseek-chat", api_key=KEY, base_url=upstream.base_url)
        backend = LitellmBackend("deepseek", config)
        said = await backend.complete(model_call(QUESTION, something_new={"a": 1}))
        read = await read_stream(backend, model_call(QUESTION))
        await backend.close()
    assert said.message.text == read.text == "hello there"
    assert upstream.requests[0].json["something_new"] == {"a": 1}


async def test_cut_stream_of_such_a_provider_is_broken_too() -> None:
    async with ScriptedUpstream(
        then=stream(words("hello there"), tc(0, id="call_1", name="a", arguments="{"))
    ) as upstream:
        config = BackendConfig(provider="deepseek", model="deepseek-chat", api_key=KEY, base_url=upstream.base_url)
        backend = LitellmBackend("deepseek", config)
        with pytest.raises(UpstreamBroken):
            await read_stream(backend, model_call(QUESTION))
        await backend.close()


async def test_one_backend_s_close_leaves_the_other_s_calls_alone() -> None:
    late = wire.whole(wire.text("ok")).held()
    async with anthropic(then=replying(wire.text("ok"))) as (first, _), anthropic(then=late) as (second, upstream):
        await first.complete(model_call(QUESTION))
        under_way = asyncio.ensure_future(second.complete(model_call(QUESTION)))
        await upstream.stalled()
        await first.close()
        upstream.release()
        assert (await under_way).message.text == "ok"


async def test_process_of_its_own_reaches_nobody_else_and_says_and_leaves_nothing() -> None:
    async with ScriptedUpstream(then=replying(wire.text("hi there"))) as upstream:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.backends.litellm_process",
            str(upstream.port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert err == b""
    report = json.loads(out)
    assert report["elsewhere"] == []
    assert report["prepared"], "the import needs no call"
    assert report["text"] == "hi there"
    assert report["counts"][0] == report["counts"][-1], "each call leaves something behind"
    assert report["tasks_left"] == []
    assert report["sockets_left"] == 0


@pytest.mark.parametrize("provider", ["anthropic", "deepseek"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_redirect_is_not_followed(provider: str, streamed: bool) -> None:
    async with ScriptedUpstream() as elsewhere:
        away = Reply(307, (("location", f"{elsewhere.base_url}/chat/completions"),))
        async with ScriptedUpstream(then=away) as upstream:
            config = BackendConfig(provider=provider, model="m", api_key=KEY, base_url=upstream.base_url)
            backend = LitellmBackend(provider, config)
            with pytest.raises(UpstreamError) as caught:
                await (
                    read_stream(backend, model_call(QUESTION)) if streamed else backend.complete(model_call(QUESTION))
                )
            await backend.close()
        assert (len(elsewhere.requests), len(upstream.requests)) == (0, 1)
        assert str(elsewhere.port) not in caught.value.message


async def test_answer_without_a_part_is_no_trouble_of_the_network() -> None:
    lacking = body({"type": "message", "role": "assistant", "content": [wire.text("x")], "stop_reason": "end_turn"})
    nothing = Reply(503, steps=(b"",))
    async with anthropic(lacking, nothing, nothing) as (backend, _):
        with pytest.raises(UpstreamBroken, match="protocol"):
            await backend.complete(model_call(QUESTION))
        for ask in (backend.complete, lambda call: read_stream(backend, call)):
            with pytest.raises(UpstreamUnavailable, match="answered 503"):
                await ask(model_call(QUESTION))


async def test_image_at_a_private_address_is_not_fetched() -> None:
    async with ScriptedUpstream() as inside, anthropic(then=replying(wire.text("ok"))) as (backend, upstream):
        picture = Message("user", (Text("what is this?"), Image(f"http://127.0.0.1:{inside.port}/secret.png")))
        with pytest.raises(GatewayError) as caught:
            await backend.complete(model_call(picture))
    assert inside.requests == []
    assert upstream.requests == []
    assert isinstance(caught.value, UpstreamRefused)
