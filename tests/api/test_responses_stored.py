"""Responses that are kept: retrieved, continued, followed again, deleted; by their owner alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.store.response_records import ResponseRow
from gateway.turn import responding
from tests.api.response_events import assert_proper, events_in, faults, respond, resumed, stream_of
from tests.serving import Served, native_config, serving
from tests.upstream import DONE, ScriptedUpstream, Stall, answer, call, d, f, stream, words

OWNERS = {"keys": {"static": {"a": {"key": "sk-a"}, "b": {"key": "sk-b"}}}}
A, B = {"authorization": "Bearer sk-a"}, {"authorization": "Bearer sk-b"}
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def delete(on: Served, path: str, **headers: str) -> tuple[int, Any]:
    status, _, said = await on.ask("DELETE", path, None, **headers)
    return status, said


# --- Kept and found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_response_is_retrieved_as_it_was_given(tmp_path: Path, streamed: bool) -> None:
    reply = stream(*words("hello you"), f("stop"), DONE) if streamed else answer("hello you")
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        if streamed:
            events = await stream_of(on, {"input": "hi"})
            response = events[-1]["response"]
        else:
            response = await respond(on, {"input": "hi"})
            events = []
        status, _, kept = await on.get(f"/v1/responses/{response['id']}")
        again = await resumed(on, response["id"])
        later = await resumed(on, response["id"], 3)
        _, _, bare = await on.get(f"/responses/{response['id']}")
    assert (status, kept, bare) == (200, response, response)
    assert_proper(again)
    assert again[-1]["response"] == response
    assert not streamed or again == events
    assert later == again[4:]


async def test_input_items_are_listed_in_pages(tmp_path: Path) -> None:
    async with ScriptedUpstream(answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        asked = [user("one"), {"role": "assistant", "content": "two"}, {**user("three"), "id": "msg_mine"}]
        response = await respond(on, {"input": asked})
        path = f"/v1/responses/{response['id']}/input_items"
        _, _, newest = await on.get(path)
        _, _, oldest = await on.get(f"{path}?order=asc&limit=2")
        _, _, rest = await on.get(f"{path}?order=asc&after={oldest['last_id']}")
        status, _, _ = await on.get(f"{path}?order=sideways")
    assert [item["content"][0]["text"] for item in newest["data"]] == ["three", "two", "one"]
    assert newest["data"][0]["id"] == "msg_mine"
    assert [item["content"][0]["text"] for item in oldest["data"]] == ["one", "two"]
    assert (oldest["has_more"], rest["has_more"], [item["id"] for item in rest["data"]]) == (True, False, ["msg_mine"])
    assert status == 400


async def test_what_is_not_to_be_kept_is_not(tmp_path: Path) -> None:
    replies = [answer("ok"), stream(*words("ok"), f("stop"), DONE)]
    async with ScriptedUpstream(*replies) as up, serving(tmp_path, native_config(up.base_url)) as on:
        plain = await respond(on, {"input": "hi", "store": False})
        streamed = (await stream_of(on, {"input": "hi", "store": False}))[-1]["response"]
        found = [(await on.get(f"/v1/responses/{each['id']}"))[0] for each in (plain, streamed)]
        status, _, refused = await on.post(
            "/v1/responses", {"model": "m", "input": "x", "previous_response_id": plain["id"]}
        )
    assert (plain["store"], streamed["store"], found) == (False, False, [404, 404])
    assert (status, refused["error"]["code"]) == (400, "previous_response_not_found")


async def test_owners_see_their_own_alone(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as up, serving(tmp_path, native_config(up.base_url, **OWNERS)) as on:
        mine = await respond(on, {"input": "secret"}, **A)
        _, _, conversation = await on.post("/v1/conversations", {"items": [user("secret")]}, **A)
        path = f"/v1/responses/{mine['id']}"
        there = f"/v1/conversations/{conversation['id']}"
        seen = [
            (await on.get(path, **B))[0],
            (await on.get(f"{path}?stream=true", **B))[0],
            (await on.get(f"{path}/input_items", **B))[0],
            (await on.post(f"{path}/cancel", {}, **B))[0],
            (await delete(on, path, **B))[0],
            (await on.get(there, **B))[0],
            (await on.get(f"{there}/items", **B))[0],
            (await on.post(there, {"metadata": {}}, **B))[0],
            (await on.post(f"{there}/items", {"items": [user("x")]}, **B))[0],
            (await delete(on, there, **B))[0],
            (await on.post("/v1/responses", {"model": "m", "input": "x", "conversation": conversation["id"]}, **B))[0],
        ]
        assert seen == [404] * len(seen)
        for body in (
            {"input": "x", "previous_response_id": mine["id"]},
            {"input": [{"type": "item_reference", "id": mine["output"][0]["id"]}, user("x")]},
        ):
            status, _, refused = await on.post("/v1/responses", {"model": "m", **body}, **B)
            assert (status, "secret" in json.dumps(refused)) == (400, False)
        assert (await on.get(path, **A))[0] == (await on.get(there, **A))[0] == 200


async def test_deleted_response_is_gone_with_all_of_it(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("ok"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        response = (await stream_of(on, {"input": "hi"}))[-1]["response"]
        path = f"/v1/responses/{response['id']}"
        assert await delete(on, path) == (200, {"id": response["id"], "object": "response", "deleted": True})
        assert [(await on.get(path))[0], (await delete(on, path))[0]] == [404, 404]
        assert not await on.gateway.store.responses.events(response["id"], after=-1, limit=10)


# --- Continued -------------------------------------------------------------------------------------------------------


async def test_previous_response_brings_its_whole_history_but_not_its_instructions(tmp_path: Path) -> None:
    calls = [call("c1", "get_weather", "{}")]
    replies = [answer("one"), answer(calls=calls), answer("three")]
    async with ScriptedUpstream(*replies) as up, serving(tmp_path, native_config(up.base_url)) as on:
        first = await respond(on, {"input": "1", "instructions": "old"})
        second = await respond(
            on, {"input": "2", "instructions": "new", "previous_response_id": first["id"], "tools": [WEATHER]}
        )
        status, _, refused = await on.post(
            "/v1/responses", {"model": "m", "input": "3", "previous_response_id": second["id"]}
        )
        output = [{"type": "function_call_output", "call_id": "c1", "output": "sun"}]
        third = await respond(on, {"input": output, "previous_response_id": second["id"]})
        messages = up.requests[2].messages
    assert (status, refused["error"]["param"]) == (400, "input")
    assert "No tool output found for function call c1" in refused["error"]["message"]
    assert [(m["role"], m["content"]) for m in up.requests[1].messages[:2]] == [("system", "new"), ("user", "1")]
    assert [(m["role"], m["content"]) for m in messages] == [
        ("user", "1"),
        ("assistant", "one"),
        ("user", "2"),
        ("assistant", None),
        ("tool", "sun"),
    ]
    assert (third["previous_response_id"], second["instructions"]) == (second["id"], "new")


async def test_items_are_referred_to_by_their_ids(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("one")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        first = await respond(on, {"input": "1"})
        _, _, items = await on.get(f"/v1/responses/{first['id']}/input_items")
        refer = [{"type": "item_reference", "id": items["data"][0]["id"]}, {"id": first["output"][0]["id"]}, user("2")]
        await respond(on, {"input": refer})
        messages = up.requests[1].messages
        unknown = [{"type": "item_reference", "id": f"msg_{'0' * 32}_1_0"}]
        status, _, refused = await on.post("/v1/responses", {"model": "m", "input": unknown})
    assert [(m["role"], m["content"]) for m in messages] == [("user", "1"), ("assistant", "one"), ("user", "2")]
    assert (status, "not found" in refused["error"]["message"]) == (400, True)


async def test_history_with_a_hole_is_refused(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        first = await respond(on, {"input": "1"})
        second = await respond(on, {"input": "2", "previous_response_id": first["id"]})
        await delete(on, f"/v1/responses/{first['id']}")
        status, _, refused = await on.post(
            "/v1/responses", {"model": "m", "input": "3", "previous_response_id": second["id"]}
        )
    assert (status, refused["error"]["code"]) == (400, "previous_response_not_found")
    assert first["id"] in refused["error"]["message"]


@pytest.mark.parametrize("store", [True, False])
async def test_conversation_keeps_what_was_said(tmp_path: Path, store: bool) -> None:
    async with (
        ScriptedUpstream(answer("one"), answer("two")) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        status, _, made = await on.post("/v1/conversations", {"metadata": {"a": "b"}, "items": [user("0")]})
        assert (status, made["object"], made["metadata"]) == (200, "conversation", {"a": "b"})
        first = await respond(on, {"input": "1", "conversation": made["id"], "store": store})
        await respond(on, {"input": "2", "conversation": {"id": made["id"]}, "store": store})
        path = f"/v1/conversations/{made['id']}"
        _, _, items = await on.get(f"{path}/items?order=asc")
        _, _, one = await on.get(f"{path}/items/{items['data'][0]['id']}")
        _, _, renamed = await on.post(path, {"metadata": {"c": "d"}})
        gone = await delete(on, f"{path}/items/{items['data'][0]['id']}")
        assert await delete(on, path) == (200, {"id": made["id"], "object": "conversation.deleted", "deleted": True})
        assert (await on.get(path))[0] == 404
        messages = up.requests[1].messages
    assert first["conversation"] == {"id": made["id"]}
    assert [m["content"] for m in messages] == ["0", "1", "one", "2"]
    assert [item["content"][0]["text"] for item in items["data"]] == ["0", "1", "one", "2", "two"]
    assert one == items["data"][0]
    assert (renamed["metadata"], gone[0]) == ({"c": "d"}, 200)


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "never_heard_of"}],
        [{"role": "tool", "content": "x"}],
        [{"type": "function_call_output", "output": "x"}],
        [user("x")] * 21,
        5,
        [5],
    ],
)
async def test_conversation_takes_nothing_that_no_response_could_read(tmp_path: Path, items: Any) -> None:
    async with ScriptedUpstream() as up, serving(tmp_path, native_config(up.base_url)) as on:
        status, _, refused = await on.post("/v1/conversations", {"items": items})
    assert (status, refused["error"]["type"]) == (400, "invalid_request_error")


# --- Followed again --------------------------------------------------------------------------------------------------


class Cut:
    """A client whose connection breaks off after some bytes."""

    def __init__(self, on: Served) -> None:
        self.on = on
        self.events: list[dict[str, Any]] = []

    async def read(self, response: Any, most: int) -> None:
        raw = b""
        with contextlib.suppress(TimeoutError):  # the model has paused: a connection may break off then, too
            while len(raw) < most:
                async with asyncio.timeout(0.2):
                    if not (data := await response.content.readany()):
                        break
                raw += data
        raw = raw[:most]
        whole, end, _ = raw.rpartition(b"\n\n")
        self.events += events_in(whole + end)
        response.close()

    async def begin(self, body: dict[str, Any], most: int) -> None:
        request = {"model": "m", "stream": True, **body}
        async with self.on.http.post(f"{self.on.url}/v1/responses", json=request) as response:
            assert response.status == 200
            await self.read(response, most)

    async def go_on(self, most: int) -> None:
        after = self.events[-1]["sequence_number"]
        query = {"stream": "true", "starting_after": str(after)}
        path = f"{self.on.url}/v1/responses/{self.events[0]['response']['id']}"
        async with self.on.http.get(path, params=query) as response:
            assert response.status == 200
            await self.read(response, most)

    @property
    def over(self) -> bool:
        return bool(self.events[-1]["type"] == "response.completed")


async def test_client_that_is_cut_off_has_every_event_once_and_in_order(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(1500))
    pieces = words(text)
    gates = [Stall(str(number)) for number in range(3)]
    said: list[Any] = [*pieces[:100], gates[0], *pieces[100:700], gates[1], *pieces[700:], gates[2]]
    dice = random.Random(7)
    async with (
        ScriptedUpstream(stream(*said, f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        client = Cut(on)
        await client.begin({"input": "hi"}, 4000)
        cuts, more = 1, True
        while not client.over:
            for gate in range(3):
                if cuts > 4 * (gate + 1):
                    up.release(str(gate))
            before = len(client.events)
            await client.go_on(dice.randint(500, 4000) if more else 100_000)
            # The last events hold the whole text: a client that reads too little of them gets nowhere.
            more = len(client.events) > before or cuts <= 12
            cuts += 1
            assert cuts < 500
    assert client.over
    assert cuts >= 50
    assert_proper(client.events)


@pytest.mark.parametrize("store", [False, True], ids=["not kept", "kept"])
async def test_stream_whose_client_has_gone_ends_when_nobody_can_come_back(
    tmp_path: Path, store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responding, "COME_BACK_S", 0.5)
    async with (
        ScriptedUpstream(stream(*words("hello"), Stall(), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        client = Cut(on)
        await client.begin({"input": "hi", "store": store}, 2500)
        response_id = client.events[0]["response"]["id"]
        await up.aborted(timeout_s=5)
        async with asyncio.timeout(5):
            while on.gateway.responding.making or on.gateway.turns.running:
                await asyncio.sleep(0.01)
        status, _, kept = await on.get(f"/v1/responses/{response_id}")
        if store:
            assert (status, kept["status"], kept["output"][0]["status"]) == (200, "cancelled", "incomplete")
            assert kept["output"][0]["content"][0]["text"] == "hello"
        else:
            assert status == 404


async def test_stream_goes_on_for_whoever_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responding, "COME_BACK_S", 1.0)
    async with (
        ScriptedUpstream(stream(*words("hello"), Stall(), *words(" you"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        client = Cut(on)
        await client.begin({"input": "hi"}, 2500)
        response_id = client.events[0]["response"]["id"]
        live = (await on.get(f"/v1/responses/{response_id}"))[2]
        following = asyncio.create_task(resumed(on, response_id, client.events[-1]["sequence_number"]))
        async with asyncio.timeout(5):
            while not on.gateway.responding.readers(response_id):
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.5)  # longer than one who is alone is waited for
        up.release()
        rest = await following
    assert live["status"] == "in_progress"
    assert_proper([*client.events, *rest])
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "hello you"


async def test_response_whose_maker_is_gone_has_failed(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("ok")) as up, serving(tmp_path, native_config(up.base_url)) as on:
        whole = await respond(on, {"input": "hi"})
        body = {**whole, "id": f"resp_{'1' * 32}", "status": "in_progress", "output": []}
        await on.gateway.store.responses.add(
            ResponseRow(
                id=body["id"],
                owner="local",
                status="in_progress",
                streamed=True,
                body=msgspec.json.encode(body),
                holder="another|1|2|gone",
                held_until=1.0,
                created_at=1.0,
                updated_at=1.0,
            )
        )
        events = await resumed(on, body["id"])
        _, _, kept = await on.get(f"/v1/responses/{body['id']}")
        continued = await respond(on, {"input": "go on", "previous_response_id": body["id"]})
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert (kept["status"], kept["error"]["code"]) == ("failed", "server_error")
    assert faults("Response", kept) == []
    assert continued["status"] == "completed"


async def test_response_is_deleted_while_it_is_streamed(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(stream(*words("hello"), Stall(), *words(" you"), f("stop"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        asking = asyncio.create_task(stream_of(on, {"input": "hi"}))
        await up.stalled()
        async with asyncio.timeout(5):
            while not (rows := on.gateway.responding.making):
                await asyncio.sleep(0.01)
        [response_id] = rows
        assert (await delete(on, f"/v1/responses/{response_id}"))[0] == 200
        up.release()
        events = await asking
        assert (await on.get(f"/v1/responses/{response_id}"))[0] == 404
    assert events[-1]["type"] == "response.completed"


# --- Asked again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
@pytest.mark.parametrize("store", [False, True], ids=["not kept", "kept"])
async def test_same_request_again_gets_the_same_response(tmp_path: Path, streamed: bool, store: bool) -> None:
    reply = stream(*words("hello you"), f("stop"), DONE) if streamed else answer("hello you")
    async with ScriptedUpstream(reply) as up, serving(tmp_path, native_config(up.base_url)) as on:
        body = {"input": "hi", "store": store}
        if streamed:
            first, again = [await stream_of(on, body, idempotency_key="k") for _ in range(2)]
            one, two = first[-1]["response"], again[-1]["response"]
        else:
            one, two = [await respond(on, body, idempotency_key="k") for _ in range(2)]
        assert len(up.requests) == 1
    assert one["id"] == two["id"]
    assert two["output"][0]["content"][0]["text"] == "hello you"
    assert not store or one == two


async def test_tool_deltas_are_kept_for_whoever_asks_again(tmp_path: Path) -> None:
    said = d({"role": "assistant", "tool_calls": [{"index": 0, **call("c1", "get_weather", '{"a": 1}')}]})
    async with (
        ScriptedUpstream(stream(said, f("tool_calls"), DONE)) as up,
        serving(tmp_path, native_config(up.base_url)) as on,
    ):
        events = await stream_of(on, {"input": "hi", "tools": [WEATHER]})
        assert await resumed(on, events[-1]["response"]["id"]) == events
