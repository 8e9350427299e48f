"""Sessions over real sockets: what is kept, what is left out, and who comes when."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Served, native_config, serving
from tests.upstream import (
    DONE,
    Reply,
    Reset,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    call,
    d,
    error,
    f,
    stream,
    strict_history,
)

PATH = "/v1/chat/completions"
TOOL = """
from gateway.tools import tool

@tool()
async def stock(item: int) -> str:
    \"\"\"Tell how many there are when somebody asks.

    item: which
    \"\"\"
    return f"seven of {item}"

def register(registry):
    registry.add(stock)
"""


def asking(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def in_turns(request: UpstreamRequest) -> Reply:
    """Takes complete pairs and users and assistants by turns; says how many messages there were."""
    if (refused := strict_history(request)) is not None:
        return refused
    roles = [each["role"] for each in request.messages if each["role"] not in ("system", "tool")]
    if any(one == other == "user" for one, other in itertools.pairwise(roles)):
        return error(400, "roles must alternate")
    return answer(f"answer {len(request.messages)}")


def kept(base_url: str, **more: Any) -> dict[str, Any]:
    return native_config(base_url, **{"context": {"sessions": {"store": True}}, **more})


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    async with ScriptedUpstream(then=in_turns) as up, serving(tmp_path, kept(up.base_url)) as served:
        yield served, up


async def test_a_session_goes_on_from_what_was_said(on: tuple[Served, ScriptedUpstream]) -> None:
    served, up = on
    session = {"x_gateway_session": "s/1"}
    system = {"role": "system", "content": "be brief"}
    assert (await served.post(PATH, asking(system, user("one")), **session))[0] == 200
    assert (await served.post(PATH, asking(user("two")), **session))[0] == 200
    assert up.requests[-1].messages == [
        system,
        user("one"),
        {"role": "assistant", "content": "answer 2"},
        user("two"),
    ]
    status, _, shown = await served.get("/v1/sessions/s/1")
    assert (status, shown["object"], len(shown["messages"])) == (200, "session", 5)
    # With an answer in it, a request is the whole conversation.
    whole = [user("other"), {"role": "assistant", "content": "yes"}, user("three")]
    assert (await served.post(PATH, asking(*whole), **session))[0] == 200
    assert up.requests[-1].messages == whole
    assert (await served.post(PATH, asking(user("four")), **session))[0] == 200
    assert up.requests[-1].messages == [*whole, {"role": "assistant", "content": "answer 3"}, user("four")]
    status, _, gone = await served.ask("DELETE", "/v1/sessions/s/1", None)
    assert (status, gone["deleted"]) == (200, True)
    assert (await served.get("/v1/sessions/s/1"))[0] == 404
    assert (await served.ask("DELETE", "/v1/sessions/s/1", None))[0] == 404
    assert (await served.post(PATH, asking(user("five")), **session))[0] == 200
    assert up.requests[-1].messages == [user("five")]


async def test_a_session_is_found_by_the_name_it_was_given_and_one_without_end_is_refused(
    on: tuple[Served, ScriptedUpstream],
) -> None:
    served, _ = on
    assert (await served.post(PATH, asking(user("one")), x_gateway_session="工单 7"))[0] == 200
    status, _, shown = await served.get("/v1/sessions/%E5%B7%A5%E5%8D%95%207")
    assert (status, shown["id"]) == (200, "工单 7")
    status, _, got = await served.post(PATH, asking(user("one")), x_gateway_session="x" * 513)
    assert (status, got["error"]["param"]) == (400, "x-gateway-session")


async def test_nobody_reads_or_continues_anothers_session(tmp_path: Path) -> None:
    keys = {"a": {"key": "sk-a"}, "b": {"key": "sk-b"}}
    config: dict[str, Any] = {"keys": {"auth": "required", "static": keys}}
    async with ScriptedUpstream(then=in_turns) as up, serving(tmp_path, kept(up.base_url, **config)) as on:
        for key in ("sk-a", "sk-b"):
            headers = {"x_gateway_session": "same", "authorization": f"Bearer {key}"}
            assert (await on.post(PATH, asking(user(f"of {key}")), **headers))[0] == 200
            assert up.requests[-1].messages == [user(f"of {key}")]
        _, _, shown = await on.get("/v1/sessions/same", authorization="Bearer sk-a")
        assert "sk-b" not in json.dumps(shown)
        await on.post(PATH, asking(user("x")), x_gateway_session="mine", authorization="Bearer sk-a")
        for method in ("GET", "DELETE"):
            assert (await on.ask(method, "/v1/sessions/mine", None, authorization="Bearer sk-b"))[0] == 404


async def test_what_is_remembered_of_a_session_is_never_anothers(tmp_path: Path) -> None:
    keys = {"a": {"key": "sk-a"}, "b": {"key": "sk-b"}}
    async with ScriptedUpstream(then=in_turns) as up:
        (tmp_path / "1").mkdir()
        (tmp_path / "2").mkdir()
        storage = {"database": f"sqlite:///{tmp_path / 'shared.db'}"}
        config = kept(up.base_url, storage=storage, keys={"auth": "required", "static": keys})
        a = {"x_gateway_session": "s", "authorization": "Bearer sk-a"}
        b = {"x_gateway_session": "t", "authorization": "Bearer sk-b"}
        async with serving(tmp_path / "1", config) as one, serving(tmp_path / "2", config) as two:
            assert (await one.post(PATH, asking(user("of a")), **a))[0] == 200
            # Another process forgets it, and gives its number to the next.
            assert (await two.ask("DELETE", "/v1/sessions/s", None, authorization="Bearer sk-a"))[0] == 200
            assert (await two.post(PATH, asking(user("of b")), **b))[0] == 200
            assert (await one.post(PATH, asking(user("more")), **b))[0] == 200
            assert up.requests[-1].messages[0] == user("of b")


async def test_tool_rounds_are_part_of_a_session_and_a_clients_results_may_come_alone(tmp_path: Path) -> None:
    theirs = {"type": "function", "function": {"name": "ask_user", "parameters": {"type": "object"}}}
    replies = [
        answer(None, calls=[call("c1", "stock", '{"item": 3}')]),
        answer("seven"),
        answer(None, calls=[call("c2", "stock", '{"item": 4}'), call("c3", "ask_user", "{}")]),
    ]
    route = {"model": "m", "keywords": ["stock"], "tools": ["stock"]}
    async with (
        ScriptedUpstream(*replies, then=in_turns) as up,
        serving(tmp_path, kept(up.base_url), {"r": route}, {"tools": TOOL}) as on,
    ):
        session = {"x_gateway_session": "s"}
        body = {"model": "auto", "messages": [user("stock of 3")], "tools": [theirs]}
        assert (await on.post(PATH, body, **session))[0] == 200
        status, _, got = await on.post(PATH, {**body, "messages": [user("stock of 4")]}, **session)
        assert status == 200
        (asked,) = got["choices"][0]["message"]["tool_calls"]
        result = {"role": "tool", "tool_call_id": asked["id"], "content": "the user says yes"}
        status, _, got = await on.post(PATH, {**body, "messages": [result]}, **session)
        assert (status, got["choices"][0]["message"]["content"]) == (200, "answer 9")
        sent = up.requests[-1].messages
        roles = [each["role"] for each in sent if each["role"] != "system"]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "tool"]
        assert "seven of 4" in json.dumps(sent)
        # Results of calls that nobody made are refused, and change nothing.
        odd = {"role": "tool", "tool_call_id": "nobodys", "content": "x"}
        status, _, got = await on.post(PATH, {**body, "messages": [odd]}, **session)
        assert (status, got["error"]["type"]) == (400, "invalid_request_error")
        assert len((await on.get("/v1/sessions/s"))[2]["messages"]) == 9


@pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "SSE"])
async def test_a_call_that_was_cut_off_poisons_no_later_turn_B058(tmp_path: Path, streamed: bool) -> None:
    cut = '{"path":"/a'
    calls = [{"index": 0, "id": "c", "type": "function", "function": {"name": "read", "arguments": cut}}]
    if streamed:
        first: Reply = stream(d({"role": "assistant", "tool_calls": calls}), f("length"), DONE)
    else:
        message = {"role": "assistant", "content": None, "tool_calls": [call("c", "read", cut)]}
        first = answer(choices=[{"index": 0, "message": message, "finish_reason": "length"}])

    def strict(request: UpstreamRequest) -> Reply:
        for message in request.messages:
            for each in message.get("tool_calls") or ():
                json.loads(each["function"]["arguments"])
        return in_turns(request)

    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    async with ScriptedUpstream(first, then=strict) as up, serving(tmp_path, kept(up.base_url)) as on:
        body = asking(user("read /a"), tools=[tool])
        if streamed:
            raw = await on.raw_stream(body, x_gateway_session="s")
            assert b"length" in raw
        else:
            _, _, got = await on.post(PATH, body, x_gateway_session="s")
            assert got["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == cut
        for _ in range(3):
            status, _, got = await on.post(PATH, asking(user("continue"), tools=[tool]), x_gateway_session="s")
            assert status == 200, got
        assert len(up.requests) == 4


async def test_a_turn_that_failed_is_left_out_B060(tmp_path: Path) -> None:
    broken = stream(d({"role": "assistant", "content": "half"}), Reset())
    replies: list[Reply] = [answer(None, calls=[call("c1", "stock", '{"item": 3}')]), broken]
    route = {"model": "m", "keywords": ["stock"], "tools": ["stock"]}
    async with (
        ScriptedUpstream(answer("first"), *replies, then=in_turns) as up,
        serving(tmp_path, kept(up.base_url), {"r": route}, {"tools": TOOL}) as on,
    ):
        session = {"x_gateway_session": "s"}
        assert (await on.post(PATH, asking(user("hello")), **session))[0] == 200
        async with on.http.post(
            on.url + PATH,
            json={"model": "auto", "stream": True, "messages": [user("stock of 3")]},
            headers={"x-gateway-session": "s"},
        ) as response:
            trace_id = response.headers["x-gateway-trace"]
            assert b"error" in await response.read()
        status, _, got = await on.post(PATH, asking(user("and now?")), **session)
        assert status == 200, got
        assert [each["content"] for each in up.requests[-1].messages] == ["hello", "first", "and now?"]
        # What ran is told by the trace.
        trace = await on.trace(trace_id)
        assert "seven of 3" in json.dumps(trace)
        assert "session.left_out" in [each["type"] for each in trace["events"]]


async def test_a_turn_whose_client_left_is_left_out_B060(tmp_path: Path) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slow(request: UpstreamRequest) -> Reply:
        if request.number == 1:
            arrived.set()
            await go.wait()
        return in_turns(request)

    async with ScriptedUpstream(then=slow) as up, serving(tmp_path, kept(up.base_url)) as on:
        leaving = asyncio.create_task(on.post(PATH, asking(user("one")), x_gateway_session="s"))
        await asyncio.wait_for(arrived.wait(), 20)
        leaving.cancel()
        status, _, got = await on.post(PATH, asking(user("two")), x_gateway_session="s")
        go.set()
        assert status == 200, got
        assert up.requests[-1].messages == [user("two")]


async def test_turns_of_one_session_come_one_after_the_other_B060(tmp_path: Path) -> None:
    async def slow(request: UpstreamRequest) -> Reply:
        await asyncio.sleep(0.1)
        return in_turns(request)

    async with ScriptedUpstream(then=slow) as up, serving(tmp_path, kept(up.base_url)) as on:
        asked = [on.post(PATH, asking(user(f"q{at}")), x_gateway_session="s") for at in range(4)]
        done = await asyncio.gather(*asked)
        assert [status for status, _, _ in done] == [200] * 4
        assert sorted(len(request.messages) for request in up.requests) == [1, 3, 5, 7]


async def test_a_session_that_stays_busy_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.turn.session._WAIT_S", 0.1)
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slow(request: UpstreamRequest) -> Reply:
        arrived.set()
        await go.wait()
        return in_turns(request)

    async with ScriptedUpstream(then=slow) as up, serving(tmp_path, kept(up.base_url)) as on:
        first = asyncio.create_task(on.post(PATH, asking(user("one")), x_gateway_session="s"))
        await asyncio.wait_for(arrived.wait(), 20)
        status, headers, got = await on.post(PATH, asking(user("two")), x_gateway_session="s")
        assert (status, got["error"]["code"]) == (409, "session_busy")
        assert headers.get("x-should-retry") != "false"
        go.set()
        assert (await first)[0] == 200


async def test_a_session_that_is_forgotten_during_a_turn_stays_forgotten(tmp_path: Path) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slow(request: UpstreamRequest) -> Reply:
        if request.number == 2:
            arrived.set()
            await go.wait()
        return in_turns(request)

    async with ScriptedUpstream(then=slow) as up, serving(tmp_path, kept(up.base_url)) as on:
        assert (await on.post(PATH, asking(user("one")), x_gateway_session="s"))[0] == 200
        second = asyncio.create_task(on.post(PATH, asking(user("two")), x_gateway_session="s"))
        await asyncio.wait_for(arrived.wait(), 20)
        assert (await on.ask("DELETE", "/v1/sessions/s", None))[0] == 200
        go.set()
        assert (await second)[0] == 200
        assert (await on.get("/v1/sessions/s"))[0] == 404


async def test_the_oldest_turns_go_where_a_session_is_full_and_all_of_it_in_time(tmp_path: Path) -> None:
    context = {"sessions": {"store": True, "max_mb": 0.01, "ttl_s": 3600}, "strategy": "none"}
    async with ScriptedUpstream(then=in_turns) as up, serving(tmp_path, kept(up.base_url, context=context)) as on:
        for turn in range(8):
            assert (await on.post(PATH, asking(user(f"{turn} " + "x" * 2500)), x_gateway_session="s"))[0] == 200
        _, _, shown = await on.get("/v1/sessions/s")
        assert shown["bytes"] <= 0.01 * 1024 * 1024
        assert shown["messages"][0]["role"] == "user"
        assert shown["messages"][-2]["content"].startswith("7 ")
        assert len(up.requests[-1].messages) < 15
        await on.gateway.store.sessions.prune(before=shown["expires_at"] + 10.0)
        assert (await on.get("/v1/sessions/s"))[0] == 404


async def test_two_replicas_go_on_with_each_others_sessions(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = await request.getfixturevalue("postgres_server").migrated()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with ScriptedUpstream(then=in_turns) as up:
        config = kept(up.base_url, storage={"database": url})
        async with serving(tmp_path / "a", config) as one, serving(tmp_path / "b", config) as two:
            for turn in range(6):
                on = one if turn % 2 else two
                assert (await on.post(PATH, asking(user(f"q{turn}")), x_gateway_session="s"))[0] == 200
                assert len(up.requests[-1].messages) == 2 * turn + 1
            both = [
                on.post(PATH, asking(user(f"p{at}")), x_gateway_session="s") for at, on in enumerate((one, two, one))
            ]
            assert [status for status, _, _ in await asyncio.gather(*both)] == [200] * 3
            assert sorted(len(each.messages) for each in up.requests[-3:]) == [13, 15, 17]


@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
async def test_a_call_that_was_cut_off_poisons_no_later_response_B058(tmp_path: Path, by: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call("c", "read", '{"path":"/a')]}
    first = answer(choices=[{"index": 0, "message": message, "finish_reason": "length"}])
    tool = {"type": "function", "name": "read", "parameters": {"type": "object"}}
    async with ScriptedUpstream(first, then=strict_history_or_fine) as up, serving(tmp_path, kept(up.base_url)) as on:
        more: dict[str, Any] = {}
        if by == "conversation":
            more = {"conversation": (await on.post("/v1/conversations", {}))[2]["id"]}
        body = {"model": "m", "tools": [tool]}
        _, _, got = await on.post("/v1/responses", {**body, "input": "read /a", **more})
        assert got["output"][0]["arguments"] == '{"path":"/a'
        for _ in range(3):
            if by != "conversation":
                more = {by: got["id"]}
            status, _, got = await on.post("/v1/responses", {**body, "input": "continue", **more})
            assert status == 200, got
        assert "/a" in json.dumps(up.requests[-1].messages)


def strict_history_or_fine(request: UpstreamRequest) -> Reply:
    for message in request.messages:
        for each in message.get("tool_calls") or ():
            json.loads(each["function"]["arguments"])
    return strict_history(request) or answer("fine")


async def test_conversations_of_responses_are_cut_as_sessions_are_and_kept_once(tmp_path: Path) -> None:
    context = {"sessions": {"store": True}, "max_messages": 6}
    async with (
        ScriptedUpstream(then=answer("fine")) as up,
        serving(tmp_path, kept(up.base_url, context=context)) as on,
    ):
        name = (await on.post("/v1/conversations", {}))[2]["id"]
        last = None
        for turn in range(6):
            body = {"model": "m", "input": f"turn {turn}"}
            assert (await on.post("/v1/responses", {**body, "conversation": name}))[0] == 200
            assert len(up.requests[-1].messages) <= 6
            chained = {**body, "previous_response_id": last} if last else body
            last = (await on.post("/v1/responses", chained))[2]["id"]
            assert len(up.requests[-1].messages) <= 6
            assert "turn 0" in json.dumps(up.requests[-1].messages)
        # Whoever deletes the conversation leaves no other copy of it.
        assert (await on.get(f"/v1/sessions/{name}"))[0] == 404
