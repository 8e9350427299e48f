"""The Responses API through unmodified clients: the OpenAI SDKs for Python and Node, and what Codex CLI was recorded to send."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseStreamEvent
from pydantic import BaseModel

from tests.api.response_events import assert_proper, events_in, stream_of
from tests.chat.recordings import FOLDER, needs_recordings
from tests.e2e.program import Program
from tests.e2e.test_openai_node import node
from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, d, f, stream, words

QUESTION = "what is 12.5% of 18,640?"
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(BaseModel):
    city: str
    hot: bool


@pytest.fixture
async def client(shipped: Program) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{shipped.url}/v1", api_key="any", max_retries=0) as made:
        yield made


# --- The shipped gateway -------------------------------------------------------------------------------------------


async def test_response_is_answered_by_a_tool_and_retrieved(client: openai.AsyncOpenAI) -> None:
    got = await client.responses.create(model="auto", input=QUESTION)
    assert "2330" in got.output_text
    assert [item.type for item in got.output] == ["mcp_call", "message"]
    assert (got.status, got.model) == ("completed", "demo")
    assert got.usage is not None
    assert got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens > 0
    assert (await client.responses.retrieve(got.id)).output_text == got.output_text
    items = await client.responses.input_items.list(got.id)
    assert [item.type for item in items.data] == ["message"]
    await client.responses.delete(got.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(got.id)


async def test_typed_stream_helper_accumulates_the_response(client: openai.AsyncOpenAI) -> None:
    kinds: list[str] = []
    async with client.responses.stream(
        model="auto", input="weather in Rome?", tools=[WEATHER], tool_choice="required"
    ) as helper:
        kinds += [event.type async for event in helper]
        got = await helper.get_final_response()
    [call] = [item for item in got.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Rome"}
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}
    after = await client.responses.create(model="auto", input=[output], previous_response_id=got.id, tools=[WEATHER])
    assert after.status == "completed"
    assert "21" in after.output_text


async def test_parsed_response_is_an_object(client: openai.AsyncOpenAI) -> None:
    got = await client.responses.parse(model="auto", input="Is it hot in Paris?", text_format=Weather)
    assert isinstance(got.output_parsed, Weather)


async def test_conversation_is_continued_by_name(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"topic": "sums"})
    await client.responses.create(model="auto", input="hello", conversation=made.id)
    items = await client.conversations.items.list(made.id, order="asc")
    assert [item.type for item in items.data] == ["message", "message"]
    assert (await client.conversations.update(made.id, metadata={"topic": "x"})).metadata == {"topic": "x"}
    assert (await client.conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="auto", input="hello", conversation=made.id)


async def test_background_response_is_polled_and_cancelled(client: openai.AsyncOpenAI) -> None:
    got = await client.responses.create(model="auto", input=QUESTION, background=True)
    assert (got.status, got.background) == ("queued", True)
    async with asyncio.timeout(20):
        while got.status in ("queued", "in_progress"):
            await asyncio.sleep(0.05)
            got = await client.responses.retrieve(got.id)
    assert "2330" in got.output_text
    assert (await client.responses.cancel(got.id)).status == "completed"


async def test_node_sdk_speaks_responses_with_the_shipped_gateway(shipped: Program) -> None:
    found = await node("responses.mjs", shipped.url)
    assert "2330" in found["plain"]["text"]
    assert found["text"] == found["plain"]["text"]
    assert found["last"] == "response.completed"
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["resumed"] == found["numbers"][4:]
    assert [json.loads(call["arguments"]) for call in found["calls"]] == [{"city": "Rome"}]
    assert found["answered"] == "completed"
    assert found["items"] == ["user", "assistant"]
    assert found["gone"] == {"status": 404, "code": "not_found"}


# --- Through a gateway to a scripted upstream ------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True], ids=["waits", "background"])
async def test_sdk_that_is_cut_off_fifty_times_has_every_event_once(tmp_path: Path, background: bool) -> None:
    pieces = words(" ".join(f"word{number}" for number in range(300)))
    gates = [Stall(str(number)) for number in range(50)]
    said: list[Any] = [step for at, gate in enumerate(gates) for step in (*pieces[at * 6 : at * 6 + 6], gate)]
    dice = random.Random(50)
    async with (
        ScriptedUpstream(stream(*said, *pieces[300:], f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
        on.sdk() as sdk,
    ):
        following = await sdk.responses.create(model="m", input="hi", stream=True, background=background)
        seen: list[ResponseStreamEvent] = []
        cuts = 0
        while not (seen and seen[-1].type == "response.completed"):
            most = dice.randint(1, 5)
            async with following:
                async for event in following:
                    seen.append(event)
                    most -= 1
                    if not most:
                        break
            if cuts < 50:
                up.release(str(cuts))
            cuts += 1
            assert cuts < 500
            first = seen[0]
            assert first.type == "response.created"
            following = await sdk.responses.retrieve(
                first.response.id, stream=True, starting_after=seen[-1].sequence_number
            )
    assert cuts >= 50
    assert_proper([json.loads(event.to_json()) for event in seen])


@needs_recordings
async def test_codex_is_answered_as_it_was_recorded(tmp_path: Path) -> None:
    lines = (FOLDER / "clients" / "codex-cli.jsonl").read_text(encoding="utf-8").splitlines()
    recorded = [json.loads(line) for line in lines]
    call = {
        "index": 0,
        "id": "call_2",
        "type": "function",
        "function": {"name": "exec_command", "arguments": '{"cmd":"true"}'},
    }
    spaced = {**call, "function": {"name": "multi_agent_v1__close_agent", "arguments": '{"target":"a"}'}}
    replies = [
        stream(*words("hello"), f("stop"), DONE),
        stream(d({"role": "assistant", "tool_calls": [call]}), f("tool_calls"), DONE),
        stream(d({"role": "assistant", "tool_calls": [spaced]}), f("tool_calls"), DONE),
    ]
    async with ScriptedUpstream(*replies) as up, serving(tmp_path, native_config(up.base_url)) as on:
        got = [await _sent(on, each) for each in recorded]
        asked = [request.json for request in up.requests]
    assert [item["type"] for events in got for item in events[-1]["response"]["output"]] == [
        "message",
        "function_call",
        "function_call",
    ]
    assert got[2][-1]["response"]["output"][0]["namespace"] == "multi_agent_v1"
    names = [tool["function"]["name"] for tool in asked[0]["tools"]]
    assert "exec_command" in names
    assert "multi_agent_v1__close_agent" in names
    assert [message["role"] for message in asked[2]["messages"]] == ["system", "user", "user", "assistant", "tool"]
    assert not {"store", "include", "client_metadata", "reasoning"} & set(asked[0])


async def _sent(on: Served, recorded: dict[str, Any]) -> list[dict[str, Any]]:
    left = ("authorization", "content-length", "host")
    headers = {name: value for name, value in recorded["headers"].items() if name.lower() not in left}
    body = {**recorded["body"], "model": "m"}
    async with on.http.post(f"{on.url}/v1/responses", json=body, headers=headers) as response:
        raw = await response.read()
        assert response.status == 200, raw
        assert response.headers["x-gateway-left-out"] == "web_search"
    events = events_in(raw)
    assert_proper(events)
    return events


async def test_stream_with_a_retry_count_joins_the_first_attempt(tmp_path: Path) -> None:
    """An SDK's own retry gets the same response, under the same id."""
    async with (
        ScriptedUpstream(answer("ok")) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
        on.sdk() as sdk,
    ):
        options: Any = {"extra_headers": {"Idempotency-Key": "k"}}
        one = await sdk.responses.create(model="m", input="hi", **options)
        options["extra_headers"]["x-stainless-retry-count"] = "1"
        two = await sdk.responses.create(model="m", input="hi", **options)
        assert len(up.requests) == 1
    assert one.id == two.id


async def test_obfuscated_deltas_hide_their_lengths(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("hi you there"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        events = await stream_of(on, {"input": "x", "stream_options": {"include_obfuscation": True}})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert {(len(event["delta"]) + len(event["obfuscation"])) % 16 for event in deltas} == {0}
