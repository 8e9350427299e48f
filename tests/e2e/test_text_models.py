"""Models without function calling use tools of both sides, and nobody but their upstream can tell."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.mixed_drill import PLUGIN
from tests.frames import DONE, d, f
from tests.replies import Reply, answer, error, stream
from tests.serving import Served, native_config, serving
from tests.upstream import Script, ScriptedUpstream, UpstreamRequest

BOTH = pytest.mark.parametrize("streamed", [False, True])
ROUTE = {"model": "m", "keywords": ["look"], "tools": ["lookup", "measure"]}
DOOR: Any = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Opens the client's door.",
        "parameters": {"type": "object", "properties": {"door": {"type": "string"}}},
    },
}
ACTION = 'Thought: I need it.\nAction: lookup\nAction Input: {"what": "x"}\nObservation: 7\nFinal Answer: 7'
FINAL = "Thought: I know it.\nFinal Answer: It is done."
DOORS = 'Action: lookup\nAction Input: {"what": "x"}\nAction: open_door\nAction Input: {"door": "front"}'


def written(text: str) -> Script:
    """A model that writes this, in small pieces where it streams."""

    def reply(request: UpstreamRequest) -> Reply:
        if not request.json.get("stream"):
            return answer(text)
        pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
        return stream(d({"role": "assistant"}), *(d({"content": piece}) for piece in pieces), f("stop"), DONE)

    return reply


@asynccontextmanager
async def texting(
    folder: Path, upstream: ScriptedUpstream, *, tools: bool = False
) -> AsyncIterator[tuple[Served, openai.AsyncOpenAI]]:
    config = native_config(upstream.base_url, backend={"capabilities": {"tools": tools}})
    async with serving(folder, config, {"r": ROUTE}, {"plug": PLUGIN}) as served, served.sdk() as client:
        yield served, client


async def ask(
    client: openai.AsyncOpenAI, messages: Sequence[Any], *, streamed: bool, **more: Any
) -> tuple[str, str, list[Any], str, str]:
    """Text, thoughts, calls, finish reason and trace."""
    asked: Any = {"model": "auto", "messages": messages, **more}
    thoughts = ""
    if not streamed:
        raw = await client.chat.completions.with_raw_response.create(**asked)
        trace, choice = raw.headers["x-gateway-trace"], raw.parse().choices[0]
    else:
        raw = await client.chat.completions.with_raw_response.create(**asked, stream=True)
        trace = raw.headers["x-gateway-trace"]
        state: Any = openai.lib.streaming.chat.ChatCompletionStreamState()
        async for chunk in raw.parse():
            thoughts += "".join(getattr(each.delta, "reasoning_content", None) or "" for each in chunk.choices)
            state.handle_chunk(chunk)
        choice = state.get_final_completion().choices[0]
    message = choice.message
    thought = thoughts if streamed else getattr(message, "reasoning_content", None) or ""
    calls = [(each.id, each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls or ()]
    return message.content or "", thought, calls, choice.finish_reason, trace


def sent(request: UpstreamRequest) -> list[tuple[str, str]]:
    """What a model that knows only text was sent, which has to be text of two sides in turn."""
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & request.json.keys()
    messages = [(each["role"], each["content"]) for each in request.messages]
    assert all(isinstance(content, str) and "tool_calls" not in each for (_, content), each in zip(messages, request.messages, strict=True))  # fmt: skip
    assert [role for role, _ in messages] == ["system", *(["user", "assistant"] * 9)[: len(messages) - 1]]
    return messages


@BOTH
async def test_a_model_that_only_writes_text_uses_the_gateway_s_tools(tmp_path: Path, streamed: bool) -> None:
    async with (
        ScriptedUpstream(written(ACTION), written(FINAL)) as upstream,
        texting(tmp_path, upstream) as (served, client),
    ):
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "look"}]
        text, thought, calls, reason, trace = await ask(client, messages, streamed=streamed)
        first, second = upstream.requests
        assert (text, calls, reason) == ("It is done.", [], "stop")
        assert thought.endswith("I know it.")
        shown = sent(first)
        assert first.json["stop"] == ["\nObservation:"]
        assert shown[0][1].startswith("Be kind.")
        assert "lookup: Look something up." in shown[0][1]
        assert '"what"' in shown[0][1]
        # What the model made up is gone, the rest of the past is as it was sent before.
        assert sent(second)[:2] == shown
        said, observed = sent(second)[2:]
        assert said == ("assistant", 'Action: lookup\nAction Input: {"what": "x"}')
        assert trace in observed[1]
        assert observed[1].startswith("Observation: ")
        events = [each["type"] for each in (await served.trace(trace))["events"]]
        assert events.count("tool.finished") == 1


@BOTH
async def test_tools_of_both_sides_and_the_rounds_behind_them(tmp_path: Path, streamed: bool) -> None:
    async with (
        ScriptedUpstream(written(DOORS), written(FINAL), written("You are welcome.")) as upstream,
        texting(tmp_path, upstream) as (_, client),
    ):
        messages: list[Any] = [{"role": "user", "content": "look at the door"}]
        text, _, calls, reason, trace = await ask(client, messages, streamed=streamed, tools=[DOOR])
        assert (text, [each[1:] for each in calls], reason) == ("", [("open_door", {"door": "front"})], "tool_calls")
        call = {
            "id": calls[0][0],
            "type": "function",
            "function": {"name": "open_door", "arguments": '{"door": "front"}'},
        }
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": calls[0][0], "content": "open"},
        ]
        text, *_ = await ask(client, messages, streamed=streamed, tools=[DOOR])
        assert text == "It is done."
        told = sent(upstream.requests[1])
        assert told[2][1] == DOORS
        assert trace in told[3][1]
        assert "Observation (lookup): " in told[3][1]
        assert "Observation (open_door): open" in told[3][1]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "thanks, look"}]
        text, *_ = await ask(client, messages, streamed=streamed, tools=[DOOR])
        assert text == "You are welcome."
        assert sent(upstream.requests[2])[: len(told)] == told


@BOTH
async def test_a_model_whose_upstream_refuses_tools_is_asked_in_text_from_then_on(
    tmp_path: Path, streamed: bool
) -> None:
    refusal = error(400, "registry.ollama.ai/library/gemma:2b does not support tools")
    replies = (refusal, written(ACTION), written(FINAL), written("Hello."), written("Plain."))
    async with ScriptedUpstream(*replies) as upstream, texting(tmp_path, upstream, tools=True) as (_, client):
        messages = [{"role": "user", "content": "look"}]
        assert (await ask(client, messages, streamed=streamed))[0] == "It is done."
        assert (await ask(client, messages, streamed=streamed))[0] == "Hello."
        assert "tools" in upstream.requests[0].json
        assert all(sent(each) for each in upstream.requests[1:])
        # Without tools there is nothing to translate.
        assert (await ask(client, [{"role": "user", "content": "hi"}], streamed=streamed))[0] == "Plain."
        assert upstream.requests[4].messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("choice", "hint", "calls"),
    [
        ("auto", None, 1),
        ("required", "(Use a tool now: write an Action and an Action Input.)", 1),
        ({"type": "function", "function": {"name": "open_door"}}, "(Use the tool open_door now: ", 1),
        ("none", "(Use no tool now: write the Final Answer.)", 0),
    ],
)
async def test_a_tool_choice_is_said_in_words(tmp_path: Path, choice: Any, hint: str | None, calls: int) -> None:
    wrote = 'Thought: so be it\nAction: open_door\nAction Input: {"door": "front"}'
    async with ScriptedUpstream(written(wrote)) as upstream, texting(tmp_path, upstream) as (_, client):
        messages = [{"role": "user", "content": "hi"}]
        text, _, made, reason, _ = await ask(client, messages, streamed=False, tools=[DOOR], tool_choice=choice)
        assert (len(made), reason, bool(text)) == (calls, "tool_calls" if calls else "stop", not calls)
        last = sent(upstream.requests[0])[-1][1]
        assert last == "hi" if hint is None else hint in last


async def test_an_answer_in_a_form_is_asked_for_in_words_and_stops_of_the_client_stay(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "title": "Shape"}}}
    async with ScriptedUpstream(written('Final Answer: {"a": 1}')) as upstream, texting(tmp_path, upstream) as (_, on):
        messages = [{"role": "user", "content": "hi"}]
        text, *_ = await ask(
            on, messages, streamed=False, tools=[DOOR], response_format=form, stop="END", logprobs=True
        )
        assert text == '{"a": 1}'
        body = upstream.requests[0].json
        assert body["stop"] == ["END", "\nObservation:"]
        assert not {"response_format", "logprobs"} & body.keys()
        assert "Shape" in body["messages"][-1]["content"]


async def test_what_is_made_up_behind_an_action_is_not_waited_for(tmp_path: Path) -> None:
    begun = stream(d({"content": ACTION[:-4]}), d({"content": " and so on"}))
    endless = begun.stall_at(len(begun.body))

    def reply(request: UpstreamRequest) -> Reply:
        return endless if request.number == 1 else stream(d({"content": FINAL}), f("stop"), DONE)

    async with ScriptedUpstream(then=reply) as upstream, texting(tmp_path, upstream) as (_, client):
        text, *_ = await ask(client, [{"role": "user", "content": "look"}], streamed=True)
        assert text == "It is done."
        await upstream.aborted()
