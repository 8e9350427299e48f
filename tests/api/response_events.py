"""Responses and their events as tests look at them: read from a stream, and held against OpenAI's published schemas."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema_rs

from tests.chat.recordings import FOLDER
from tests.serving import Served

# What the real service sends as null although its document has no null.
_NULL_IN_PRACTICE = ("usage", "user", "safety_identifier", "prompt_cache_key")


async def respond(on: Served, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The response to a request that is expected to go well; held against the schema."""
    status, _, response = await on.post("/v1/responses", {"model": "m", **body}, **headers)
    assert status == 200, response
    assert not (found_faults := faults("Response", response)), found_faults
    found: dict[str, Any] = response
    return found


async def stream_of(on: Served, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """The events of a streamed response; each held against the schema, and their order against OpenAI's."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = {"model": "m", "stream": True, **body}
    async with on.http.post(f"{on.url}/v1/responses", json=request, headers=named) as response:
        raw = await response.read()
        assert response.status == 200, raw
    events = events_in(raw)
    assert_proper(events)
    return events


async def resumed(on: Served, response_id: str, after: int | None = None, **headers: str) -> list[dict[str, Any]]:
    """The events of a response that is asked for again."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    async with on.http.get(f"{on.url}/v1/responses/{response_id}", params=query, headers=named) as response:
        raw = await response.read()
        assert response.status == 200, raw
    return events_in(raw)


def events_in(raw: bytes) -> list[dict[str, Any]]:
    """The events of a body; every `event:` names the type of its data."""
    events = []
    for block in raw.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not any(lines):
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def assert_proper(events: list[dict[str, Any]]) -> None:
    """Numbers without gaps, proper schemas, items that end as they began, and what the deltas say is what stands there."""
    first = events[0]["sequence_number"]
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    wrong = {event["type"]: found for event in events if (found := faults("ResponseStreamEvent", event))}
    assert not wrong, wrong
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    if first:
        return
    assert events[0]["type"] == "response.created"
    added = {e["output_index"]: e["item"]["id"] for e in events if e["type"] == "response.output_item.added"}
    done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
    output = last["response"]["output"]
    assert [item["id"] for item in output] == [added[index] for index in range(len(output))]
    assert [done[index] for index in range(len(output))] == output
    for index, item in enumerate(output):
        deltas: dict[str, str] = {}
        for event in events:
            if event.get("output_index") == index and event["type"].endswith(".delta"):
                deltas[event["type"]] = deltas.get(event["type"], "") + event["delta"]
        assert deltas == said_by(item), item


def said_by(item: dict[str, Any]) -> dict[str, str]:
    """What an item says, by the type of the deltas that say it."""
    said: dict[str, str] = {}
    for part in [*(item.get("content") or []), *(item.get("summary") or [])]:
        kind = {
            "output_text": "output_text",
            "refusal": "refusal",
            "summary_text": "reasoning_summary_text",
            "reasoning_text": "reasoning_text",
        }[part["type"]]
        name = f"response.{kind}.delta"
        said[name] = said.get(name, "") + (part.get("text") or part.get("refusal") or "")
    for kind, delta, field in (
        ("function_call", "function_call_arguments", "arguments"),
        ("mcp_call", "mcp_call_arguments", "arguments"),
        ("custom_tool_call", "custom_tool_call_input", "input"),
    ):
        if item["type"] == kind:
            said[f"response.{delta}.delta"] = item[field]
    return said


def faults(schema: str, value: dict[str, Any]) -> list[str]:
    """What OpenAI's schema says against a value; nothing where the schemas are not on this machine."""
    if not FOLDER.is_dir():
        return []
    value = json.loads(json.dumps(value))
    for each in (value, value.get("response")):
        for name in _NULL_IN_PRACTICE:
            if isinstance(each, dict) and each.get(name, 0) is None:
                del each[name]
    return [f"{list(error.instance_path)}: {error.message[:200]}" for error in _validator(schema).iter_errors(value)]


@functools.cache
def _validator(schema: str) -> Any:
    document = _nullable(json.loads((FOLDER / "openai-openapi-subset.json").read_text(encoding="utf-8")))
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    )


def _nullable(value: Any) -> Any:
    """The document still says `nullable` in places, which JSON Schema does not know."""
    if isinstance(value, list):
        return [_nullable(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {name: _nullable(each) for name, each in value.items()}
    return {"anyOf": [made, {"type": "null"}]} if value.get("nullable") is True else made
