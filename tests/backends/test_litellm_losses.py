"""Nothing of a request is lost in translation without a word: it reaches the provider, or the client is told which it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.backends.litellm import LitellmBackend
from gateway.chat.codecs.chat_completions import decode_message
from gateway.errors import UpstreamRefused
from tests.backends.contract import CALCULATOR, model_call, read_stream
from tests.backends.litellm_dialect import Dialect, Said
from tests.backends.openai_schemas import needs_published, published_properties
from tests.backends.test_litellm_dialects import KINDS, PIXEL, _imported, pytestmark
from tests.replies import Reply
from tests.upstream import ScriptedUpstream, UpstreamRequest

__all__ = ["_imported", "pytestmark"]

# What the gateway itself reads; each reaches an adapter as something else.
OURS = {"model", "messages", "stream", "functions", "function_call", "tools"}
FIELDS: dict[str, Any] = {
    "metadata": {"mark": "x"},
    "top_logprobs": 3,
    "temperature": 0.25,
    "top_p": 0.75,
    "user": "somebody",
    "safety_identifier": "somebody",
    "prompt_cache_key": "key",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "implicit"},
    "service_tier": "priority",
    "modalities": ["text", "audio"],
    "verbosity": "low",
    "reasoning_effort": "high",
    "max_completion_tokens": 1777,
    "frequency_penalty": 0.125,
    "presence_penalty": 0.375,
    "web_search_options": {"search_context_size": "low"},
    "response_format": {"type": "json_object"},
    "audio": {"voice": "alloy", "format": "mp3"},
    "store": True,
    "moderation": {"model": "omni-moderation-latest"},
    "stop": ["END"],
    "logit_bias": {"123": 7},
    "logprobs": True,
    "max_tokens": 1778,
    "n": 3,
    "prediction": {"type": "content", "content": "perhaps"},
    "seed": 4242,
    "stream_options": {"include_obfuscation": False},
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@pytest.fixture(params=list(KINDS), scope="module")
def dialect(request: pytest.FixtureRequest) -> Dialect:
    kind: Callable[[], Dialect] = KINDS[request.param]
    return kind()


async def sent(dialect: Dialect, messages: list[dict[str, Any]], *, streamed: bool = False, **given: Any) -> Any:
    """The body that reaches the provider, or the refusal that the client gets instead."""
    settings = given.pop("settings", {})

    def script(request: UpstreamRequest) -> Reply:
        said = Said("ok")
        return dialect.streamed(dialect.steps(said)) if streamed else dialect.whole(said)

    async with ScriptedUpstream(then=script) as upstream:
        backend = LitellmBackend("b", dialect.config(upstream.port, **settings))
        read = [decode_message(json.dumps(message).encode(), index) for index, message in enumerate(messages)]
        call = model_call(*read, **given)
        refused: UpstreamRefused | None = None
        try:
            await (read_stream(backend, call) if streamed else backend.complete(call))
        except UpstreamRefused as error:
            refused = error
        finally:
            await backend.close()
        if refused is None:
            return upstream.requests[0].json
        assert upstream.requests == []
        assert refused.status == 400
        assert "litellm" not in refused.message.lower()
        return refused


@needs_published
def test_every_field_of_the_published_schema_is_tried() -> None:
    assert set(FIELDS) == published_properties("CreateChatCompletionRequest") - OURS


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_every_field_reaches_the_provider_or_is_refused_by_name(dialect: Dialect, streamed: bool) -> None:
    question = [{"role": "user", "content": "hi"}]
    offered = {"tools": [CALCULATOR]}
    without = await sent(dialect, question, streamed=streamed)
    with_tools = await sent(dialect, question, streamed=streamed, **offered)
    lost: list[str] = []
    for name, value in FIELDS.items():
        tools = offered if name in ("tool_choice", "parallel_tool_calls") else {}
        found = await sent(dialect, question, streamed=streamed, **tools, **{name: value})
        if isinstance(found, UpstreamRefused):
            if found.param != name:
                lost.append(f"{name} refused as {found.param}: {found.message}")
            dropped = await sent(
                dialect, question, streamed=streamed, settings={"drop_params": (name,)}, **tools, **{name: value}
            )
            assert dropped == (with_tools if tools else without), "configuration may leave it out"
        elif found == (with_tools if tools else without):
            lost.append(name)
    assert lost == []


def part(**said: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "hi"}, said]}]


def after(**said: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"}, {"role": "assistant", **said}, {"role": "user", "content": "and?"}]


CUSTOM_CALL = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "MARK"}}
ASKED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "sound": (
        part(type="input_audio", input_audio={"data": "TUFSSw==", "format": "wav"}),
        "messages[0].content[1].type",
    ),
    "a file": (part(type="file", file={"filename": "a.pdf", "file_data": "data:application/pdf;base64,TUFSSw=="}), ""),
    "a video": (part(type="video_url", video_url={"url": "data:MARK"}), "messages[0].content[1].type"),
    "something new": (part(type="hologram", hologram="MARK"), "messages[0]"),
    "an image": (part(type="image_url", image_url={"url": f"data:image/png;base64,{PIXEL}"}), ""),
    "a refusal": (after(content=None, refusal="MARK"), ""),
    "a refusal among parts": (after(content=[{"type": "refusal", "refusal": "MARK"}]), ""),
    "what it said aloud": (after(content=None, audio={"id": "audio_MARK"}), "messages[1].audio"),
    "a custom call": (
        [
            *after(content=None, tool_calls=[CUSTOM_CALL])[:2],
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ],
        "messages[1].tool_calls[0].type",
    ),
}


@pytest.mark.parametrize("what", ASKED)
async def test_every_kind_of_content_reaches_the_provider_or_is_refused_by_name(dialect: Dialect, what: str) -> None:
    messages, param = ASKED[what]
    found = await sent(dialect, messages)
    if isinstance(found, UpstreamRefused):
        assert found.param is not None
        assert param
        assert found.param.startswith(param)
    else:
        body = json.dumps(found)
        assert any(mark in body for mark in ("MARK", "TUFSSw==", PIXEL))


@pytest.mark.parametrize(
    "tool",
    [{"type": "custom", "custom": {"name": "sql"}}, {"type": "web_search_preview"}, {"type": "mcp", "server_url": "x"}],
    ids=["custom", "hosted", "mcp"],
)
async def test_every_tool_reaches_the_provider_or_is_refused_by_name(dialect: Dialect, tool: dict[str, Any]) -> None:
    question = [{"role": "user", "content": "hi"}]
    found = await sent(dialect, question, tools=[CALCULATOR, tool])
    if isinstance(found, UpstreamRefused):
        assert found.param == "tools[1].type"
    else:
        assert found != await sent(dialect, question, tools=[CALCULATOR])


@pytest.mark.parametrize("choice", ["none", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}])
async def test_every_choice_of_tools_reaches_the_provider_or_is_refused_by_name(dialect: Dialect, choice: Any) -> None:
    question = [{"role": "user", "content": "hi"}]
    found = await sent(dialect, question, tools=[CALCULATOR], tool_choice=choice)
    if isinstance(found, UpstreamRefused):
        assert found.param == "tool_choice"
    else:
        assert found != await sent(dialect, question, tools=[CALCULATOR])


async def test_nothing_that_a_client_names_is_fetched(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm

    # Its own rule against addresses like this one is out of the way: ours has to hold alone.
    monkeypatch.setattr(litellm, "user_url_validation", False)
    async with ScriptedUpstream() as inside:
        url = f"http://127.0.0.1:{inside.port}/cat.png"
        found = await sent(dialect, part(type="image_url", image_url={"url": url}))
        assert inside.requests == []
    if isinstance(found, UpstreamRefused):
        assert (found.param, "data URL" in found.message) == ("messages", True)
    else:
        assert url in json.dumps(found), "the provider may fetch it"
