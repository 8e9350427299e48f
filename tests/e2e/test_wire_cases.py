"""Legal and half-legal ways to write a stream, and what an unmodified SDK makes of each behind the gateway: always the same."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import resource
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.api.chat_completions import ChatCompletions
from tests.backends.openai_schemas import check_chunk
from tests.e2e.test_openai_node import node
from tests.frames import usage
from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    FRAMINGS,
    Frame,
    Framing,
    Reply,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    call,
    chunk,
    d,
    error,
    f,
    stream,
    tc,
    u,
    words,
)

# A slash in the name, as models often have.
MODELS = ("exact", "Loose/Model", "tooled")
FUNCTION: Any = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
WEATHER: Any = {"type": "function", "function": FUNCTION}
PLUGIN = """
import asyncio
from gateway.tools import tool

@tool
async def now() -> str:
    "The time."
    await asyncio.sleep(0.4)
    return "10:00"

def register(registry):
    registry.add(now)
"""
TEXT = "你好🌧️é"
ARGUMENTS = '{"city":"東京"}'
SAID: list[Frame] = [
    d({"role": "assistant", "content": ""}),
    d({"content": "你好"}),
    d({"content": "🌧️é"}),
    tc(0, id="a", name="get_weather", arguments='{"city":"'),
    tc(0, arguments='東京"}'),
    f("tool_calls"),
    u(5, 7),
    DONE,
]
PREAMBLE = chunk(id="", created=0, model="", choices=[], prompt_filter_results=[])
END = {"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}
FIRST = [d({"role": "assistant", "content": "Checking… "}), tc(0, id="a", name="now", arguments="{}"), f("tool_calls")]


def escaped(frames: list[Frame]) -> bytes:
    """With every character outside ASCII as an escape, and the two halves of one in two deltas."""
    halves = (b'{"content": "\\ud83c"}', b'{"content": "\\udf27\\ufe0f\\u00e9"}')
    written = []
    for frame in frames:
        text = frame.payload if isinstance(frame.payload, str) else json.dumps(frame.payload)
        whole = json.dumps({"content": "🌧️é"})
        cut = [text.replace(whole, half.decode()) for half in halves] if whole in text else [text]
        written += [f"data: {each}\n\n" for each in cut]
    return "".join(written).encode()


def one_by_one(framing: Framing) -> Reply:
    """As a proxy with the smallest buffer there is: the end of the connection is the end, and no blank line is behind it."""
    reply = stream(SAID, framing=framing)
    whole = reply.body.removesuffix(framing.newline)
    return Reply(200, reply.headers, (whole,), transfer="close").cut(1)


@dataclass(frozen=True)
class Seen:
    """What an SDK has of a stream."""

    text: str
    calls: list[list[str]]
    reasons: list[str]
    tokens: list[int] | None


BOTH = Seen(TEXT, [["get_weather", ARGUMENTS]], ["tool_calls"], [5, 7])


def text_only(text: str, tokens: list[int] | None) -> Seen:
    return Seen(text, [], ["stop"], tokens)


CASES: dict[str, tuple[Reply, Seen]] = {
    # B069
    "preamble and nulls": (
        stream(
            PREAMBLE,
            d({"role": "assistant"}),
            d({"content": None}),
            d({"content": "Hi"}),
            chunk(choices=None),
            f("stop"),
            u(3, 1),
            DONE,
        ),
        text_only("Hi", [3, 1]),
    ),
    # B071
    "text and finish in one": (
        stream(d({"role": "assistant"}), chunk(choices=[END]), u(5, 1), DONE),
        text_only("42", [5, 1]),
    ),
    "usage in the finish": (
        stream(d({"role": "assistant"}), chunk(choices=[END], usage=usage(5, 1)), DONE),
        text_only("42", [5, 1]),
    ),
    "two finishes": (
        stream(d({"role": "assistant"}), chunk(choices=[END]), f("stop"), u(5, 1), DONE),
        text_only("42", [5, 1]),
    ),
    "role in every chunk": (
        stream(*(d({"role": "assistant", "content": each}) for each in "42"), f("stop"), u(5, 1), DONE),
        text_only("42", [5, 1]),
    ),
    "no end mark": (stream(*words("42"), f("stop"), u(5, 1)), text_only("42", [5, 1])),
    # B072
    "comments and pings": (
        stream(
            b": PROCESSING\n\n" * 3,
            b"event: ping\ndata: {}\n\n",
            b"id: 7\nretry: 1000\n\n",
            *words("ok"),
            f("stop"),
            u(1, 1),
            DONE,
        ),
        text_only("ok", [1, 1]),
    ),
    # B073, and B074 by cutting each character everywhere
    **{f"framing {name}": (stream(SAID, framing=framing), BOTH) for name, framing in FRAMINGS.items()},
    **{f"bytes of {name}": (one_by_one(framing), BOTH) for name, framing in FRAMINGS.items()},
    # B074
    "escapes cut in half": (stream(escaped(SAID)), BOTH),
    "bytes of escapes": (stream(escaped(SAID)).cut(1), BOTH),
    # B076, B077
    "two rounds": (
        stream(d({"role": "assistant", "content": "It is "}), d({"content": "9°."}), f("stop"), u(30, 6), DONE),
        text_only("Checking… It is 9°.", [40, 11]),
    ),
}
SLOW = {name for name in CASES if name.startswith("bytes of ")}
# The rounds need a model with tools; thousands of small writes are worth one look at each lane.
ASKED = [
    (name, model)
    for name in CASES
    for model in (
        MODELS[2:] if name == "two rounds" else MODELS[:2] if name.startswith(("bytes", "framing")) else MODELS
    )
]


def script(request: UpstreamRequest) -> Reply:
    question = next(each["content"] for each in request.messages if each["role"] == "user")
    if question == "two rounds" and request.messages[-1]["role"] == "user":
        return stream(FIRST, u(10, 5), DONE)
    return CASES[question][0]


@asynccontextmanager
async def three_models(folder: Path, then: Any = script) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    async with ScriptedUpstream(then=then) as upstream:
        config = native_config(upstream.base_url)
        exact = {**config["backends"]["b1"], "dialect": "openai"}
        config["backends"] = {"b1": exact, "b2": {**exact, "dialect": "compatible"}}
        config["models"] = {
            "exact": {"backends": ["b1"], "retries": 0},
            "Loose/Model": {"backends": ["b2"], "retries": 0},
            "tooled": {"backends": ["b1"], "retries": 0, "tools": ["now"]},
        }
        config["router"]["default"] = "exact"
        async with serving(folder, config, plugins={"clock": PLUGIN}) as gateway:
            yield gateway, upstream


def messages(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


async def pieces(client: openai.AsyncOpenAI, model: str, question: str, *, include: bool) -> Seen:
    """The stream chunk by chunk; where usage is off, by a loop without a guard."""
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if include else {}
    text, names = "", set()
    calls: dict[int, list[str]] = {}
    reasons: list[str] = []
    tokens: list[int] | None = None
    async for each in await client.chat.completions.create(
        model=model, messages=messages(question), tools=[WEATHER], stream=True, **options
    ):
        check_chunk(each.to_json().encode())
        names.add((each.id, each.created, each.model))
        if each.usage:
            assert tokens is None
            assert not each.choices
            tokens = [each.usage.prompt_tokens, each.usage.completion_tokens]
        if include and not each.choices:
            continue
        choice = each.choices[0]
        text += choice.delta.content or ""
        for fragment in choice.delta.tool_calls or ():
            assert fragment.function is not None
            found = calls.setdefault(fragment.index, [fragment.function.name or "", ""])
            found[1] += fragment.function.arguments or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
    [(answer_id, created, named)] = names
    assert (bool(answer_id), bool(created), named) == (True, True, model)
    return Seen(text, list(calls.values()), reasons, tokens)


async def helper(client: openai.AsyncOpenAI, model: str, question: str) -> Seen:
    """The stream by the SDK's accumulating helper."""
    async with client.chat.completions.stream(model=model, messages=messages(question), tools=[WEATHER]) as events:
        final = await events.get_final_completion()
    [choice] = final.choices
    calls = [[each.function.name, each.function.arguments] for each in choice.message.tool_calls or ()]
    return Seen(choice.message.content or "", calls, [choice.finish_reason], None)


async def test_python_sdk_sees_the_same_however_a_stream_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B014, B069, B070, B071, B072, B073, B074, B076, B077 (what is 15 s elsewhere is 0.1 s here)."""
    monkeypatch.setattr(ChatCompletions.__init__, "__kwdefaults__", {"silence_s": 0.1})
    wrong: dict[tuple[str, str, str], Seen] = {}
    async with three_models(tmp_path) as (gateway, upstream), gateway.sdk() as client:
        for name, model in ASKED:
            expected = CASES[name][1]
            found = await pieces(client, model, name, include=True)
            if found != expected:
                wrong[name, model, "usage"] = found
            if name in SLOW:
                continue
            without = Seen(expected.text, expected.calls, expected.reasons, None)
            found = await pieces(client, model, name, include=False)
            if found != without:
                wrong[name, model, ""] = found
            if (found := await helper(client, model, name)) != without:
                wrong[name, model, "helper"] = found
        assert wrong == {}
        looks = [(1 if name in SLOW else 3) * (2 if name == "two rounds" else 1) for name, _ in ASKED]
        assert len(upstream.requests) == sum(looks), "nothing was asked twice"


async def test_node_sdk_sees_the_same_however_a_stream_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B014, B069, B070, B071, B072, B073, B074, B076, B077 (what is 15 s elsewhere is 0.1 s here)."""
    monkeypatch.setattr(ChatCompletions.__init__, "__kwdefaults__", {"silence_s": 0.1})
    asked = [
        {"model": model, "question": name, "usage": include}
        for (name, model), include in itertools.product(ASKED, (True, False))
        if name not in SLOW
    ]
    async with three_models(tmp_path) as (gateway, _):
        found = await node("wire.mjs", gateway.url, json.dumps(asked).encode())
    wrong = {}
    for each, seen in zip(asked, found, strict=True):
        _, expected = CASES[str(each["question"])]
        tokens = [expected.tokens] if each["usage"] else []
        alike = {"text": expected.text, "calls": expected.calls, "reasons": expected.reasons}
        right = {
            "pieces": {**alike, "usage": tokens, "names": 1, "unguarded": True},
            "helper": {**alike, "model": each["model"]},
        }
        if seen != right:
            wrong[str(each)] = seen
    assert wrong == {}


async def test_stream_leaves_in_one_framing_only(tmp_path: Path) -> None:
    """B073."""
    async with three_models(tmp_path) as (gateway, _):
        for name, model in (each for each in ASKED if each[0] not in SLOW):
            request = {"model": model, "messages": messages(name), "stream": True, "tools": [WEATHER]}
            async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json=request) as response:
                raw = await response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            assert "content-length" not in response.headers
            assert b"\r" not in raw
            assert "\N{REPLACEMENT CHARACTER}".encode() not in raw
            events = raw.split(b"\n\n")
            assert events[-2:] == [b"data: [DONE]", b""]
            for event in events[:-2]:
                assert event.startswith(b"data: {"), event
                check_chunk(event.removeprefix(b"data: "))


@pytest.mark.parametrize("asked", [None, False, True])
async def test_server_that_refuses_or_ignores_the_wish_for_usage_is_used_all_the_same(
    tmp_path: Path, asked: bool | None
) -> None:
    """B070."""

    def without(request: UpstreamRequest) -> Reply:
        if request.messages[0]["content"] == "refuses" and "stream_options" in request.json:
            return error(400, "Unknown parameter: 'stream_options'.", param="stream_options")
        return stream(words("hello"), f("stop"), DONE)

    async with three_models(tmp_path, without) as (gateway, _):
        for question, model in itertools.product(("refuses", "ignores"), MODELS[:2]):
            body = {"model": model, "messages": messages(question)}
            raw = await gateway.raw_stream(
                body if asked is None else {**body, "stream_options": {"include_usage": asked}}
            )
            chunks = [check_chunk(each.removeprefix(b"data: ")) for each in raw.split(b"\n\n")[:-2]]
            told = [each["usage"]["total_tokens"] > 0 for each in chunks if each.get("usage")]
            assert told == ([True] if asked else [])
            assert [bool(each["choices"]) for each in chunks].count(False) == len(told)


async def test_older_form_of_calls_makes_its_round_trip(tmp_path: Path) -> None:
    """Through backends that know only the newer one, streamed and not."""

    def newer(request: UpstreamRequest) -> Reply:
        assert "functions" not in request.json
        assert [tool["function"] for tool in request.json["tools"]] == [FUNCTION]
        streamed = request.json.get("stream")
        if request.messages[-1]["role"] == "tool":
            assert request.messages[-1]["tool_call_id"] == request.messages[-2]["tool_calls"][0]["id"]
            return stream(words("9 degrees"), f("stop"), DONE) if streamed else answer("9 degrees")
        made = tc(0, id="a", name="get_weather", arguments="{}")
        whole = answer(calls=[call("a", "get_weather", "{}")])
        return stream(d({"role": "assistant", "content": None}), made, f("tool_calls"), DONE) if streamed else whole

    async with three_models(tmp_path, newer) as (gateway, _), gateway.sdk() as client:
        for model in MODELS[:2]:
            history = messages("?")
            asked = await client.chat.completions.create(model=model, messages=history, functions=[FUNCTION])
            message = asked.choices[0].message
            assert (asked.choices[0].finish_reason, message.tool_calls) == ("function_call", None)
            assert message.function_call is not None
            assert (message.function_call.name, message.function_call.arguments) == ("get_weather", "{}")
            history = [*history, message, {"role": "function", "name": "get_weather", "content": "9"}]
            told = await client.chat.completions.create(model=model, messages=history, functions=[FUNCTION])
            assert told.choices[0].message.content == "9 degrees"
            streamed = await client.chat.completions.create(
                model=model, messages=messages("?"), functions=[FUNCTION], stream=True
            )
            said = [each.choices[0] async for each in streamed]
            calls = [each.delta.function_call for each in said if each.delta.function_call]
            assert [(each.name, each.arguments) for each in calls] == [("get_weather", "{}")]
            assert [each.finish_reason for each in said if each.finish_reason] == ["function_call"]


async def test_compressed_request_is_refused_without_being_inflated(tmp_path: Path) -> None:
    """B083."""
    bombs: dict[str, Callable[[], bytes]] = {
        "gzip": lambda: gzip.compress(bytes(64 << 20)),
        "deflate": lambda: zlib.compress(bytes(64 << 20)),
        "br": lambda: bytes(16 << 10),
        "zstd": lambda: bytes(16 << 10),
        "gzip, gzip": lambda: gzip.compress(gzip.compress(bytes(64 << 20))),
    }
    sent = {encoding: make() for encoding, make in bombs.items()}
    async with (
        ScriptedUpstream(then=answer("hello")) as upstream,
        serving(tmp_path, native_config(upstream.base_url)) as on,
    ):
        path = f"{on.url}/v1/chat/completions"

        async def send(encoding: str) -> tuple[int, Any]:
            headers = {"content-encoding": encoding, "content-type": "application/json"}
            async with on.http.post(path, data=sent[encoding], headers=headers) as response:
                return response.status, await response.json()

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused = await asyncio.gather(*(send(encoding) for encoding in sent for _ in range(5)))
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert {status for status, _ in refused} == {415}
        assert {body["error"]["code"] for _, body in refused} == {"unsupported_encoding"}
        assert grown_mb < 30 * 5, "what was sent may be held, what it would become may not"
        # The image stays text: nobody decodes it here.
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
        asked = {"model": "m", "messages": [{"role": "user", "content": [image]}]}
        assert (await on.post("/v1/chat/completions", asked))[0] == 200
        async with on.http.post(path, data=io.BytesIO(bytes(21 << 20))) as response:
            refusal = await response.json()
        assert (response.status, refusal["error"]["code"]) == (413, "body_too_large")
