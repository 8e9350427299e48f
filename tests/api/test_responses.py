"""`POST /v1/responses`: what is asked reaches the model, and its answer the client, whole or as typed events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.response_events import respond, stream_of
from tests.serving import native_config, serving
from tests.upstream import DONE, ScriptedUpstream, answer, call, chunk, d, error, f, stream, tc, u, words

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
PLUGIN = """
from gateway.tools import tool

@tool()
async def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b

@tool()
async def fail() -> int:
    \"\"\"Fail.\"\"\"
    raise RuntimeError("it is broken")

def register(registry):
    registry.add(add)
    registry.add(fail)
"""
WITH_TOOLS: dict[str, Any] = {"tools": {"offer": "always", "default": ["add", "fail"]}}


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


# --- What reaches the model ------------------------------------------------------------------------------------------


async def test_text_becomes_a_message_behind_the_instructions(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("ok", tokens=(7, 3))) as up, serving(tmp_path, native_config(up.base_url)) as on:
        got = await respond(
            on,
            {
                "input": "hi",
                "instructions": "be brief",
                "temperature": 0.5,
                "max_output_tokens": 99,
                "reasoning": {"effort": "low"},
                "text": {"verbosity": "low"},
                "metadata": {"a": "b"},
                "client_metadata": {"x": "y"},
                "top_k": 5,
            },
        )
        asked = up.requests[0].json
    assert asked["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert {name: asked.get(name) for name in ("temperature", "max_completion_tokens", "reasoning_effort")} == {
        "temperature": 0.5,
        "max_completion_tokens": 99,
        "reasoning_effort": "low",
    }
    assert (asked["verbosity"], asked["top_k"]) == ("low", 5)
    assert not {"metadata", "store", "instructions", "input", "client_metadata"} & set(asked)
    assert (text_of(got), got["status"], got["model"]) == ("ok", "completed", "m")
    assert (got["usage"]["input_tokens"], got["usage"]["output_tokens"]) == (7, 3)
    assert (got["instructions"], got["temperature"], got["max_output_tokens"]) == ("be brief", 0.5, 99)
    assert got["metadata"] == {"a": "b"}


async def test_structured_output_is_asked_for_in_the_models_own_form(tmp_path: Path) -> None:
    form = {"type": "json_schema", "name": "w", "strict": True, "schema": {"type": "object"}}
    async with ScriptedUpstream(answer("{}")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        got = await respond(on, {"input": "hi", "text": {"format": form}})
        asked = up.requests[0].json["response_format"]
    assert asked == {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": {"type": "object"}}}
    assert got["text"]["format"]["name"] == "w"


async def test_tools_of_every_kind_are_offered_or_left_out_and_said(tmp_path: Path) -> None:
    tools = [
        WEATHER,
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "close", "parameters": {}}]},
        {"type": "custom", "name": "run", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "web_search", "external_web_access": True},
        {"type": "never_heard_of"},
    ]
    calls = [call("c1", "agents__close", '{"id": 1}')]
    async with ScriptedUpstream(answer(calls=calls)) as up, serving(tmp_path, native_config(up.base_url)) as on:
        status, headers, got = await on.post("/v1/responses", {"model": "m", "input": "hi", "tools": tools})
        asked = up.requests[0].json["tools"]
        trace = await on.trace(headers["x-gateway-trace"])
    assert status == 200
    named = [tool[tool["type"]]["name"] for tool in asked]
    assert named == ["get_weather", "agents__close", "run"]
    assert asked[0]["function"]["strict"] is True
    assert asked[2]["custom"]["format"] == {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: X"}}
    assert headers["x-gateway-left-out"] == "web_search, never_heard_of"
    assert [tool["type"] for tool in got["tools"]] == ["function", "namespace", "custom"]
    [item] = got["output"]
    assert (item["type"], item["namespace"], item["name"], item["call_id"]) == (
        "function_call",
        "agents",
        "close",
        "c1",
    )
    [said] = [event for event in trace["events"] if event["type"] == "tools.left_out"]
    assert said["data"]["kinds"] == ["web_search", "never_heard_of"]
    assert trace["response_id"] == got["id"]


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        ("auto", "auto", ["get_weather", "other"]),
        ("required", "required", ["get_weather", "other"]),
        ("none", "none", ["get_weather", "other"]),
        (
            {"type": "function", "name": "get_weather"},
            {"type": "function", "function": {"name": "get_weather"}},
            ["get_weather", "other"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]},
            "required",
            ["other"],
        ),
    ],
)
async def test_tool_choice_in_every_form(tmp_path: Path, choice: Any, sent: Any, offered: list[str]) -> None:
    tools = [WEATHER, {"type": "function", "name": "other"}]
    async with ScriptedUpstream(answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        await respond(on, {"input": "hi", "tools": tools, "tool_choice": choice, "parallel_tool_calls": False})
        asked = up.requests[0].json
    assert asked["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in asked["tools"]] == offered
    assert asked["parallel_tool_calls"] is False


# --- The answer ------------------------------------------------------------------------------------------------------


async def test_client_tools_are_called_by_name_and_answered(tmp_path: Path) -> None:
    calls = [call("c1", "get_weather", '{"city": "Paris"}'), call("c2", "get_weather", '{"city": "Rome"}')]
    async with (
        ScriptedUpstream(answer("let me see", calls=calls), answer("warm")) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        asked = [{"role": "user", "content": "weather?"}]
        first = await respond(on, {"input": asked, "tools": [WEATHER]})
        assert [item["type"] for item in first["output"]] == ["message", "function_call", "function_call"]
        outputs = [{"type": "function_call_output", "call_id": each, "output": f"{each}!"} for each in ("c2", "c1")]
        got = await respond(on, {"input": [*asked, *first["output"], *outputs], "tools": [WEATHER], "store": False})
        messages = up.requests[1].messages
    assert text_of(got) == "warm"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c1", "c2"]
    assert messages[1]["content"] == "let me see"
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == [("c1", "c1!"), ("c2", "c2!")]


async def test_stream_has_every_event_in_order(tmp_path: Path) -> None:
    said = [*words("hello you"), tc(0, id="c1", name="get_weather", arguments='{"ci'), tc(0, arguments='ty": "P"}')]
    reply = stream(*said, f("tool_calls"), u(5, 6), DONE)
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        events = await stream_of(on, {"input": "hi", "tools": [WEATHER]})
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for i, kind in enumerate(kinds) if not (i and kind == kinds[i - 1])] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1]["response"]
    assert text_of(response) == "hello you"
    assert response["output"][1]["arguments"] == '{"city": "P"}'
    assert response["usage"]["total_tokens"] == 11


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_tools_of_the_gateway_are_items_that_it_ran_itself(tmp_path: Path, streamed: bool) -> None:
    one, two = call("c1", "add", '{"a": 1, "b": 2}'), call("c2", "fail", "{}")
    if streamed:
        first = stream(
            *words("Adding."),
            d({"tool_calls": [{"index": 0, **one}, {"index": 1, **two}]}),
            f("tool_calls"),
            u(3, 4),
            DONE,
        )
        second = stream(*words("It is 3."), f("stop"), u(5, 6), DONE)
    else:
        first = answer("Adding.", calls=[one, two], tokens=(3, 4))
        second = answer("It is 3.", tokens=(5, 6))
    async with (
        ScriptedUpstream(first, second, then=answer("done")) as up,
        serving(tmp_path, native_config(up.base_url, **WITH_TOOLS), plugins={"p": PLUGIN}) as on,
    ):
        if streamed:
            got = (await stream_of(on, {"input": "1+2?"}))[-1]["response"]
        else:
            got = await respond(on, {"input": "1+2?"})
        asked = {"role": "user", "content": "again"}
        # The next turn knows what was called, whichever way it continues.
        await respond(on, {"input": [asked], "previous_response_id": got["id"]})
        await respond(on, {"input": [{"role": "user", "content": "1+2?"}, *got["output"], asked], "store": False})
        kept, resent = up.requests[2].messages, up.requests[3].messages
        before = up.requests[1].messages
    kinds = [(item["type"], item["status"]) for item in got["output"]]
    assert kinds == [
        ("message", "completed"),
        ("mcp_call", "completed"),
        ("mcp_call", "failed"),
        ("message", "completed"),
    ]
    call_item, failed = got["output"][1:3]
    assert (call_item["server_label"], call_item["name"]) == ("gateway", "add")
    assert json.loads(call_item["arguments"]) == {"a": 1, "b": 2}
    assert json.loads(call_item["output"])["result"] == 3
    assert "it is broken" in failed["error"]["content"][0]["text"]
    assert text_of(got) == "Adding.It is 3."
    assert (got["usage"]["input_tokens"], got["usage"]["output_tokens"]) == (8, 10)
    assert kept == resent
    # What the model saw in its second round is what it sees again.
    assert kept[: len(before)] == before
    assert [message["role"] for message in kept[len(before) :]] == ["assistant", "user"]


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_cut_answer_is_incomplete(tmp_path: Path, streamed: bool, reason: str, why: str) -> None:
    reply = stream(*words("half a"), f(reason), DONE) if streamed else answer("half a", finish=reason)
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        body = {"input": "hi", "max_output_tokens": 16}
        got = (await stream_of(on, body))[-1]["response"] if streamed else await respond(on, body)
    assert (got["status"], got["incomplete_details"], got["completed_at"]) == ("incomplete", {"reason": why}, None)
    assert got["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_refusal_is_a_part_of_its_own(tmp_path: Path, streamed: bool) -> None:
    if streamed:
        reply = stream(d({"role": "assistant", "refusal": "I "}), d({"refusal": "won't"}), f("stop"), DONE)
    else:
        message = {"role": "assistant", "content": None, "refusal": "I won't"}
        reply = answer(choices=[{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}])
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        got = (await stream_of(on, {"input": "hi"}))[-1]["response"] if streamed else await respond(on, {"input": "hi"})
    assert got["output"][0]["content"] == [{"type": "refusal", "refusal": "I won't"}]


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize("summary", [False, True], ids=["raw", "summary"])
async def test_reasoning_is_shown_and_carried(tmp_path: Path, streamed: bool, summary: bool) -> None:
    if streamed:
        thought = [d({"role": "assistant", "reasoning_content": "hm, "}), d({"reasoning_content": "well"})]
        reply = stream(*thought, *words("yes")[1:], f("stop"), DONE)
    else:
        message = {"role": "assistant", "content": "yes", "reasoning_content": "hm, well"}
        reply = answer(choices=[{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}])
    asked: dict[str, Any] = {"input": "hi", "include": ["reasoning.encrypted_content"], "store": False}
    if summary:
        asked["reasoning"] = {"summary": "auto"}
    async with ScriptedUpstream(reply, answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        got = (await stream_of(on, asked))[-1]["response"] if streamed else await respond(on, asked)
        # A client that keeps nothing but the sealed note still carries the thought.
        sealed = {**got["output"][0], "summary": [], "content": []}
        again = [{"role": "user", "content": "hi"}, sealed, got["output"][1], {"role": "user", "content": "why?"}]
        await respond(on, {"input": again})
        sent = up.requests[1].messages
    thought_item, message_item = got["output"]
    part = {"type": "summary_text" if summary else "reasoning_text", "text": "hm, well"}
    assert thought_item["summary" if summary else "content"] == [part]
    assert thought_item["encrypted_content"].startswith("hermes1.")
    assert message_item["content"][0]["text"] == "yes"
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == "yes"


async def test_logprobs_come_where_they_are_asked_for(tmp_path: Path) -> None:
    logprobs: dict[str, Any] = {
        "content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}],
        "refusal": None,
    }
    said = chunk(
        choices=[
            {"index": 0, "delta": {"role": "assistant", "content": "a"}, "logprobs": logprobs, "finish_reason": None}
        ]
    )
    async with (
        ScriptedUpstream(stream(said, f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        events = await stream_of(on, {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2})
        asked = up.requests[0].json
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, 2)
    part = events[-1]["response"]["output"][0]["content"][0]
    assert part["logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]


async def test_custom_tool_takes_free_text(tmp_path: Path) -> None:
    pieces = [
        d(
            {
                "role": "assistant",
                "tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "run", "input": "ls "}}],
            }
        ),
        d({"tool_calls": [{"index": 0, "custom": {"input": "-l"}}]}),
    ]
    async with (
        ScriptedUpstream(stream(*pieces, f("tool_calls"), DONE), answer("ok")) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        tools = [{"type": "custom", "name": "run"}]
        got = (await stream_of(on, {"input": "hi", "tools": tools}))[-1]["response"]
        [item] = got["output"]
        assert (item["type"], item["name"], item["input"], item["call_id"]) == (
            "custom_tool_call",
            "run",
            "ls -l",
            "c1",
        )
        output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "total 0"}
        await respond(on, {"input": [output], "previous_response_id": got["id"], "tools": tools})
        sent = up.requests[1].messages
    assert sent[1]["tool_calls"] == [{"id": "c1", "type": "custom", "custom": {"name": "run", "input": "ls -l"}}]
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": "total 0"}


# --- Failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_failure_before_the_first_event_is_an_http_error(tmp_path: Path, streamed: bool) -> None:
    refused = error(429, "slow down", kind="rate_limit_error", headers={"retry-after": "7"})
    async with ScriptedUpstream(refused) as up, serving(tmp_path, native_config(up.base_url)) as on:
        status, headers, got = await on.post("/v1/responses", {"model": "m", "input": "hi", "stream": streamed})
        assert await on.gateway.store.responses.get(f"resp_{headers['x-gateway-trace']}", None) is None
    assert (status, headers["retry-after"], got["error"]["message"]) == (429, "7", "slow down")


async def test_failure_in_mid_stream_is_told_and_kept(tmp_path: Path) -> None:
    broken = stream(*words("half a"), chunk(error={"message": "overloaded", "code": 503}), DONE)
    async with ScriptedUpstream(broken) as up, serving(tmp_path, native_config(up.base_url)) as on:
        events = await stream_of(on, {"input": "hi"})
        status, _, kept = await on.get(f"/v1/responses/{events[-1]['response']['id']}")
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert response["output"][0]["status"] == "incomplete"
    assert (status, kept) == (200, response)
    assert not any(event["type"] == "response.completed" for event in events)
