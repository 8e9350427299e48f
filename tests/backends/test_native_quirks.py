"""What OpenAI-like servers do that OpenAI does not: seen by the client as if they did not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from gateway.chat.blocks import Message, Reasoning, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import decode_message
from gateway.chat.deltas import MOST_CALLS
from gateway.config.models import BackendConfig
from gateway.errors import UpstreamBroken, UpstreamRefused
from tests.backends.contract import model_call, parsed, read_stream
from tests.backends.openai_schemas import check_answer, check_chunk
from tests.backends.test_native import PLAIN, failure, scripted
from tests.upstream import DONE, Reply, UpstreamRequest, answer, body, call, chunk, d, error, f, stream, tc, u, words

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
DIALECTS = pytest.mark.parametrize("dialect", ["openai", "compatible"])


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "two gzip members": ("gzip", lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:])),
    "zlib": ("deflate", zlib.compress),
    "deflate without a head": ("deflate", raw_deflate),
}


def packed(reply: Reply, encoding: str, data: bytes) -> Reply:
    return Reply(reply.status, (*reply.headers, ("content-encoding", encoding)), (data,))


@BOTH
@pytest.mark.parametrize("how", PACKED)
async def test_answer_that_is_compressed_unasked_is_read(how: str, streamed: bool) -> None:
    encoding, pack = PACKED[how]
    reply = stream(PLAIN) if streamed else answer("hello big world")
    whole = packed(reply, encoding, pack(reply.body))
    refused = error(400, "no such option", param="x")
    async with scripted(whole, whole.cut(7), packed(refused, encoding, pack(refused.body))) as (_, backend):
        for _ in range(2):
            said = (await read_stream(backend, model_call("hi"))).text if streamed else ""
            said = said or (await backend.complete(model_call("hi"))).message.text
            assert said == "hello big world"
        caught = await failure(backend, streamed=streamed)
        assert (caught.message, isinstance(caught, UpstreamRefused)) == ("no such option", True)


@BOTH
async def test_compressed_answer_is_bounded_by_what_it_becomes(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    monkeypatch.setattr("gateway.backends.reading.ANSWER_BYTES", 1_000_000)
    monkeypatch.setattr("gateway.backends.native._STREAM_BYTES", 1_000_000)
    reply = stream(PLAIN) if streamed else answer("x")
    async with scripted(packed(reply, "gzip", gzip.compress(b" " * 50_000_000))) as (_, backend):
        assert "more than 1000000 bytes" in (await failure(backend, streamed=streamed)).message


@BOTH
async def test_encoding_nobody_reads_and_a_cut_one_are_errors(streamed: bool) -> None:
    reply = stream(PLAIN) if streamed else answer("x")
    cut = packed(reply, "gzip", gzip.compress(reply.body)[:40])
    wrong = packed(reply, "gzip", reply.body)
    async with scripted(packed(reply, "br", b"x"), cut, wrong) as (_, backend):
        assert "'br'" in (await failure(backend, streamed=streamed)).message
        for _ in range(2):
            assert isinstance(await failure(backend, streamed=streamed), UpstreamBroken)


@DIALECTS
async def test_server_that_does_not_stream_is_heard_all_the_same(dialect: str) -> None:
    whole = answer("", calls=[call("a", "add", '{"x":1}'), call("b", "add", '{"x":2}')], tokens=(3, 4))
    async with scripted(answer("whole", tokens=(3, 4)), whole, dialect=dialect) as (_, backend):
        said = await read_stream(backend, model_call("hi"))
        assert (said.text, said.finish_reasons) == ("whole", ["stop"])
        assert [(each.prompt_tokens, each.completion_tokens) for each in said.usages] == [(3, 4)]
        called = await read_stream(backend, model_call("hi"))
        assert parsed(called.calls) == [("add", {"x": 1}), ("add", {"x": 2})]
        assert called.finish_reasons == ["tool_calls"]


@BOTH
async def test_failure_in_the_place_of_a_finish_reason_is_a_failure(streamed: bool) -> None:
    failed = {"index": 0, "finish_reason": "error", "error": {"code": 502, "message": "provider gone"}}
    reply = (
        stream(d({"role": "assistant", "content": "Hel"}), chunk(choices=[failed | {"delta": {}}]), DONE)
        if streamed
        else body({"choices": [failed | {"message": {"role": "assistant", "content": "Hel"}}]})
    )
    async with scripted(reply, dialect="compatible") as (_, backend):
        assert (await failure(backend, streamed=streamed)).message == "provider gone"


@BOTH
async def test_older_and_custom_calls_are_calls(streamed: bool) -> None:
    older = {"name": "add", "arguments": {"x": 1}}
    custom = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}

    def reply(said: dict[str, Any], finish: str) -> Reply:
        if streamed:
            return stream(d({"role": "assistant", **said}), f(finish), DONE)
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **said}, "finish_reason": finish}
        return body({"choices": [choice]})

    async with scripted(
        reply({"function_call": older}, "function_call"), reply({"tool_calls": [custom]}, "stop"), dialect="compatible"
    ) as (_, backend):
        found = []
        for _ in range(2):
            if streamed:
                read = await read_stream(backend, model_call("hi"))
                assert read.finish_reasons == ["tool_calls"]
                found.append(read.calls)
            else:
                whole = await backend.complete(model_call("hi"))
                check_answer(whole.body)
                assert whole.finish_reason == "tool_calls"
                found.append(whole.message.tool_calls)
    assert parsed(found[0]) == [("add", {"x": 1})]
    assert [(c.id, c.name, c.arguments, c.custom) for c in found[1]] == [("c", "sql", "select 1", True)]


@BOTH
@pytest.mark.parametrize("thinking", ["hmm", [{"type": "text", "text": "hmm"}]])
async def test_thoughts_among_the_parts_of_content_are_reasoning(thinking: Any, streamed: bool) -> None:
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "42"}]
    reply = stream(d({"role": "assistant", "content": parts}), f("stop"), DONE) if streamed else answer(parts)  # type: ignore[arg-type]
    async with scripted(reply, dialect="compatible") as (_, backend):
        if streamed:
            read = await read_stream(backend, model_call("hi"))
            deltas = [check_chunk(each.data)["choices"][0]["delta"] for each in read.chunks]
            assert (read.text, deltas[0]["reasoning_content"]) == ("42", "hmm")
        else:
            whole = await backend.complete(model_call("hi"))
            assert whole.message.blocks[0] == Reasoning("hmm")
            assert check_answer(whole.body)["choices"][0]["message"]["reasoning_content"] == "hmm"
            assert whole.message.text == "42"


async def test_calls_without_end_are_given_up() -> None:
    calls = [call(f"c{n}", "add", "{}") for n in range(MOST_CALLS + 1)]
    frames = [tc(n, id=f"c{n}", name="add", arguments="{}") for n in range(MOST_CALLS + 1)]
    for dialect in ("openai", "compatible"):
        async with scripted(answer(calls=calls), dialect=dialect) as (_, backend):
            assert f"more than {MOST_CALLS} tool calls" in (await failure(backend, streamed=False)).message
    async with scripted(stream(*frames, f("tool_calls"), DONE), dialect="compatible") as (_, backend):
        assert f"more than {MOST_CALLS} tool calls" in (await failure(backend, streamed=True)).message


async def test_chunks_that_only_bring_text_are_read_by_their_bytes_and_others_are_not_mistaken_for_them() -> None:
    odd = ['a"b', "\\", "\u2028é漢🌧", '","x":"', "}\n\n", "\\ud83d", " "]
    frames = [
        d({"role": "assistant", "content": "start"}),
        d({"content": "one"}),
        *(d({"content": text}) for text in odd),
        d({"content": ""}),
        d({"content": "same"}, index=1),
        d({"content": "with", "refusal": None}),
        chunk(choices=[{"index": 0, "delta": {"content": "end"}, "finish_reason": "stop"}]),
        u(3, 1),
        DONE,
    ]
    async with scripted(stream(frames), dialect="compatible") as (_, backend):
        read = await read_stream(backend, model_call("hi"))
    assert read.text == "startone" + "".join(odd) + "withend"
    assert read.finish_reasons == ["stop"]
    told = [check_chunk(each.data)["choices"] for each in read.chunks]
    assert "".join(c["delta"].get("content", "") for each in told for c in each if not c["index"]) == read.text
    assert "".join(c["delta"].get("content", "") for each in told for c in each if c["index"]) == "same"


async def test_usage_beside_every_text_is_kept() -> None:
    usages = [{"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n} for n in range(4)]
    frames = [
        chunk(choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": None}], usage=each) for each in usages
    ]
    async with scripted(stream(*words("a"), *frames, f("stop"), DONE), dialect="compatible") as (_, backend):
        assert (await read_stream(backend, model_call("hi"))).usages[-1].completion_tokens == 3


async def test_fields_are_renamed_only_where_the_configuration_says_so() -> None:
    asked = model_call("hi", max_completion_tokens=5, user="u")
    async with scripted(then=answer("x")) as (upstream, backend):
        await backend.complete(asked)
        assert upstream.requests[0].json["max_completion_tokens"] == 5
    async with scripted(then=answer("x"), map_params={"max_completion_tokens": "max_tokens"}) as (upstream, backend):
        await backend.complete(asked)
        sent = upstream.requests[0].json
        assert (sent["max_tokens"], "max_completion_tokens" in sent, sent["user"]) == (5, False, "u")
    # This one ignores the newer name without a word.
    async with scripted(then=answer("x"), provider="ollama") as (upstream, backend):
        await backend.complete(asked)
        assert upstream.requests[0].json["max_tokens"] == 5
    itself = {"max_completion_tokens": "max_completion_tokens"}
    async with scripted(then=answer("x"), provider="ollama", map_params=itself) as (upstream, backend):
        await backend.complete(asked)
        assert upstream.requests[0].json["max_completion_tokens"] == 5


@pytest.mark.parametrize("names", [{"model": "x"}, {"x": "stream"}])
def test_fields_of_the_gateway_cannot_be_renamed(names: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="the gateway decides about it"):
        BackendConfig(provider="openai", model="up", map_params=names)
    with pytest.raises(ValueError, match="is for servers"):
        BackendConfig(provider="demo", map_params={"a": "b"})


@DIALECTS
async def test_options_of_a_stream_reach_the_server_which_may_refuse_them(dialect: str) -> None:
    asked = model_call("hi", stream_options={"include_obfuscation": False, "continuous_usage_stats": True})
    refused = error(400, "Unknown parameter: 'stream_options.include_obfuscation'.", param="stream_options")
    async with scripted(stream(PLAIN), refused, stream(PLAIN), dialect=dialect) as (upstream, backend):
        assert (await read_stream(backend, asked)).text == "hello big world"
        with pytest.raises(UpstreamRefused) as caught:
            await read_stream(backend, asked)
        assert caught.value.param == "stream_options"
        await read_stream(backend, model_call("hi"))
    own = {"include_obfuscation": False, "continuous_usage_stats": True}
    wanted = [{"include_usage": True, **own}, {"include_usage": True, **own}, {"include_usage": True}]
    assert [request.json["stream_options"] for request in upstream.requests] == wanted


def said(delta: Any, finish: str | None = None, **top: Any) -> Any:
    return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish}], **top)


ADD = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
MINUS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-Infinity,"token":"a",'
    b'"bytes":null,"top_logprobs":[]}]}}]}\n\n'
)
LOOSE: dict[str, tuple[list[Any], str, int]] = {
    "index as text": ([chunk(choices=[{"index": "0", "delta": {"role": "assistant", "content": "a"}}])], "a", 0),
    "time as text": ([said({"role": "assistant", "content": "a"}, created="1700000000")], "a", 0),
    "time as a date": ([said({"role": "assistant", "content": "a"}, created="2026-01-01T00:00:00Z")], "a", 0),
    "id as a number": ([said({"role": "assistant", "content": "a"}, id=7)], "a", 0),
    "counts as text": (
        [*words("a"), chunk(choices=[], usage={"prompt_tokens": "5", "completion_tokens": "7"})],
        "a",
        0,
    ),
    "odd details": ([*words("a"), chunk(choices=[], usage={"prompt_tokens": 5, "prompt_tokens_details": []})], "a", 0),
    "content as a number": ([said({"role": "assistant", "content": 5})], "5", 0),
    "thoughts as an object": ([said({"reasoning": {"text": "hm"}}), said({"content": "a"})], "a", 0),
    "call outside of a list": ([said({"tool_calls": {"index": 0, "id": "c", **ADD}})], "", 1),
    "call's index as text": ([said({"tool_calls": [{"index": "0", "id": "c", **ADD}]})], "", 1),
    "call's id as a number": ([said({"tool_calls": [{"index": 0, "id": 7, **ADD}]})], "", 1),
    "whole message": ([chunk(choices=[{"index": 0, "message": {"role": "assistant", "content": "a"}}])], "a", 0),
    "text of the older API": ([chunk(choices=[{"index": 0, "text": "a", "finish_reason": None}])], "a", 0),
    "events without a word": ([b"data:\n\n", b"data: null\n\n", *words("a")], "a", 0),
    "minus infinity": ([MINUS], "a", 0),
}


@pytest.mark.parametrize("how", LOOSE)
@pytest.mark.parametrize("end", [DONE, b"data: [DONE] \n\n"], ids=["end", "end with a space"])
async def test_types_that_are_taken_lightly_are_put_right(how: str, end: Any) -> None:
    frames, text, calls = LOOSE[how]
    async with scripted(stream(*frames, f("stop"), end), dialect="compatible") as (_, backend):
        read = await read_stream(backend, model_call("hi"))
    for each in read.chunks:
        check_chunk(each.data)
    assert (read.text, len(read.calls)) == (text, calls)
    assert read.finish_reasons == ["tool_calls" if calls else "stop"]


@pytest.mark.parametrize(
    ("message", "usage"),
    [
        ({"role": "assistant", "content": 5}, {"prompt_tokens": 1, "completion_tokens": 2}),
        ({"role": "assistant", "content": "5"}, {"prompt_tokens": "1", "completion_tokens": "2"}),
        (
            {"content": "5", "tool_calls": None, "reasoning": {"text": "hm"}},
            {"prompt_tokens": 1.0, "completion_tokens": "2"},
        ),
    ],
)
async def test_whole_answer_of_such_a_server_is_put_right_too(message: Any, usage: Any) -> None:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    async with scripted(
        body({"choices": [choice], "usage": usage, "service_tier": "on_demand"}), dialect="compatible"
    ) as (
        _,
        backend,
    ):
        whole = await backend.complete(model_call("hi"))
    check_answer(whole.body)
    assert whole.message.text == "5"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (1, 2)


@BOTH
@DIALECTS
@pytest.mark.parametrize(
    "failed",
    [
        {"object": "error", "message": "boom", "type": "InternalServerError", "param": None, "code": 500},
        {"message": "boom", "code": 500},
        {"detail": "boom"},
    ],
)
async def test_error_that_is_an_event_of_its_own_never_looks_like_an_end(
    failed: dict[str, Any], dialect: str, streamed: bool
) -> None:
    event = b"data: " + json.dumps(failed).encode() + b"\n\n"
    reply = stream(d({"role": "assistant", "content": "Hel"}), event, DONE) if streamed else body(failed)
    async with scripted(reply, dialect=dialect) as (_, backend):
        assert (await failure(backend, streamed=streamed)).message == "boom"


@BOTH
@DIALECTS
async def test_end_for_calls_that_were_never_made_is_a_plain_end(dialect: str, streamed: bool) -> None:
    reply = stream(words("a"), f("tool_calls"), DONE) if streamed else answer("a", finish="tool_calls")
    async with scripted(reply, dialect=dialect) as (_, backend):
        if streamed and dialect == "compatible":
            assert (await read_stream(backend, model_call("hi"))).finish_reasons == ["stop"]
        elif not streamed:
            assert (await backend.complete(model_call("hi"))).finish_reason == "stop"


THOUGHTFUL = (
    Message("user", (Text("hi"),)),
    Message("assistant", (Reasoning("hmm"), ToolCall("a", "add", "{}"))),
    Message("tool", (ToolResult("a", "1"),)),
    Message("assistant", (ToolCall("b", "add", "{}"),)),
    Message("tool", (ToolResult("b", "2"),)),
)


def thoughts(request: UpstreamRequest) -> list[Any]:
    return [each.get("reasoning_content", each.get("reasoning")) for each in request.messages]


@BOTH
async def test_thoughts_behind_calls_are_sent_to_servers_that_miss_them_and_to_no_others(streamed: bool) -> None:
    def strict(request: UpstreamRequest) -> Reply:
        if any(each.get("tool_calls") and "reasoning_content" not in each for each in request.messages):
            return error(400, "The reasoning_content in the thinking mode must be passed back to the API.")
        return stream(PLAIN) if streamed else answer("ok")

    async def ask() -> None:
        await (read_stream(backend, model_call(*THOUGHTFUL)) if streamed else backend.complete(model_call(*THOUGHTFUL)))

    async with scripted(then=strict) as (upstream, backend):
        await ask()
        await ask()
    assert [thoughts(each) for each in upstream.requests] == [
        [None] * 5,
        [None, "hmm", None, "", None],
        [None, "hmm", None, "", None],
    ]
    async with scripted(error(400, "property 'reasoning_content' is unsupported")) as (upstream, backend):
        assert isinstance(await failure(backend, streamed=streamed, call=model_call(*THOUGHTFUL)), UpstreamRefused)
        assert len(upstream.requests) == 1
    async with scripted(then=strict, send_reasoning="off") as (upstream, backend):
        assert isinstance(await failure(backend, streamed=streamed, call=model_call(*THOUGHTFUL)), UpstreamRefused)
        assert len(upstream.requests) == 1


async def test_thoughts_are_sent_under_the_configured_name_and_never_over_the_client_s_own() -> None:
    own = decode_message(
        json.dumps({"role": "assistant", "reasoning": "mine", "tool_calls": [call("a", "add", "{}")]}).encode(), 1
    )
    async with scripted(then=answer("ok"), send_reasoning="reasoning") as (upstream, backend):
        await backend.complete(model_call(*THOUGHTFUL))
        await backend.complete(model_call(THOUGHTFUL[0], own, THOUGHTFUL[2]))
    assert [each.get("reasoning") for each in upstream.requests[0].messages] == [None, "hmm", None, "", None]
    assert upstream.requests[1].messages[1]["reasoning"] == "mine"


async def test_operator_s_params_are_renamed_like_the_client_s_and_usage_may_be_dropped() -> None:
    params = {"provider": "ollama", "params": {"max_completion_tokens": 5}, "drop_params": ["stream_options"]}
    async with scripted(then=stream(PLAIN), **params) as (upstream, backend):
        await read_stream(backend, model_call("hi"))
        await read_stream(backend, model_call("hi", max_completion_tokens=7, stream_options={"x": 1}))
    for request, limit in zip(upstream.requests, (5, 7), strict=True):
        assert (request.json["max_tokens"], "max_completion_tokens" in request.json) == (limit, False)
        assert "stream_options" not in request.json


@pytest.mark.parametrize(
    "wrong",
    [
        {"drop_params": ["model"]},
        {"provider": "demo", "drop_params": ["seed"]},
        {"provider": "demo", "send_reasoning": "reasoning"},
        {"provider": "plugin", "module": "x.py", "send_reasoning": "off"},
        {"send_reasoning": "yes"},
    ],
)
def test_settings_that_would_do_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"drop_params|send_reasoning"):
        BackendConfig.model_validate({"provider": "openai", "model": "up", **wrong})
