"""Operators' own checks on what is asked and answered, streamed too: a whole gateway, sockets on both sides."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.documents import examples
from tests.serving import native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, d, f, stream, tc, u

REDACT = """
import re
import msgspec
from gateway.chat.blocks import Text, ToolCall
from gateway.tools import look_ahead

PRIVATE = re.compile(r"[a-z0-9.]+@[a-z0-9.]+\\.[a-z]{2,}|\\+?[0-9](?:[ -]?[0-9]){6,}")


@look_ahead(48)
async def on_answer(message, principal):
    def clean(block):
        if isinstance(block, Text):
            return Text(PRIVATE.sub("[gone]", block.text))
        if isinstance(block, ToolCall):
            return msgspec.structs.replace(block, arguments=PRIVATE.sub("[gone]", block.arguments))
        return block

    return msgspec.structs.replace(message, blocks=tuple(map(clean, message.blocks)), wire=None)
"""
SAID = "Reach me at sam.roe@example.org or +49 30 123456 tonight"
CLEAN = "Reach me at [gone] or [gone] tonight"
CUTS: list[list[str]] = [
    ["Reach me at sam.", "roe@exam", "ple.org or +49 30 1234", "56 tonight"],
    list(SAID),
    [SAID],
]
TOOLS: Any = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]
ASKED: Any = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("pieces", CUTS)
async def test_b086_a_value_cut_by_chunks_is_redacted_as_in_a_whole_answer(pieces: list[str], tmp_path: Path) -> None:
    long = "Some words before that are of no interest to anybody at all. "
    frames = [
        d({"role": "assistant", "content": ""}),
        d({"content": long}),
        *[d({"content": piece}) for piece in pieces],
    ]
    async with (
        ScriptedUpstream(stream(*frames, f("stop"), u(3, 4), DONE), answer(long + SAID)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"redact": REDACT}) as served,
        served.sdk() as sdk,
    ):
        options: Any = {"include_usage": True}
        async with sdk.chat.completions.stream(model="m", messages=ASKED, stream_options=options) as events:
            done = await events.get_final_completion()
        whole = await sdk.chat.completions.create(model="m", messages=ASKED)
    assert done.choices[0].message.content == whole.choices[0].message.content == long + CLEAN
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.total_tokens == 7


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_b086_arguments_of_a_clients_tool_are_redacted_too(size: int, tmp_path: Path) -> None:
    arguments = json.dumps({"text": SAID})
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    calls = [tc(0, id="c1", name="note", arguments=""), *[tc(0, arguments=piece) for piece in pieces]]
    async with (
        ScriptedUpstream(stream(d({"role": "assistant"}), *calls, f("tool_calls"), DONE)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"redact": REDACT}) as served,
        served.sdk() as sdk,
    ):
        async with sdk.chat.completions.stream(model="m", messages=ASKED, tools=TOOLS) as events:
            done = await events.get_final_completion()
        raw = done.choices[0].message.tool_calls
        assert raw
        assert json.loads(raw[0].function.arguments) == {"text": CLEAN}
        assert done.choices[0].finish_reason == "tool_calls"


async def test_b086_text_before_is_not_held_back_beyond_the_look_ahead(tmp_path: Path) -> None:
    before = "x " * 100
    script = stream(
        d({"role": "assistant"}), d({"content": before}), Stall("rest"), d({"content": SAID}), f("stop"), DONE
    )
    async with (
        ScriptedUpstream(script) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"redact": REDACT}) as served,
        served.sdk() as sdk,
    ):
        got = ""
        chunks: Any = await sdk.chat.completions.create(model="m", messages=ASKED, stream=True)
        async with asyncio.timeout(20):
            async for chunk in chunks:
                if chunk.choices:
                    got += chunk.choices[0].delta.content or ""
                if len(got) >= len(before) - 48:
                    upstream.release("rest")
        assert got == before + CLEAN


async def read_into(got: list[str], sdk: Any) -> None:
    async for chunk in await sdk.chat.completions.create(model="m", messages=ASKED, stream=True):
        got.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - what came before the error counts


async def test_b068_c_a_filter_that_refuses_in_mid_stream_ends_it_with_an_error(tmp_path: Path) -> None:
    refuse = """
from gateway.errors import NotAllowed
from gateway.tools import look_ahead


@look_ahead(8)
async def on_answer(message, principal):
    if "secret" in message.text:
        raise NotAllowed("The answer was withheld.")
"""
    frames = [
        d({"role": "assistant", "content": ""}),
        *[d({"content": piece}) for piece in ("Hello to all of you ", "sec", "ret!")],
    ]
    said = stream(*frames, f("stop"), DONE)
    async with (
        ScriptedUpstream(said, said) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"refuse": refuse}) as served,
        served.sdk() as sdk,
    ):
        got: list[str] = []
        with pytest.raises(openai.APIError, match="withheld"):
            await read_into(got, sdk)
        assert "Hello" in "".join(got)
        assert "sec" not in "".join(got)
        raw = (await served.raw_stream({"model": "m", "messages": ASKED})).decode()
        assert raw.endswith("data: [DONE]\n\n")
        assert raw.count('"error"') == 1
        assert '"finish_reason":"stop"' not in raw.replace(" ", "")
        _, _, listed = await served.get("/v1/traces")
        assert {row["status"] for row in listed["data"]} == {403}


async def test_the_pages_example_blocks_terms_in_what_is_asked_and_in_a_stream(tmp_path: Path) -> None:
    page = next(each.text for each in examples("python") if "BLOCKED" in each.text)
    cut = ["The plan of proj", "ect halb", "erd is ready"]
    frames = [
        d({"role": "assistant"}),
        d({"content": "Well, let me see what there is. " * 3}),
        *[d({"content": c}) for c in cut],
    ]
    async with (
        ScriptedUpstream(stream(*frames, f("stop"), DONE), then=answer("fine")) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"blocked": page}) as served,
    ):
        raw = (await served.raw_stream({"model": "m", "messages": ASKED})).decode()
        assert "let me see" in raw
        assert not re.search("halb|erd is", raw)
        assert '"error"' in raw
        asked = [{"role": "user", "content": "What is PROJECT HALBERD?"}]
        status, _, body = await served.post("/v1/chat/completions", {"model": "m", "messages": asked})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert (await served.post("/v1/chat/completions", {"model": "m", "messages": ASKED}))[0] == 200
        assert len(upstream.requests) == 2


async def test_a_hook_that_promises_nothing_still_sees_the_whole_answer_once(tmp_path: Path) -> None:
    counts = """
SEEN = []


async def on_answer(message, principal):
    from gateway.chat.blocks import Message, Text
    SEEN.append(message.text)
    return Message("assistant", (Text(f"{len(SEEN)}: {message.text}"),))
"""
    frames = [d({"role": "assistant"}), *[d({"content": sign}) for sign in "abc" * 40]]
    async with (
        ScriptedUpstream(stream(*frames, f("stop"), DONE)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), plugins={"counts": counts}) as served,
        served.sdk() as sdk,
        sdk.chat.completions.stream(model="m", messages=ASKED) as events,
    ):
        done = await events.get_final_completion()
    assert done.choices[0].message.content == "1: " + "abc" * 40
