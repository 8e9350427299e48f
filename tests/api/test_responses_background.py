"""Responses that outlive their request: asked for by `background`, made by a run, found by their id."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.api.response_events import assert_proper, events_in, faults, resumed, stream_of
from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, call, d, error, f, stream, words


async def ended(on: Served, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            status, _, response = await on.get(f"/v1/responses/{response_id}")
            assert status == 200, response
            assert faults("Response", response) == []
            if response["status"] not in ("queued", "in_progress"):
                found: dict[str, Any] = response
                return found
            await asyncio.sleep(0.02)


async def test_background_response_is_queued_and_found_when_it_is_made(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello you"), f("stop"), DONE).held()) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        body = {"model": "m", "input": "hi", "background": True}
        status, _, queued = await on.post("/v1/responses", body)
        assert (status, queued["status"], queued["background"], faults("Response", queued)) == (200, "queued", True, [])
        await up.stalled()
        _, _, running = await on.get(f"/v1/responses/{queued['id']}")
        up.release()
        response = await ended(on, queued["id"])
        events = await resumed(on, queued["id"])
        run = (await on.get(f"/v1/runs/run_{queued['id'].removeprefix('resp_')}"))[2]
    assert running["status"] == "in_progress"
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", "hello you")
    assert (response["id"], response["created_at"]) == (queued["id"], queued["created_at"])
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert_proper(events)
    assert run["status"] == "completed"


async def test_background_stream_is_followed_from_its_first_event(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello you"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        events = await stream_of(on, {"input": "hi", "background": True})
        again = await resumed(on, events[0]["response"]["id"], 4)
    assert again == events[5:]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "hello you"


async def test_client_that_leaves_a_background_stream_ends_nothing(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello"), Stall(), *words(" you"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        body = {"model": "m", "input": "hi", "background": True, "stream": True}
        async with on.http.post(f"{on.url}/v1/responses", json=body) as answered:
            await up.stalled()
            raw = await answered.content.readuntil(b"\n\n")
            answered.close()
        [first] = events_in(raw)
        up.release()
        response = await ended(on, first["response"]["id"])
    assert response["output"][0]["content"][0]["text"] == "hello you"
    assert not up.aborts


async def test_background_response_is_cancelled_and_says_so_when_it_is_true(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello"), Stall(), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        _, _, queued = await on.post("/v1/responses", {"model": "m", "input": "hi", "background": True})
        await up.stalled()
        path = f"/v1/responses/{queued['id']}"
        status, _, cancelled = await on.post(f"{path}/cancel", {})
        await up.aborted(timeout_s=20)
        twice = await on.post(f"{path}/cancel", {})
        _, _, kept = await on.get(path)
        events = await resumed(on, queued["id"])
    assert (status, cancelled["status"], kept["status"]) == (200, "cancelled", "cancelled")
    assert (twice[0], twice[2]["status"]) == (200, "cancelled")
    assert faults("Response", cancelled) == []
    assert events[-1]["type"] != "response.completed"


async def test_response_of_a_request_that_waits_cannot_be_cancelled(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        _, _, response = await on.post("/v1/responses", {"model": "m", "input": "hi"})
        status, _, refused = await on.post(f"/v1/responses/{response['id']}/cancel", {})
    assert (status, refused["error"]["message"]) == (400, "Cannot cancel a synchronous response.")


async def test_background_response_that_fails_says_why(tmp_path: Path) -> None:
    refused = error(400, "no such thing", kind="invalid_request_error")
    async with ScriptedUpstream(then=refused) as up, serving(tmp_path, native_config(up.base_url)) as on:
        _, _, queued = await on.post("/v1/responses", {"model": "m", "input": "hi", "background": True})
        response = await ended(on, queued["id"])
        events = await resumed(on, queued["id"])
    assert (response["status"], response["error"]["message"]) == ("failed", "no such thing")
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]


async def test_background_needs_store(tmp_path: Path) -> None:
    async with ScriptedUpstream() as up, serving(tmp_path, native_config(up.base_url)) as on:
        body = {"model": "m", "input": "hi", "background": True, "store": False}
        status, _, refused = await on.post("/v1/responses", body)
    assert (status, refused["error"]["param"]) == (400, "background")


PLUGIN = """
from gateway.tools import tool

@tool(writes=True)
async def book(seat: int) -> str:
    \"\"\"Book a seat.\"\"\"
    return f"seat {seat}"

def register(registry):
    registry.add(book)
"""


async def test_run_that_was_cut_off_goes_on_behind_the_events_it_has(tmp_path: Path) -> None:
    """A gateway stops in the second round; the next one goes on from the first, and every event is there once.

    It keeps to the tools that were offered, although its own configuration offers none.
    """
    config_of = {"tools": {"offer": "always", "default": ["book"]}}
    booked = call("c1", "book", '{"seat": 3}')
    async with ScriptedUpstream() as up:
        up.enqueue(
            stream(*words("Booking."), d({"tool_calls": [{"index": 0, **booked}]}), f("tool_calls"), DONE),
            stream(*words("You have"), Stall(), f("stop"), DONE),
            stream(*words("You have seat 3."), f("stop"), DONE),
        )
        config = native_config(up.base_url, **config_of)
        async with serving(tmp_path, config, plugins={"p": PLUGIN}) as on:
            _, _, queued = await on.post("/v1/responses", {"model": "m", "input": "book", "background": True})
            await up.stalled()
            before: list[dict[str, Any]] = []
            async with asyncio.timeout(20):
                while not any(e["type"] == "response.output_text.delta" and e["output_index"] == 2 for e in before):
                    before = await _so_far(on, queued["id"])
        config = native_config(up.base_url)
        async with serving(tmp_path, config, plugins={"p": PLUGIN}) as on:
            response = await ended(on, queued["id"])
            events = await resumed(on, queued["id"])
        asked = [len(request.messages) for request in up.requests]
        offered = [[tool["function"]["name"] for tool in request.json.get("tools", ())] for request in up.requests]
    assert response["status"] == "completed"
    assert offered == [["book"]] * 3
    assert asked[1] == asked[2], "the first round was not asked for again"
    assert events[: len(before)] == before
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [(item["type"], item["status"]) for item in response["output"]]
    assert kinds == [
        ("message", "completed"),
        ("mcp_call", "completed"),
        ("message", "incomplete"),
        ("message", "completed"),
    ]
    assert json.loads(response["output"][1]["output"])["result"] == "seat 3"
    said = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message" and item["content"]]
    assert said == ["Booking.", "You have", "You have seat 3."]


async def _so_far(on: Served, response_id: str) -> list[dict[str, Any]]:
    """The events there are by now."""
    raw = b""
    async with on.http.get(f"{on.url}/v1/responses/{response_id}", params={"stream": "true"}) as response:
        try:
            while True:
                async with asyncio.timeout(0.5):
                    if not (data := await response.content.readany()):
                        break
                raw += data
        except TimeoutError:
            response.close()
    return events_in(raw)
