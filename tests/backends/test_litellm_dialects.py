from __future__ import annotations

import asyncio
import functools
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from gateway.backends.litellm import LitellmBackend, _import_litellm
from gateway.chat.blocks import Image, Message, Text, ToolCall, ToolResult
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
from tests.backends.contract import CALCULATOR, QUESTION, model_call, parsed, read_stream
from tests.backends.litellm_anthropic import AnthropicDialect
from tests.backends.litellm_azure import AzureDialect
from tests.backends.litellm_bedrock import BedrockDialect
from tests.backends.litellm_dialect import Dialect, Said
from tests.backends.litellm_gemini import GeminiDialect
from tests.backends.openai_schemas import check_answer, check_chunk
from tests.replies import Reply, Stall
from tests.upstream import Script, ScriptedUpstream, UpstreamRequest

# Pydantic's warnings about litellm's own types, which it builds and reads on first use; nothing of ours is at fault.
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Items? '.*' on TypedDict class '.*' (is|are) using the `ReadOnly` qualifier:UserWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:Accessing the 'model_.*' attribute on the instance is deprecated:DeprecationWarning"
    ),
]

KINDS: dict[str, Callable[[], Dialect]] = {
    "anthropic": AnthropicDialect,
    "azure": AzureDialect,
    "bedrock": BedrockDialect,
    "gemini": GeminiDialect,
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TWO = (("call_1", "calculator", {"expression": "1+1"}), ("call_2", "calculator", {"expression": "2+2"}))


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """The import takes seconds, on a busy machine many; it is not what the tests' bounds are about."""
    _import_litellm()


@pytest.fixture(params=list(KINDS), scope="module")
def dialect(request: pytest.FixtureRequest) -> Dialect:
    kind = KINDS[request.param]
    return kind()


@asynccontextmanager
async def provider(
    dialect: Dialect, then: Script | Said, **settings: Any
) -> AsyncIterator[tuple[LitellmBackend, ScriptedUpstream]]:
    """A backend of this dialect before a server that reads every request and says this."""

    def script(request: UpstreamRequest) -> Reply:
        asked = dialect.read(request)
        if isinstance(then, Said):
            return dialect.streamed(dialect.steps(then)) if asked.streams else dialect.whole(then)
        if isinstance(then, Reply):
            return then
        made = then(request)
        assert isinstance(made, Reply)
        return made

    async with ScriptedUpstream(then=script) as upstream:
        backend = LitellmBackend("b", dialect.config(upstream.port, **settings))
        try:
            yield backend, upstream
        finally:
            await backend.close()


async def test_text_and_usage_come_alike_in_both_forms(dialect: Dialect) -> None:
    async with provider(dialect, Said("It is 42, I think.", tokens=(31, 9), cached=20)) as (backend, _):
        whole = await backend.complete(model_call(QUESTION))
        read = await read_stream(backend, model_call(QUESTION))
    check_answer(whole.body)
    bodies = [check_chunk(chunk.data) for chunk in read.chunks]
    assert whole.message.text == read.text == "It is 42, I think."
    assert whole.finish_reason == "stop"
    assert read.finish_reasons == ["stop"]
    assert read.roles == ["assistant"]
    assert len({body["id"] for body in bodies}) == 1
    assert len({body["created"] for body in bodies}) == 1
    assert whole.usage is not None
    assert len(read.usages) == 1
    for usage in (whole.usage, read.usages[0]):
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (31, 9, 20)


async def test_a_conversation_arrives_in_the_provider_s_form(dialect: Dialect) -> None:
    conversation = (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("what is this?"), Image(f"data:image/png;base64,{PIXEL}"))),
        Message("assistant", tuple(ToolCall(i, n, json.dumps(a)) for i, n, a in TWO)),
        Message("tool", (ToolResult("call_1", "2"),)),
        Message("tool", (ToolResult("call_2", "4"),)),
        Message("user", (Text("and?"),)),
    )
    call = model_call(*conversation, tools=[CALCULATOR], temperature=0.5, max_tokens=77, stop=["END"])
    async with provider(dialect, Said("ok")) as (backend, upstream):
        await backend.complete(call)
        await read_stream(backend, call)
    for request in upstream.requests:
        asked = dialect.read(request)
        assert asked.system == "Be brief."
        assert asked.images == [b64decode(PIXEL)]
        assert list(asked.results.values())[-1] == "4"
        assert asked.tools == ["calculator"]
        assert asked.max_tokens == 77
        assert asked.stop == ["END"]
        assert request.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")


async def test_parallel_calls_come_alike_in_both_forms(dialect: Dialect) -> None:
    async with provider(dialect, Said("Let me see.", TWO)) as (backend, _):
        whole = await backend.complete(model_call(QUESTION, tools=[CALCULATOR]))
        read = await read_stream(backend, model_call(QUESTION, tools=[CALCULATOR]))
    check_answer(whole.body)
    for chunk in read.chunks:
        check_chunk(chunk.data)
    expected = [("calculator", {"expression": "1+1"}), ("calculator", {"expression": "2+2"})]
    assert parsed(whole.message.tool_calls) == parsed(read.calls) == expected
    assert len({call.id for call in read.calls}) == len({call.id for call in whole.message.tool_calls}) == 2
    assert whole.finish_reason == "tool_calls"
    assert read.finish_reasons == ["tool_calls"]
    assert whole.message.text == read.text == "Let me see."


@pytest.mark.parametrize(("end", "reason"), [("length", "length"), ("filter", "content_filter")])
async def test_an_end_keeps_its_reason(dialect: Dialect, end: str, reason: str) -> None:
    async with provider(dialect, Said("It is", end=end)) as (backend, _):
        whole = await backend.complete(model_call(QUESTION))
        read = await read_stream(backend, model_call(QUESTION))
    assert whole.finish_reason == reason
    assert read.finish_reasons == [reason]


async def test_thoughts_are_shown_apart_from_the_words(dialect: Dialect) -> None:
    if dialect.name == "azure":
        pytest.skip("Azure's Chat Completions show no thoughts")
    said = Said("42", thought="twelve and thirty", signature="c2lnbmVk", tokens=(11, 50), reasoning=30)
    async with provider(dialect, said) as (backend, _):
        whole = await backend.complete(model_call(QUESTION, reasoning_effort="low"))
        read = await read_stream(backend, model_call(QUESTION, reasoning_effort="low"))
    message = check_answer(whole.body)["choices"][0]["message"]
    assert message["content"] == read.text == "42"
    assert message["reasoning_content"] == "twelve and thirty"
    deltas = [choice.delta for chunk in read.chunks for choice in chunk.choices if choice.delta]
    assert "".join(delta.reasoning_content or "" for delta in deltas) == "twelve and thirty"
    if dialect.name != "bedrock":  # which does not count them
        assert whole.usage is not None
        assert whole.usage.reasoning_tokens == read.usages[0].reasoning_tokens == 30
        assert whole.usage.completion_tokens == read.usages[0].completion_tokens == 50


async def test_the_form_of_an_answer_is_asked_for(dialect: Dialect) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "sum", "strict": True, "schema": schema}}
    async with provider(dialect, Said('{"sum":42}')) as (backend, upstream):
        whole = await backend.complete(model_call(QUESTION, response_format=form))
        read = await read_stream(backend, model_call(QUESTION, response_format=form))
    assert json.loads(whole.message.text) == json.loads(read.text) == {"sum": 42}
    for request in upstream.requests:
        asked = dialect.read(request)
        assert asked.schema is not None
        assert "sum" in asked.schema["properties"]


async def test_fields_no_one_knows_travel(dialect: Dialect) -> None:
    async with provider(dialect, Said("ok"), headers={"x-extra": "e1"}) as (backend, upstream):
        await backend.complete(model_call(QUESTION, something_new={"a": 1}))
        await read_stream(backend, model_call(QUESTION, something_new={"a": 1}))
    for request in upstream.requests:
        assert dialect.read(request).extras == {"something_new": {"a": 1}}
        assert request.headers["x-extra"] == "e1"


ERRORS: list[tuple[int, str, type[GatewayError], dict[str, Any]]] = [
    (400, "temperature: must be below 1", UpstreamRefused, {"status": 400}),
    (401, "bad key", UpstreamDenied, {"status": 401}),
    (403, "not this model", UpstreamDenied, {"status": 403}),
    (404, "no such model", UpstreamRefused, {"status": 404}),
    (429, "slow down", UpstreamUnavailable, {"status": 429, "retry_after_s": 7.0}),
    (500, "boom", UpstreamUnavailable, {"status": 500}),
    (503, "Overloaded", UpstreamUnavailable, {"status": 503}),
]


@pytest.mark.parametrize(("status", "words", "kind", "attributes"), ERRORS, ids=[str(row[0]) for row in ERRORS])
@pytest.mark.parametrize("form", ["whole", "streamed"])
async def test_an_error_keeps_status_and_words(
    dialect: Dialect, status: int, words: str, kind: type[GatewayError], attributes: dict[str, Any], form: str
) -> None:
    if status == 503:
        status = dialect.overloaded
        attributes = {"status": status}
    if status == 500 and dialect.name == "bedrock":
        attributes = {"status": 503}  # litellm makes one of the two
    headers = {"retry_after": "7"} if status == 429 else {}
    reply = dialect.refusal(status, f"{words} {' '.join(dialect.secrets)}", **headers)
    async with provider(dialect, reply) as (backend, upstream):
        ask = backend.complete if form == "whole" else functools.partial(read_stream, backend)
        with pytest.raises(kind) as caught:
            await ask(model_call(QUESTION))
    error = caught.value
    assert (words if status not in (401, 403) else "credentials") in error.message
    for name, value in attributes.items():
        assert getattr(error, name) == value
    for secret in dialect.secrets:
        assert secret not in error.message
    assert "litellm" not in error.message.lower()
    assert "{" not in error.message
    assert len(upstream.requests) == 1, "retries are the pool's business"


@pytest.mark.parametrize("form", ["whole", "streamed"])
async def test_a_prompt_that_is_too_long_is_known_as_such(dialect: Dialect, form: str) -> None:
    async with provider(dialect, dialect.refusal(400, dialect.too_long)) as (backend, _):
        ask = backend.complete if form == "whole" else functools.partial(read_stream, backend)
        with pytest.raises(ContextTooLong) as caught:
            await ask(model_call(QUESTION))
    assert dialect.too_long in caught.value.message


async def test_an_error_in_mid_stream_ends_it(dialect: Dialect) -> None:
    steps = dialect.steps(Said("one two three four"))[:-2]
    async with provider(dialect, dialect.streamed([*steps[:3], dialect.fault("too much at once")])) as (backend, _):
        with pytest.raises(UpstreamError) as caught:
            await read_stream(backend, model_call(QUESTION))
    assert "too much at once" in caught.value.message


@pytest.mark.parametrize("said", [Said("one two three four"), Said(calls=TWO)], ids=["text", "calls"])
async def test_a_stream_cut_anywhere_is_never_a_whole_answer(dialect: Dialect, said: Said) -> None:
    steps = dialect.steps(said)
    last = _end_of(dialect, steps)
    for kept in range(1, last + 1):
        for step in (steps[:kept], [*steps[: kept - 1], steps[kept - 1][: len(steps[kept - 1]) // 2]]):
            async with provider(dialect, dialect.streamed(step)) as (backend, _):
                with pytest.raises(UpstreamError):
                    await read_stream(backend, model_call(QUESTION, tools=[CALCULATOR]))


def _end_of(dialect: Dialect, steps: list[bytes]) -> int:
    """The number of steps before the one that says why the answer ends."""
    marks = (b"stop_reason", b"stopReason", b"finishReason", b'"finish_reason": "')
    return next(i for i, step in enumerate(steps) if any(m in step for m in marks) and b"message_start" not in step)


async def test_closing_the_stream_aborts_the_upstream_request(dialect: Dialect) -> None:
    steps = dialect.steps(Said("one two three four"))
    reply = dialect.streamed([*steps[:-1], Stall()])
    async with provider(dialect, reply) as (backend, upstream):
        async with asyncio.timeout(10), aclosing(backend.stream(model_call(QUESTION))) as batches:
            await anext(batches)
        started = asyncio.get_running_loop().time()
        aborts = await upstream.aborted()
    assert aborts[0].at - started < 1


async def test_cancelling_a_call_aborts_the_upstream_request(dialect: Dialect) -> None:
    async with provider(dialect, dialect.whole(Said("late")).held()) as (backend, upstream):
        task = asyncio.ensure_future(backend.complete(model_call(QUESTION, timeout_s=30)))
        await upstream.stalled(timeout_s=30)
        started = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        aborts = await upstream.aborted()
    assert aborts[0].at - started < 1


async def test_a_silent_provider_times_out(dialect: Dialect) -> None:
    reply = dialect.whole(Said("late")).held()
    async with provider(dialect, reply, first_token_timeout_s=0.3, timeout_s=0.3) as (backend, _):
        with pytest.raises(UpstreamTimeout):
            await backend.complete(model_call(QUESTION))
        with pytest.raises(UpstreamTimeout):
            await read_stream(backend, model_call(QUESTION))


async def test_a_stream_that_falls_silent_times_out(dialect: Dialect) -> None:
    steps = dialect.steps(Said("one two three four"))
    async with provider(
        dialect, dialect.streamed([*steps[: _end_of(dialect, steps)], Stall()]), idle_timeout_s=0.3
    ) as (backend, _):
        with pytest.raises(UpstreamTimeout):
            await read_stream(backend, model_call(QUESTION))


async def test_garbage_is_broken(dialect: Dialect) -> None:
    async with provider(dialect, dialect.streamed([b"<html>no</html>"])) as (backend, _):
        with pytest.raises(UpstreamBroken):
            await backend.complete(model_call(QUESTION))
        with pytest.raises(UpstreamError):
            await read_stream(backend, model_call(QUESTION))
