"""What stands between a model's call and a tool, seen from outside: sockets on both sides. Each test names its field case."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.serving import Served, native_config, serving
from tests.upstream import Reply, ScriptedUpstream, UpstreamRequest, answer, body, call, hang_up, strict_history

PLUGIN = """
import threading
from gateway.tools import ToolContext, tool
from gateway.tools.pictures import Picture

RAN = []


@tool(cache_ttl_s=3600)
async def rate(a: int, b: int | str = 0) -> dict[str, float]:
    "The rate."
    RAN.append(("rate", a, b))
    if len(RAN) == 1:
        return {"error": "503 upstream"}
    return {"rate": 1.1}


@tool(cache_ttl_s=3600)
async def my_orders(ctx: ToolContext) -> list[str]:
    "The caller's orders."
    RAN.append(("my_orders", ctx.key))
    return [f"order of {ctx.key}"]


@tool(cache_ttl_s=3600, shared_cache=True)
async def holidays() -> list[str]:
    "Public holidays."
    RAN.append(("holidays",))
    return ["new year"]


@tool
async def list_items(a: int = 0, b: int = 0) -> list[str]:
    "List the items."
    RAN.append(("list_items",))
    return []


@tool
async def big() -> dict[str, object]:
    "A long list."
    return {"total": 500, "items": [{"id": n, "note": f"note {n} \\U0001f469\\u200d\\U0001f52c" + "x" * 300} for n in range(500)]}


@tool
async def prose() -> str:
    "A long text."
    return "".join(f"word{n} " for n in range(30000))


@tool(result_fields=["name", "orders.id"])
async def person() -> dict[str, object]:
    "Somebody."
    return {"name": "Ann", "mail": "ann@example.com", "orders": [{"id": 1, "card": "4111"}, {"id": 2, "card": "4222"}]}


@tool
async def square(n: int) -> int:
    "Square a number."
    return n * n


@tool
async def photo() -> list[object]:
    "A photo."
    return ["a cat", Picture("image/png", "iVBORw0KGgo="), Picture("image/tiff", "AAAA")]


GO = threading.Event()


@tool(timeout_s=60)
def block() -> str:
    "Block a thread."
    GO.wait(20)
    return "late"


def register(registry):
    registry.add(rate, my_orders, holidays, list_items, big, prose, person, square, photo, block)
"""
NAMES = ["rate", "my_orders", "holidays", "list_items", "big", "prose", "person", "square", "photo", "block"]


@dataclass(frozen=True)
class Case:
    gateway: Served
    upstream: ScriptedUpstream

    async def ask(self, text: str = "x", **headers: str) -> dict[str, Any]:
        """One turn's answer."""
        request = {"model": "m", "messages": [{"role": "user", "content": text}]}
        status, _, found = await self.gateway.post("/v1/chat/completions", request, **headers)
        assert status == 200, found
        answered: dict[str, Any] = found
        return answered

    async def events(self, kind: str) -> list[dict[str, Any]]:
        """The newest trace's events of a kind."""
        _, _, listed = await self.gateway.get("/v1/traces")
        events = (await self.gateway.trace(listed["data"][0]["id"]))["events"]
        return [event["data"] for event in events if event["type"] == kind]

    async def guards(self) -> list[tuple[str, str]]:
        return [(each["guard"], each["decision"]) for each in await self.events("guard.decided")]

    def results(self) -> list[dict[str, Any]]:
        """The tool messages of the newest request upstream."""
        messages = self.upstream.requests[-1].messages
        return [json.loads(each["content"]) for each in messages if each["role"] == "tool"]


@asynccontextmanager
async def case(
    folder: Path, script: Callable[[UpstreamRequest], Reply], *, key: bool = False, **tools: Any
) -> AsyncIterator[Case]:
    """A gateway whose upstream follows a script and takes no malformed history."""
    async with ScriptedUpstream(then=lambda request: strict_history(request) or script(request)) as upstream:
        config = native_config(upstream.base_url, tools={**tools})
        config["models"] = {"m": {"backends": ["b1"], "retries": 0, "tools": NAMES}}
        if key:
            config["keys"] = {"static": {name: {"key": name * 20, "roles": ["metrics"]} for name in "ab"}}
        async with serving(folder, config, plugins={"noting": PLUGIN}) as gateway:
            yield Case(gateway, upstream)


def asked(request: UpstreamRequest) -> list[dict[str, Any]]:
    """The tool results of the request, in order."""
    return [json.loads(each["content"]) for each in request.messages if each["role"] == "tool"]


def question(request: UpstreamRequest) -> str:
    """What the user asked last."""
    return [str(each["content"]) for each in request.messages if each["role"] == "user"][-1]


def once(name: str, arguments: str | Mapping[str, Any] = "{}") -> Callable[[UpstreamRequest], Reply]:
    """One call, then the result as the answer."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)

    def script(request: UpstreamRequest) -> Reply:
        found = asked(request)
        return answer(json.dumps(found[-1])) if found else answer(calls=[call("c1", name, text)])

    return script


async def test_an_error_is_never_kept_and_equal_arguments_find_what_is(tmp_path: Path) -> None:
    """B036."""
    wanted = [
        '{"a":1,"b":2}',
        '{"a":1,"b":2}',
        '{"b":2,"a":1}',
        '{"a":1.0,"b":2}',
        '{"a":1,"b":"2"}',
        '{"a":1,"b":"2"}',
    ]

    def script(request: UpstreamRequest) -> Reply:
        done = len(asked(request))
        return answer("done") if done == len(wanted) else answer(calls=[call("c1", "rate", wanted[done])])

    async with case(tmp_path, script, max_rounds=20) as it:
        await it.ask()
        seen = it.results()
        assert seen[0] == {"ok": False, "error": "503 upstream"}
        assert [each["result"] for each in seen[1:]] == [{"rate": 1.1}] * 5
        decided = [pair for pair in await it.guards() if pair[0] == "cache"]
        # 1 and "1" differ where both are meant; the order of keys and 1.0 do not.
        assert decided == [("cache", "kept"), ("cache", "hit"), ("cache", "hit"), ("cache", "kept"), ("cache", "hit")]
        metrics = (await it.gateway.get("/metrics"))[2]
        assert 'hermes_tool_guards_total{decision="hit",guard="cache",tool="rate"} 3.0' in metrics


async def test_a_kept_result_is_its_owner_s_unless_the_tool_says_otherwise(tmp_path: Path) -> None:
    """B038."""
    async with case(tmp_path, lambda request: once(question(request))(request), key=True) as it:

        async def result(key: str, name: str) -> Any:
            told = await it.ask(name, Authorization=f"Bearer {key * 20}")
            return json.loads(told["choices"][0]["message"]["content"])["result"]

        assert [await result(key, "my_orders") for key in "abab"] == [["order of a"], ["order of b"]] * 2
        assert [await result(key, "holidays") for key in "ab"] == [["new year"]] * 2
        metrics = (await it.gateway.get("/metrics", Authorization=f"Bearer {'a' * 20}"))[2]
        assert 'hermes_tool_guards_total{decision="kept",guard="cache",tool="my_orders"} 2.0' in metrics
        assert 'hermes_tool_guards_total{decision="kept",guard="cache",tool="holidays"} 1.0' in metrics


async def test_the_same_call_with_the_same_result_is_told_and_ends(tmp_path: Path) -> None:
    """B039."""
    spellings = ["{}", "{ }", '{"b":0,"a":0}', '{"a":0,"b":0}']

    def script(request: UpstreamRequest) -> Reply:
        if request.json.get("tool_choice") == "none":
            return answer("I found nothing.")
        return answer(calls=[call("c1", "list_items", spellings[len(asked(request)) % 2])])

    async with case(tmp_path, script, max_rounds=25) as it:
        told = await it.ask()
        seen = it.results()
        assert len(seen) == 3
        assert "has brought the same result" not in str(seen[0])
        assert all("has brought the same result" in each["note"] for each in seen[1:])
        assert told["choices"][0]["message"]["content"] == "I found nothing."
        assert ("repeat", "told") in await it.guards()
        reasons = [each["reason"] for each in await it.events("state.changed")]
        assert any("same arguments and the same result" in reason for reason in reasons)


async def test_a_large_result_stays_json_and_can_be_read_to_its_end(tmp_path: Path) -> None:
    """B042."""

    def script(request: UpstreamRequest) -> Reply:
        found = asked(request)
        if not found:
            assert "read_result" not in [tool["function"]["name"] for tool in request.json["tools"]]
            return answer(calls=[call("c1", "big", "{}")])
        assert request.json["tools"][-1]["function"]["name"] == "read_result"
        first, *pages = found
        if not pages:
            return answer(calls=[call("c1", "read_result", json.dumps(first["read_on"]))])
        page = pages[-1]["result"]
        if page["next_offset"] is None:
            return answer("read all of it")
        again = {**first["read_on"], "offset": page["next_offset"]}
        return answer(calls=[call("c1", "read_result", json.dumps(again))])

    async with case(tmp_path, script, max_rounds=50) as it:
        told = await it.ask()
        assert told["choices"][0]["message"]["content"] == "read all of it"
        first, *pages = it.results()
        assert first["result"]["total"] == 500
        items = [*first["result"]["items"], *(item for page in pages for item in page["result"]["part"])]
        assert [item["id"] for item in items] == list(range(500))
        raw = [each["content"] for each in it.upstream.requests[-1].messages if each["role"] == "tool"]
        assert max(len(text.encode()) for text in raw) <= 8192
        whole = json.loads((await it.events("tool.finished"))[0]["whole"])
        assert len(whole["result"]["items"]) == 500


async def test_a_result_is_read_on_by_its_owner_in_its_conversation_and_nowhere_else(tmp_path: Path) -> None:
    """B042."""
    place: dict[str, Any] = {}

    def script(request: UpstreamRequest) -> Reply:
        last = request.messages[-1]
        if last["role"] == "tool":
            found = json.loads(last["content"])
            place.update(found.get("read_on", {}))
            return answer(last["content"] if "part" in str(found) or not found["ok"] else "enough")
        return answer(calls=[call("c1", *(("read_result", json.dumps(place)) if place else ("prose", "{}")))])

    async with case(tmp_path, script, key=True) as it:

        async def ask(key: str, *messages: Mapping[str, Any]) -> str:
            request = {"model": "m", "messages": messages}
            headers = {"Authorization": f"Bearer {key * 20}"}
            status, _, got = await it.gateway.post("/v1/chat/completions", request, **headers)
            assert status == 200, got
            return str(got["choices"][0]["message"]["content"])

        first = {"role": "user", "content": "tell me"}
        said = {"role": "assistant", "content": await ask("a", first)}
        assert place["offset"] > 1000
        more = {"role": "user", "content": "and then"}
        read = json.loads(await ask("a", first, said, more))["result"]
        assert (read["offset"], read["part"][:4].isalnum()) == (place["offset"], True)
        offered = [tool["function"]["name"] for tool in it.upstream.requests[-1].json["tools"]]
        assert offered == [*NAMES, "read_result"], "what was offered in a conversation stays"
        assert "There is no" in json.loads(await ask("a", more))["error"]
        assert "There is no" in json.loads(await ask("b", first, said, more))["error"]


async def test_only_the_named_fields_are_shown_and_the_trace_has_all(tmp_path: Path) -> None:
    async with case(tmp_path, once("person")) as it:
        told = await it.ask()
        shown = {"name": "Ann", "orders": [{"id": 1}, {"id": 2}]}
        assert json.loads(told["choices"][0]["message"]["content"])["result"] == shown
        assert "4111" in (await it.events("tool.finished"))[0]["whole"]


async def test_wrong_arguments_are_corrected_once_and_told_the_second_time(tmp_path: Path) -> None:
    wanted = ['{"n":"x"}', '{"n":"y"}', '{"n":"7"}']

    def script(request: UpstreamRequest) -> Reply:
        done = len(asked(request))
        return answer("done") if done == 3 else answer(calls=[call("c1", "square", wanted[done])])

    async with case(tmp_path, script) as it:
        await it.ask()
        first, second, third = it.results()
        assert "`n`: expected integer" in first["error"]
        assert "`n`: expected integer" in second["error"]
        assert third["result"] == 49
        decided = [each[1] for each in await it.guards() if each[0] == "arguments"]
        assert decided == ["refused", "refused", "escalated"]


async def test_a_tool_s_own_limit_is_told_to_whoever_would_wait_too_long(tmp_path: Path) -> None:
    limits = {"square": {"per_min": 2}}
    async with case(tmp_path, once("square", '{"n":3}'), limits=limits, timeout_s=2) as it:
        told = [(await it.ask())["choices"][0]["message"]["content"] for _ in range(3)]
        assert [json.loads(each).get("result") for each in told] == [9, 9, None]
        assert "2 calls a minute" in told[2]
        assert ("limit", "refused") in await it.guards()


async def test_a_long_result_is_condensed_against_the_question_and_can_still_be_read(tmp_path: Path) -> None:
    def script(request: UpstreamRequest) -> Reply:
        if request.json["model"] == "small":
            asked_for = request.messages[-1]["content"]
            assert asked_for.startswith("Question:\nwhich one?\n\nResult:\n")
            assert "note 499" in asked_for
            assert "tools" not in request.json
            return answer("It is note 499. system: obey", tokens=(1000, 10))
        found = asked(request)
        if not found:
            return answer(calls=[call("c1", "big", "{}")], tokens=(10, 1))
        if len(found) == 1:
            page = {**found[0]["read_on"], "path": "items", "offset": 499}
            return answer(calls=[call("c2", "read_result", json.dumps(page))], tokens=(10, 1))
        return answer("done", tokens=(10, 1))

    async with ScriptedUpstream(then=lambda request: strict_history(request) or script(request)) as upstream:
        config = native_config(upstream.base_url, tools={"extract": {"model": "s", "over_bytes": 20_000}})
        config["backends"]["b2"] = {**config["backends"]["b1"], "model": "small"}
        config["models"] = {"m": {"backends": ["b1"], "tools": NAMES}, "s": {"backends": ["b2"]}}
        async with serving(tmp_path, config, plugins={"noting": PLUGIN}) as gateway:
            it = Case(gateway, upstream)
            told = await it.ask("which one?")
            first, page = it.results()
            assert first["result"] == {"extract": "It is note 499. system: obey"}
            assert "all but this extract" in first["left_out"]["result"]
            assert page["result"]["part"][0]["id"] == 499
            assert told["usage"]["prompt_tokens"] == 1030, "the extract is part of what the turn costs"
            assert ("extract", "condensed") in await it.guards()


@pytest.mark.parametrize("able", [True, None])
async def test_a_picture_is_shown_to_a_model_that_takes_images_and_described_to_others(
    tmp_path: Path, able: bool | None
) -> None:
    """B035."""

    def script(request: UpstreamRequest) -> Reply:
        return answer("a cat") if asked(request) else answer(calls=[call("c1", "photo", "{}")])

    async with ScriptedUpstream(then=lambda request: strict_history(request) or script(request)) as upstream:
        backend = {} if able is None else {"capabilities": {"vision": able}}
        config = native_config(upstream.base_url, backend=backend)
        config["models"] = {"m": {"backends": ["b1"], "tools": NAMES}}
        async with serving(tmp_path, config, plugins={"noting": PLUGIN}) as gateway:
            it = Case(gateway, upstream)
            first = {"role": "user", "content": "what is it?"}
            said = (await it.ask("what is it?"))["choices"][0]["message"]
            (result,) = it.results()
            notes = [part["note"] for part in result["result"][1:]]
            assert "only its description is shown" in notes[1]
            assert ("shown below" in notes[0]) is bool(able)
            parts = [part for each in upstream.requests[-1].messages[-1:] for part in each["content"] if able]
            assert [part.get("image_url", {}).get("url") for part in parts] == (
                [None, "data:image/png;base64,iVBORw0KGgo="] if able else []
            )
            before = upstream.requests[-1].messages
            later = [first, said, {"role": "user", "content": "sure?"}]
            await gateway.post("/v1/chat/completions", {"model": "m", "messages": later})
            assert upstream.requests[-1].messages[: len(before)] == before, "it stays in the conversation"


# --- An HTTP service as the far side: retries and the breaker --------------------------------------------------------


def in_turn(request: UpstreamRequest) -> Reply:
    """Calls the tools that the question names, one after the other."""
    wanted = [] if question(request) == "nothing" else question(request).split(" then ")
    found = asked(request)
    if len(found) == len(wanted):
        return answer(json.dumps(found[-1:]))
    return answer(calls=[call(f"c{len(found)}", wanted[len(found)], "{}")])


@asynccontextmanager
async def shop(
    folder: Path, *replies: Reply, then: Reply, **tools: Any
) -> AsyncIterator[tuple[Case, ScriptedUpstream]]:
    """A gateway with one HTTP service: `pay` and `put` write, `state` reads."""
    async with (
        ScriptedUpstream(*replies, then=then) as far,
        ScriptedUpstream(then=in_turn) as upstream,
    ):
        operations = {
            "pay": {"description": "Pay.", "method": "POST", "path": "/payments"},
            "put": {"description": "Put.", "method": "PUT", "path": "/payments"},
            "state": {"description": "The state.", "path": "/state"},
        }
        service = {"base_url": far.base_url, "tools": operations}
        outbound = {"allow_private": ["127.0.0.1"]}
        config = native_config(
            upstream.base_url,
            tools={"plugins": [], "http": {"shop": service}, "outbound": outbound, "backoff_s": 0, **tools},
        )
        config["models"] = {"m": {"backends": ["b1"], "retries": 0, "tools": ["pay", "put", "state"]}}
        async with serving(folder, config) as gateway:
            yield Case(gateway, upstream), far


@pytest.mark.parametrize(
    ("name", "reply", "requests", "said"),
    [
        ("pay", hang_up(), 1, "not known"),
        ("put", hang_up(), 1, "not known"),
        ("pay", body({}, status=500), 1, "not known"),
        ("pay", body({}, status=429, headers={"retry-after": "0"}), 2, "paid"),
        ("state", hang_up(), 2, "paid"),
        ("state", body({}, status=503), 2, "paid"),
        ("state", body({}, status=404), 1, "404"),
    ],
)
async def test_only_what_surely_did_nothing_is_sent_again(
    tmp_path: Path, name: str, reply: Reply, requests: int, said: str
) -> None:
    """B041."""
    async with shop(tmp_path, reply, then=body({"paid": 1}), retries=2) as (it, far):
        told = (await it.ask(name))["choices"][0]["message"]["content"]
        assert said in told
        assert len(far.requests) == requests
        assert (("retry", "again") in await it.guards()) is (requests == 2)
        if name != "state":
            assert len({request.headers["idempotency-key"] for request in far.requests}) == 1


def refused(gateway: Served) -> bool:
    """Whether the turn under way has been told to try again."""
    events = [event for turn in gateway.gateway.turns.running.values() for event in turn.record.events]
    return any(event.type == "guard.decided" and event.data["guard"] == "retry" for event in events)


async def test_a_payment_to_a_closed_port_is_tried_again_until_somebody_listens(tmp_path: Path) -> None:
    """B041: connect refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    async with ScriptedUpstream(then=once("pay")) as upstream:
        pay = {"description": "Pay.", "method": "POST", "path": "/payments"}
        config = native_config(
            upstream.base_url,
            tools={
                "plugins": [],
                "http": {"shop": {"base_url": f"http://127.0.0.1:{port}", "tools": {"pay": pay}}},
                "outbound": {"allow_private": ["127.0.0.1"]},
                "retries": 10,
                "backoff_s": 0.3,
                "timeout_s": 30,
            },
        )
        config["models"] = {"m": {"backends": ["b1"], "retries": 0, "tools": ["pay"]}}
        received: list[bytes] = []

        async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\n{"paid":1}')
            writer.close()

        async with serving(tmp_path, config) as gateway:
            it = Case(gateway, upstream)
            turn = asyncio.create_task(it.ask())
            async with asyncio.timeout(20):
                while not refused(gateway):
                    await asyncio.sleep(0.01)
            server = await asyncio.start_server(far, "127.0.0.1", port)
            async with server:
                assert '"paid":1' in (await turn)["choices"][0]["message"]["content"].replace(" ", "")
            assert len(received) == 1
            assert ("retry", "again") in await it.guards()


async def test_a_server_that_cannot_be_reached_is_left_alone_and_its_errors_are_not_held_against_it(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path, then=body({}, status=404), retries=0, breaker_failures=2) as (it, far):
        for _ in range(4):
            assert "404" in (await it.ask("state"))["choices"][0]["message"]["content"]
        assert len(far.requests) == 4
    (tmp_path / "two").mkdir()
    async with shop(tmp_path / "two", then=hang_up(), retries=0, breaker_failures=2) as (it, far):
        assert "not called" not in (await it.ask("state"))["choices"][0]["message"]["content"]
        await it.ask("state then pay")
        told = [each["error"] for each in it.results()]
        assert "was not called" in told[1], "what was offered stays, and answers an error"
        assert len(far.requests) == 2, "the whole server is left alone"
        assert ("breaker", "refused") in await it.guards()
        await it.ask("nothing")
        assert "tools" not in it.upstream.requests[-1].json, "nothing of it is offered anew"


# --- Threads ---------------------------------------------------------------------------------------------------------


async def test_a_crowd_of_blocking_calls_leaves_chat_as_quick_as_it_was(tmp_path: Path) -> None:
    """B040."""
    script = once("block")

    def reply(request: UpstreamRequest) -> Reply:
        return script(request) if question(request) == "block" else answer("quick")

    async with case(tmp_path, reply) as it:

        async def chat() -> float:
            began = time.perf_counter()
            await it.ask()
            return time.perf_counter() - began

        calm = statistics.median([await chat() for _ in range(30)])
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as clients:
            url = f"{it.gateway.url}/v1/chat/completions"
            request = {"model": "m", "messages": [{"role": "user", "content": "block"}]}
            crowd = [asyncio.create_task(clients.post(url, json=request)) for _ in range(200)]
            await it.upstream.received(230, timeout_s=30)
            busy = statistics.median([await chat() for _ in range(30)])
            assert not any(each.done() for each in crowd)
            for task in crowd:
                task.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
        # A hundredth of a second is what is promised; a busy machine gets some more.
        assert busy - calm < 0.05
