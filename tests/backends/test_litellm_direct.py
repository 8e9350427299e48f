"""litellm's translation over our own connections says and hears what the plain call says and hears."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import pytest

from gateway.backends.backend import ModelCall
from gateway.backends.litellm import LitellmBackend
from gateway.backends.litellm_direct import PROVIDERS, VERSIONS, Direct
from gateway.backends.litellm_exchange import NotSent, Servers
from gateway.chat.blocks import Message, Reasoning, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import decode_message, decode_request
from gateway.config.models import BackendConfig
from gateway.errors import GatewayError, InvalidRequest, UpstreamBroken
from tests.backends import anthropic_wire as wire
from tests.backends.contract import CALCULATOR, QUESTION, model_call, read_stream
from tests.backends.litellm_anthropic import AnthropicDialect
from tests.backends.litellm_azure import AzureDialect
from tests.backends.litellm_dialect import Said
from tests.backends.litellm_gemini import GeminiDialect
from tests.backends.test_litellm_dialects import TWO, _imported, pytestmark
from tests.backends.test_litellm_losses import ASKED, FIELDS
from tests.chat.recordings import client_requests, needs_recordings, upstream_answers, upstream_streams
from tests.replies import Reply, Stall, Step, body, error, hang_up, stream
from tests.upstream import ScriptedUpstream, UpstreamRequest

__all__ = ["_imported", "pytestmark"]

# Of the connection, or random.
_CHANGING = {"host", "content-length", "accept-encoding", "connection"}


class OpenAiLike:
    """A provider that speaks Chat Completions, with litellm's own turns of it."""

    def __init__(self, provider: str) -> None:
        self.name = provider
        self._said = AzureDialect()

    def config(self, port: int, **settings: Any) -> BackendConfig:
        given = {"model": "some-model", "api_key": "sk-very-secret", "base_url": f"http://127.0.0.1:{port}/v1"}
        return BackendConfig(provider=self.name, **{**given, **settings})

    def whole(self, said: Said) -> Reply:
        # Without a tier, litellm stumbles over Groq's answers.
        return body(json.loads(self._said.whole(said).body) | {"service_tier": "default"})

    def steps(self, said: Said) -> list[bytes]:
        return self._said.steps(said)

    def streamed(self, steps: Sequence[Step]) -> Reply:
        return self._said.streamed(steps)

    def refusal(self, status: int, words: str, **headers: str) -> Reply:
        return self._said.refusal(status, words, **headers)

    def fault(self, words: str) -> bytes:
        return self._said.fault(words)


OWN: dict[str, Any] = {"anthropic": AnthropicDialect, "gemini": GeminiDialect}
LIKE = sorted(PROVIDERS - OWN.keys())
Provider = AnthropicDialect | GeminiDialect | OpenAiLike


@pytest.fixture(params=[*OWN, *LIKE], scope="module")
def provider(request: pytest.FixtureRequest) -> Provider:
    made: Provider = OWN[request.param]() if request.param in OWN else OpenAiLike(request.param)
    return made


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def sent(request: UpstreamRequest) -> tuple[Any, ...]:
    headers = {name: value for name, value in request.headers.items() if name not in _CHANGING}
    return request.method, request.path, headers, request.json


def heard(data: bytes) -> dict[str, Any]:
    """A body or chunk without what is random in it."""
    said: dict[str, Any] = json.loads(data)
    assert said.pop("id")
    del said["created"]
    for choice in said["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
            if (
                call.get("id", "").startswith("call_") and len(call["id"]) > 20
            ):  # litellm's own, where a provider has none
                call["id"] = "made up"
    return said


class Way:
    """One of the two ways to a provider.

    Args:
        backend: goes this way.
        upstream: stands for the provider; answers with the newest of the replies.
        direct: whether this is the direct way.
    """

    def __init__(self, backend: LitellmBackend, upstream: ScriptedUpstream, replies: list[Reply], direct: bool) -> None:
        self._backend = backend
        self._upstream = upstream
        self._replies = replies
        self._direct = direct

    async def ask(self, reply: Reply, call: ModelCall, streamed: bool) -> tuple[Any, list[Any]]:
        """What a caller gets, and what the provider was sent."""
        before = len(self._upstream.requests)
        self._replies.append(reply)
        try:
            if streamed:
                read = await read_stream(self._backend, call)
                got: Any = (
                    [heard(chunk.data) for chunk in read.chunks if chunk.choices or chunk.fields.usage],
                    read.usages,
                )
            else:
                whole = await self._backend.complete(call)
                got = heard(whole.body), whole.usage, whole.finish_reason
        except GatewayError as refused:
            got = type(refused), {name: value for name, value in vars(refused).items() if not name.startswith("_")}
        requests = self._upstream.requests[before:]
        if self._direct and "web_search_options" not in call.fields:
            assert {request.headers["accept-encoding"] for request in requests} <= {"identity"}, (
                "it has gone the plain way"
            )
        return got, [sent(request) for request in requests]


@asynccontextmanager
async def way(name: str, provider: Provider, **settings: Any) -> AsyncIterator[Way]:
    """The direct or the plain way."""
    replies: list[Reply] = []
    async with ScriptedUpstream(then=lambda _: replies[-1]) as upstream:
        backend = LitellmBackend("b", provider.config(upstream.port, **settings))
        # Loaded with a bound no test comes near.
        await backend._load(1e12)
        assert backend._direct is not None
        if name == "plain":
            backend._direct = None
        try:
            yield Way(backend, upstream, replies, name == "direct")
        finally:
            await backend.close()


Alike = Callable[[Reply, ModelCall, bool], Awaitable[tuple[Any, list[Any]]]]


@asynccontextmanager
async def both(provider: Provider, **settings: Any) -> AsyncIterator[Alike]:
    """Asks both ways, whose outcomes must be one, and hands it out."""
    async with way("direct", provider, **settings) as direct, way("plain", provider, **settings) as plain:

        async def alike(reply: Reply, call: ModelCall, streamed: bool) -> tuple[Any, list[Any]]:
            got = await direct.ask(reply, call, streamed)
            assert [*differing(got, await plain.ask(reply, call, streamed))] == [], f"asked {call}"
            return got

        yield alike


async def alike(
    provider: Provider, reply: Reply, call: ModelCall, streamed: bool, **settings: Any
) -> tuple[Any, list[Any]]:
    """The outcome of both ways over connections of their own."""
    async with both(provider, **settings) as ask:
        return await ask(reply, call, streamed)


def differing(direct: Any, plain: Any, place: str = "") -> Iterator[str]:
    """Where the two are not alike, in words."""
    if isinstance(direct, dict) and isinstance(plain, dict):
        for name in {**direct, **plain}:
            yield from differing(direct.get(name, "absent"), plain.get(name, "absent"), f"{place}.{name}")
    elif isinstance(direct, (list, tuple)) and isinstance(plain, (list, tuple)) and len(direct) == len(plain):
        for at, (left, right) in enumerate(zip(direct, plain, strict=True)):
            yield from differing(left, right, f"{place}[{at}]")
    elif direct != plain:
        yield f"{place}: {direct!r} is not {plain!r}"


def saying(provider: Provider, said: Said, streamed: bool) -> Reply:
    return provider.streamed(provider.steps(said)) if streamed else provider.whole(said)


def call_of(messages: list[dict[str, Any]], **fields: Any) -> ModelCall:
    return model_call(*(decode_message(json.dumps(each).encode(), at) for at, each in enumerate(messages)), **fields)


SAID = {
    "text": Said("It is 42, I think.", tokens=(31, 9), cached=20),
    "calls": Said("Let me see.", TWO),
    "calls alone": Said(calls=TWO),
    "length": Said("It is", end="length"),
    "filter": Said("It is", end="filter"),
    "thoughts": Said("42", thought="twelve and thirty", signature="c2lnbmVk", tokens=(11, 50), reasoning=30),
    "thoughts and calls": Said("", TWO, thought="two sums", signature="c2lnbmVk"),
    "other scripts": Said('四十二 \u2028 "quoted"\n\n🙂'),
}


@pytest.mark.parametrize("what", SAID)
async def test_answers_are_heard_alike(provider: Provider, what: str, streamed: bool) -> None:
    got, requests = await alike(
        provider, saying(provider, SAID[what], streamed), model_call(QUESTION, tools=[CALCULATOR]), streamed
    )
    assert len(requests) == 1
    assert not isinstance(got[0], type), got


async def test_a_conversation_is_sent_alike(provider: Provider, streamed: bool) -> None:
    conversation = (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("what is this?"),)),
        Message("assistant", (Reasoning("hm"), *(ToolCall(i, n, json.dumps(a)) for i, n, a in TWO))),
        Message("tool", (ToolResult("call_1", "2"),)),
        Message("tool", (ToolResult("call_2", "4"),)),
        Message("developer", (Text("In English."),)),
        Message("user", (Text("and?"),)),
    )
    call = model_call(*conversation, tools=[CALCULATOR], temperature=0.5, max_tokens=77, stop=["END"], something_new=1)
    settings = {"headers": {"x-extra": "e1"}, "params": {"top_p": 0.5, "top_k": 3}}
    _, requests = await alike(provider, saying(provider, Said("ok"), streamed), call, streamed, **settings)
    assert requests[0][2]["x-extra"] == "e1"


async def test_every_field_is_sent_or_refused_alike(provider: Provider) -> None:
    async with both(provider) as ask:
        for name in FIELDS:
            call = call_of([{"role": "user", "content": "hi"}], tools=[CALCULATOR], **{name: FIELDS[name]})
            await ask(saying(provider, Said("ok"), False), call, False)


async def test_every_kind_of_content_is_sent_or_refused_alike(provider: Provider) -> None:
    async with both(provider) as ask:
        for messages, *_ in ASKED.values():
            await ask(saying(provider, Said("ok"), False), call_of(messages), False)


@needs_recordings
async def test_requests_of_real_clients_are_sent_alike(provider: Provider) -> None:
    tried = 0
    async with both(provider) as ask:
        for recorded in client_requests():
            try:
                request = decode_request(json.dumps(recorded).encode())
            except InvalidRequest:
                continue
            fields = {name: raw for name, raw in request.fields.items() if name not in ("n", "stream_options")}
            call = ModelCall(request.messages, fields, "0af7651916cd43dd8448eb211c80319c", 10.0, "asked")
            await ask(saying(provider, Said("ok"), False), call, False)
            tried += 1
    assert tried > 10


@needs_recordings
@pytest.mark.parametrize("like", LIKE)
async def test_answers_of_real_servers_are_heard_alike(like: str) -> None:
    async with both(OpenAiLike(like)) as ask:
        for answer in upstream_answers():
            await ask(body(answer), model_call(QUESTION), False)
        for chunks in upstream_streams():
            steps = [*(b"data: " + chunk + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]
            await ask(stream(*steps), model_call(QUESTION), True)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
async def test_refusals_are_told_alike(provider: Provider, status: int, streamed: bool) -> None:
    given = 529 if (status, provider.name) == (503, "anthropic") else status
    await alike(provider, provider.refusal(given, "no, not this", retry_after="7"), model_call(QUESTION), streamed)


@pytest.mark.parametrize(
    "reply",
    [
        body(b"<html>busy</html>", status=502),
        body(b"", status=503),
        Reply(307, (("location", "http://127.0.0.1:1/"),)),
        body(b"<html>no</html>"),
        body({"what": "else"}),
        body({"error": {"message": "broken inside", "type": "x"}}),
        hang_up(),
        error(400, "This model's maximum context length is 8192 tokens."),
    ],
    ids=["html", "empty", "redirect", "garbage", "another thing", "disguised", "hang up", "too long"],
)
async def test_what_is_no_answer_is_told_alike(provider: Provider, reply: Reply, streamed: bool) -> None:
    call = model_call(QUESTION)
    if streamed and provider.name == "gemini" and (reply.status != 200 or reply.before):
        # Asked only once it is read, what comes of it is an answer cut off to litellm, whatever it is.
        async with way("direct", provider) as direct:
            told = await direct.ask(reply, call, streamed)
            assert told[0] == (await direct.ask(reply, call, False))[0]
        return
    await alike(provider, reply, call, streamed)


async def test_streams_that_break_are_told_alike(provider: Provider) -> None:
    steps = provider.steps(Said("one two three four"))
    for kept in range(1, len(steps)):
        for cut in (steps[:kept], [*steps[: kept - 1], steps[kept - 1][: len(steps[kept - 1]) // 2]]):
            await alike(provider, provider.streamed(cut), model_call(QUESTION), True)
    fault = [*steps[:-2][:3], provider.fault("too much at once")]
    await alike(provider, provider.streamed(fault), model_call(QUESTION), True)
    await alike(provider, provider.streamed(steps).cut(1), model_call(QUESTION), True)


async def test_events_without_a_word_are_passed_over_alike(provider: Provider) -> None:
    first, *others = provider.steps(Said("one two three four"))
    got, _ = await alike(provider, provider.streamed([first, b"data:\n\n", *others]), model_call(QUESTION), True)
    assert not isinstance(got[0], type), got


async def test_an_answer_does_not_fail_because_nothing_can_be_counted() -> None:
    """The library takes the end mark alone for an empty answer, of which it then cannot say what it took."""
    async with way("direct", OpenAiLike("deepseek")) as direct:
        got, _ = await direct.ask(stream(b"data: [DONE]\n\n"), model_call(QUESTION), True)
    assert [chunk["choices"][0]["finish_reason"] for chunk in got[0]] == ["stop"]


async def test_connections_are_kept_and_each_call_is_one_request(provider: Provider) -> None:
    said = Said("ok")

    def script(request: UpstreamRequest) -> Reply:
        streams = bool(request.json.get("stream")) or "streamGenerateContent" in request.path
        return provider.streamed(provider.steps(said)) if streams else provider.whole(said)

    async with ScriptedUpstream(then=script) as upstream:
        backend = LitellmBackend("b", provider.config(upstream.port))
        for _ in range(3):
            await backend.complete(model_call(QUESTION))
        plain = {request.connection for request in upstream.requests}
        for _ in range(3):
            await read_stream(backend, model_call(QUESTION))
        await backend.close()
    assert len(plain) == 1
    assert len({request.connection for request in upstream.requests}) <= 2, "one for each address"
    assert len(upstream.requests) == 6


async def test_a_stream_without_an_end_mark_ends_once_its_reason_has_come(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.litellm_direct._AFTER_END_S", 0.1)
    steps: list[Step] = [*provider.steps(Said("It is 42.")), Stall()]
    async with ScriptedUpstream(then=provider.streamed(steps)) as upstream:
        backend = LitellmBackend("b", provider.config(upstream.port))
        read = await read_stream(backend, model_call(QUESTION))
        await backend.close()
    assert (read.text, read.finish_reasons) == ("It is 42.", ["stop"])


async def test_what_fails_behind_the_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedUpstream(then=wire.whole(wire.text("ok"))) as upstream:
        backend = LitellmBackend("b", AnthropicDialect().config(upstream.port))
        await backend._load(1e12)

        def stumble(*_: Any, **__: Any) -> None:
            raise KeyError("content")

        monkeypatch.setattr(backend._litellm.AnthropicConfig, "transform_response", stumble)
        with pytest.raises(UpstreamBroken):
            await backend.complete(model_call(QUESTION))
        await backend.close()
    assert len(upstream.requests) == 1


async def test_what_fails_before_anything_is_sent_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedUpstream(then=wire.whole(wire.text("ok"))) as upstream:
        backend = LitellmBackend("b", AnthropicDialect().config(upstream.port))
        await backend._load(1e12)
        assert backend._direct is not None

        def changed(**_: Any) -> None:
            raise TypeError("an unexpected keyword argument")

        monkeypatch.setattr(backend._direct, "_complete", changed)
        assert (await backend.complete(model_call(QUESTION))).message.text == "ok"
        await backend.close()
    assert len(upstream.requests) == 1


def anthropic_config(**settings: Any) -> BackendConfig:
    return AnthropicDialect().config(1, **settings)


def test_what_no_test_compares_is_left_to_the_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm

    assert Direct.of(litellm, anthropic_config()) is not None
    assert Direct.of(litellm, anthropic_config(params={"temperature": 1, "top_k": 3})) is not None
    assert Direct.of(litellm, anthropic_config(params={"ssl_verify": False})) is None, "litellm's own affair"
    assert Direct.of(litellm, BackendConfig(provider="bedrock", model="m")) is None
    monkeypatch.setattr("gateway.backends.litellm_direct.VERSIONS", frozenset({"0.1"}))
    assert Direct.of(litellm, anthropic_config()) is None, "another version"


def test_what_litellm_is_set_to_and_we_are_not_is_left_to_the_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm

    url = "https://provider.example/v1/messages"
    Servers(litellm).of(url)
    with monkeypatch.context() as patched:
        patched.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        with pytest.raises(NotSent):
            Servers(litellm).of(url)
        patched.setenv("NO_PROXY", "provider.example")
        Servers(litellm).of(url)
    with monkeypatch.context() as patched:
        patched.setenv("SSL_CERTIFICATE", "/client.pem")
        with pytest.raises(NotSent):
            Servers(litellm).of(url)
    with monkeypatch.context() as patched:
        patched.setenv("SSL_VERIFY", "False")
        with pytest.raises(NotSent):
            Servers(litellm).of(url)
    with pytest.raises(NotSent):
        Servers(litellm).of("https://user:word@provider.example/v1/messages")
    with pytest.raises(ValueError, match="line break"):
        Servers(litellm).head({"x-a": "b\r\nx-c: d"})


LEANED_ON = {
    "main.completion": ("model", "messages", "stream", "kwargs"),
    "litellm_core_utils.exception_mapping_utils.exception_type": ("model", "custom_llm_provider", "original_exception"),
    "llms.custom_httpx.http_handler.AsyncHTTPHandler.post": ("url", "data", "json", "headers", "stream"),
    "llms.custom_httpx.http_handler.MaskedHTTPStatusError": ("message", "text"),
    "llms.custom_httpx.http_handler.get_default_headers": (),
    "llms.custom_httpx.http_handler.get_ssl_configuration": (),
    "litellm_core_utils.streaming_handler.CustomStreamWrapper": ("completion_stream", "model"),
    "litellm_core_utils.streaming_handler.CustomStreamWrapper.fetch_stream": (),
    "stream_chunk_builder": ("chunks", "messages"),
    "token_counter": ("text", "count_response_tokens"),
    "utils.cached_get_model_info_helper": ("model", "custom_llm_provider"),
    "utils.get_model_info_helper": (),
    "llms.anthropic.common_utils.AnthropicModelInfo._model_map_lookup_candidates": (),
}


@pytest.mark.parametrize("place", LEANED_ON)
def test_litellm_has_every_place_that_is_leaned_on(place: str) -> None:
    import litellm

    found: Any = litellm
    for name in place.split("."):
        found = getattr(found, name, None)
        assert found is not None, f"litellm.{place}: `{name}` is gone"
    parameters = inspect.signature(inspect.unwrap(found)).parameters
    gone = [name for name in LEANED_ON[place] if name not in parameters]
    assert gone == [], f"litellm.{place} takes them no longer"


def test_the_locked_litellm_is_one_that_these_tests_have_seen() -> None:
    """After a new lock: run this file with the new version in `VERSIONS`, and keep it there when it passes."""
    assert version("litellm") in VERSIONS
    import litellm

    assert {"api_version", "fallbacks", "num_retries", "ssl_verify"} <= set(litellm.types.utils.all_litellm_params)
    assert "litellm.responses.bridge_check" in sys.modules


def test_a_list_of_models_is_looked_up_once_and_is_nobody_s_to_change() -> None:
    import litellm

    first = litellm.utils.get_model_info_helper("claude-sonnet-4-5", "anthropic")
    first["key"] = "changed"
    again = litellm.utils.get_model_info_helper(model="claude-sonnet-4-5", custom_llm_provider="anthropic")
    assert again["key"] != "changed"
    names = litellm.AnthropicConfig._model_map_lookup_candidates("claude-sonnet-4.5")
    names.clear()
    assert litellm.AnthropicConfig._model_map_lookup_candidates("claude-sonnet-4.5")
