"""Failures that comparable gateways had in the field, as experiments over sockets. Each names its case."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.api.chat_completions import ChatCompletions
from gateway.api.sse import SILENCE_S
from tests.serving import Served, native_config, serving, write_route
from tests.upstream import (
    DONE,
    Pause,
    Reply,
    Script,
    ScriptedUpstream,
    UpstreamRequest,
    answer,
    body,
    call,
    chunk,
    d,
    error,
    f,
    stream,
    strict_history,
    tc,
    u,
    words,
)

# Registry tools that note what they were called with.
TOOLS = """
import asyncio, time
from gateway.tools import ToolContext, tool

RAN = []


@tool
async def add(x: int, y: int) -> int:
    "Add two numbers."
    RAN.append(("add", x, y))
    return x + y


@tool
async def pay(to: str, cents: int) -> str:
    "Pay somebody."
    RAN.append(("pay", to, cents))
    return "paid"


@tool
async def search(q: str) -> str:
    "Search."
    RAN.append(("search", q))
    return "found"


@tool
async def weather(city: str, days: int = 1) -> str:
    "Weather of a city."
    RAN.append(("weather", city, days))
    return "9 degrees"


@tool(writes=True)
async def run(commands: list[str]) -> str:
    "Run commands."
    RAN.append(("run", *commands))
    return "done"


@tool
async def ping() -> str:
    "Ping."
    RAN.append(("ping",))
    return "pong"


@tool
async def now() -> str:
    "The time."
    RAN.append(("now",))
    return "10:00"


@tool
async def fleet_get_hosts() -> list[str]:
    "Hosts of the fleet."
    RAN.append(("fleet_get_hosts",))
    return ["h1"]


@tool(timeout_s=30)
def slow() -> str:
    "Block a thread."
    time.sleep(2)
    return "late"


@tool(timeout_s=30)
async def wait() -> str:
    "Take a while."
    await asyncio.sleep(0.5)
    return "waited"


@tool
async def order() -> str:
    "Show how calls are spread in time."
    RAN.append(("begin",))
    await asyncio.sleep(0.02)
    RAN.append(("end",))
    return "ok"


def register(registry):
    registry.add(add, pay, search, weather, run, ping, now, fleet_get_hosts, slow, wait, order)
"""
NAMES = ("add", "pay", "search", "weather", "run", "ping", "now", "fleet_get_hosts", "slow", "wait", "order")
DIALECTS = pytest.mark.parametrize("dialect", ["openai", "compatible"])


def client_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def says(text: str = "x") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class Case:
    """A gateway between a client and a scripted upstream."""

    gateway: Served
    upstream: ScriptedUpstream

    async def ask(self, **fields: Any) -> dict[str, Any]:
        """A whole answer."""
        status, _, found = await self.gateway.post("/v1/chat/completions", {"model": "m", "messages": says(), **fields})
        assert status == 200, found
        answered: dict[str, Any] = found
        return answered

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that ended as it should."""
        raw = await self.gateway.raw_stream({"model": "m", "messages": says(), **fields})
        assert raw.endswith(b"data: [DONE]\n\n"), raw
        events = [event for event in raw.split(b"\n\n") if event and not event.startswith(b":")]
        assert [event.removeprefix(b"data: ") for event in events].count(b"[DONE]") == 1
        return [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]

    async def ran(self) -> list[tuple[str, Any, bool]]:
        """Calls of the newest turn: name, arguments, whether it went well."""
        events = await self.events()
        started = {e["data"]["call_id"]: e["data"]["arguments"] for e in events if e["type"] == "tool.started"}
        return [
            (e["data"]["name"], started.get(e["data"]["call_id"]), e["data"]["ok"])
            for e in events
            if e["type"] == "tool.finished"
        ]

    async def events(self) -> list[dict[str, Any]]:
        """The newest trace's events."""
        _, _, listed = await self.gateway.get("/v1/traces")
        events: list[dict[str, Any]] = (await self.gateway.trace(listed["data"][0]["id"]))["events"]
        return events


@asynccontextmanager
async def case(
    folder: Path,
    *script: Script,
    then: Script | None = None,
    tools: tuple[str, ...] | None = NAMES,
    dialect: str = "compatible",
    routes: Mapping[str, Mapping[str, Any]] | None = None,
    **config: Any,
) -> AsyncIterator[Case]:
    model: dict[str, Any] = {"backends": ["b1"], "retries": 0}
    if tools is not None:
        model["tools"] = list(tools)
    async with ScriptedUpstream(*script, then=then) as upstream:
        whole = native_config(upstream.base_url, backend={"dialect": dialect}, **{"models": {"m": model}, **config})
        async with serving(folder, whole, routes, {"noting": TOOLS}) as gateway:
            yield Case(gateway, upstream)


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def reasons_of(chunks: list[dict[str, Any]]) -> list[str]:
    return [c["choices"][0]["finish_reason"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]


# --- Routing and dispatch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_content_as_parts_is_routed_and_forwarded_untouched(tmp_path: Path, *, streamed: bool) -> None:
    """B003."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    contents: list[tuple[list[Any], str]] = [
        ([{"type": "text", "text": "translate to"}, image, {"type": "text", "text": "French"}], "translate"),
        ([image], "-"),
        ([], "-"),
    ]
    reply = stream(words("ok"), f("stop"), DONE) if streamed else answer("ok")
    routes = {"translate": {"model": "m", "keywords": ["translate to"]}}
    async with case(tmp_path, then=reply, routes=routes, tools=None) as it:
        for content, route in contents:
            request = {"model": "auto", "stream": streamed, "messages": [{"role": "user", "content": content}]}
            async with it.gateway.http.post(f"{it.gateway.url}/v1/chat/completions", json=request) as response:
                assert response.status == 200
                assert response.headers["x-gateway-route"] == route
                assert b'"auto"' not in await response.read()
            assert it.upstream.requests[-1].messages[0]["content"] == content
            assert it.upstream.requests[-1].json["model"] == "upstream-model"


async def test_emptiness_of_tools_never_reaches_the_upstream(tmp_path: Path) -> None:
    """B017."""
    config: dict[str, Any] = {"keys": {"static": {"app": {"key": "gw-1", "tools": []}}}}
    choices: tuple[dict[str, Any], ...] = (
        {"parallel_tool_calls": False, "tool_choice": "auto"},
        {"parallel_tool_calls": False, "tool_choice": "none"},
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    )
    strict = lambda request: strict_history(request) or answer("ok")  # noqa: E731
    async with case(tmp_path, then=strict, **config) as it:
        for extra in choices:
            request = {"model": "m", "messages": says(), **extra}
            status, _, found = await it.gateway.post("/v1/chat/completions", request, authorization="Bearer gw-1")
            assert status == 200, found
            assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(it.upstream.requests[-1].json)


async def test_parallel_calls_switched_off_are_forwarded_each_round_and_run_one_by_one(tmp_path: Path) -> None:
    """B017."""
    two = answer(calls=[call("a", "order", "{}"), call("b", "order", "{}")])
    probe = answer(calls=[call("c", "add", '{"x":1,"y":1}')])
    async with case(tmp_path, two, probe, answer("ok")) as it:
        await it.ask(parallel_tool_calls=False)
        assert [request.json["parallel_tool_calls"] for request in it.upstream.requests] == [False] * 3
        order = [
            (e["type"], e["data"]["call_id"])
            for e in await it.events()
            if e["type"] in {"tool.started", "tool.finished"} and e["data"]["name"] == "order"
        ]
    assert order == [
        ("tool.started", "a"),
        ("tool.finished", "a"),
        ("tool.started", "b"),
        ("tool.finished", "b"),
    ]


# --- Tool calls as servers cut them --------------------------------------------------------------------------------

NO_INDEX = [
    d({"tool_calls": [call("a", "add", '{"x":1,"y":2}')]}),
    d({"tool_calls": [call("b", "add", '{"x":3,"y":4}')]}),
    f("tool_calls"),
    DONE,
]


@DIALECTS
async def test_deltas_without_index_are_separate_calls_for_a_registry_tool(tmp_path: Path, dialect: str) -> None:
    """B018."""
    async with case(tmp_path, stream(NO_INDEX), stream(words("done"), f("stop"), DONE), dialect=dialect) as it:
        assert text_of(await it.stream()) == "done"
        assert await it.ran() == [("add", {"x": 1, "y": 2}, True), ("add", {"x": 3, "y": 4}, True)]


@pytest.mark.parametrize("tools", [None, ("now",)], ids=["alone", "beside a registry tool"])
async def test_deltas_without_index_are_separate_calls_for_a_client(
    tmp_path: Path, tools: tuple[str, ...] | None
) -> None:
    """B018."""
    offered: list[Any] = [client_tool("add")]
    async with (
        case(tmp_path, stream(NO_INDEX), tools=tools) as it,
        it.gateway.sdk() as client,
        client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "x"}], tools=offered) as events,
    ):
        message = (await events.get_final_completion()).choices[0].message
    assert message.tool_calls is not None
    assert [(c.id, json.loads(c.function.arguments)) for c in message.tool_calls] == [
        ("a", {"x": 1, "y": 2}),
        ("b", {"x": 3, "y": 4}),
    ]


@DIALECTS
async def test_interleaved_fragments_go_to_the_call_of_their_index(tmp_path: Path, dialect: str) -> None:
    """B019."""
    first = stream(
        tc(0, id="A", name="pay", arguments=""),
        tc(1, id="B", name="pay", arguments=""),
        tc(0, arguments='{"to":"alice",'),
        tc(1, arguments='{"to":"bob",'),
        tc(1, arguments='"cents":5}'),
        tc(0, arguments='"cents":7}'),
        f("tool_calls"),
        DONE,
    )
    async with case(tmp_path, first, stream(words("paid"), f("stop"), DONE), dialect=dialect) as it:
        await it.stream()
        assert sorted(await it.ran(), key=str) == [
            ("pay", {"to": "alice", "cents": 7}, True),
            ("pay", {"to": "bob", "cents": 5}, True),
        ]
        second = it.upstream.requests[1].messages
    assert [message["tool_call_id"] for message in second if message["role"] == "tool"] == ["A", "B"]


REPEATED = [
    tc(0, id="a", name="search", arguments='{"q":'),
    tc(0, id="a", name="search", arguments='"x"}'),
    tc(0, id="", name="", arguments=""),
    d({"tool_calls": [{"index": 0, "id": None, "function": {"name": None}}]}),
    f("tool_calls"),
    DONE,
]


async def test_repeated_name_and_id_are_taken_once(tmp_path: Path) -> None:
    """B020."""
    async with case(tmp_path, stream(REPEATED), stream(words("ok"), f("stop"), DONE)) as it:
        await it.stream()
        assert await it.ran() == [("search", {"q": "x"}, True)]
    (tmp_path / "client").mkdir()
    async with case(tmp_path / "client", stream(REPEATED), tools=None) as it:
        chunks = await it.stream(tools=[client_tool("search")])
    deltas = [c["choices"][0]["delta"].get("tool_calls") or [] for c in chunks if c["choices"]]
    fragments = [fragment for delta in deltas for fragment in delta]
    assert [x["id"] for x in fragments if x.get("id")] == ["a"]
    assert [x["function"]["name"] for x in fragments if x.get("function", {}).get("name")] == ["search"]
    assert "".join(x["function"].get("arguments") or "" for x in fragments if x.get("function")) == '{"q":"x"}'


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mine", [True, False], ids=["registry tool", "client tool"])
async def test_arguments_as_an_object_without_id_are_read(tmp_path: Path, *, streamed: bool, mine: bool) -> None:
    """B021."""
    bare = {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
    message = {"role": "assistant", "content": "", "tool_calls": [bare]}
    whole = answer(choices=[{"index": 0, "message": message, "finish_reason": "stop"}])
    first = stream(d(message), f("stop"), DONE) if streamed else whole
    last = stream(words("9"), f("stop"), DONE) if streamed else answer("9")
    async with case(tmp_path, first, last, tools=NAMES if mine else None) as it:
        fields: dict[str, Any] = {} if mine else {"tools": [client_tool("weather")]}
        got = await it.stream(**fields) if streamed else [await it.ask(**fields)]
        if mine:
            assert await it.ran() == [("weather", {"city": "Zürich", "days": 2}, True)]
            return
    if streamed:
        assert reasons_of(got) == ["tool_calls"]
        [told] = [x for c in got if c["choices"] for x in c["choices"][0]["delta"].get("tool_calls") or []]
    else:
        assert got[0]["choices"][0]["finish_reason"] == "tool_calls"
        [told] = got[0]["choices"][0]["message"]["tool_calls"]
    assert told["id"]
    assert told["type"] == "function"
    assert json.loads(told["function"]["arguments"]) == {"city": "Zürich", "days": 2}


@pytest.mark.parametrize("streamed", [False, True])
async def test_truncated_arguments_are_not_executed(tmp_path: Path, *, streamed: bool) -> None:
    """B022."""
    cut = '{"commands":["make clean","make all"'
    if streamed:
        first = stream(tc(0, id="a", name="run", arguments=cut), f("length"), DONE)
    else:
        first = answer(calls=[call("a", "run", cut)], finish="length")
    async with case(tmp_path, first) as it:
        if streamed:
            assert reasons_of(await it.stream()) == ["length"]
        else:
            assert (await it.ask())["choices"][0]["finish_reason"] == "length"
        assert await it.ran() == []


async def test_truncated_arguments_are_not_executed_whatever_the_finish_reason_says(tmp_path: Path) -> None:
    """B022."""
    first = answer(calls=[call("a", "run", '{"commands":["make clean","make all"')])
    async with case(tmp_path, first, answer("sorry")) as it:
        await it.ask()
        assert await it.ran() == [("run", None, False)]


async def test_complete_arguments_that_are_not_json_are_read_and_the_trace_shows_both(tmp_path: Path) -> None:
    """B022."""
    raw = "{'commands': ['make all',],}"
    async with case(tmp_path, answer(calls=[call("a", "run", raw)]), answer("ok")) as it:
        await it.ask()
        assert await it.ran() == [("run", {"commands": ["make all"]}, True)]
        [started] = [e["data"] for e in await it.events() if e["type"] == "tool.started"]
    assert started["raw"] == raw


async def test_blank_arguments_are_no_arguments(tmp_path: Path) -> None:
    """B023."""
    async with case(tmp_path) as it:
        for given in ("", "   ", "null", None, "missing"):
            function: dict[str, Any] = {"name": "ping", "arguments": given}
            if given == "missing":
                del function["arguments"]
            first = answer(calls=[{"id": "a", "type": "function", "function": function}])
            it.upstream.enqueue(first, lambda request: strict_history(request) or answer("ok"))
            await it.ask()
            assert await it.ran() == [("ping", {}, True)], given
            [asked] = [m for m in it.upstream.requests[-1].messages if m.get("tool_calls")]
            assert asked["tool_calls"][0]["function"]["arguments"] == "{}", given


async def test_blank_arguments_of_a_tool_that_needs_some_name_what_is_missing(tmp_path: Path) -> None:
    """B023."""
    async with case(tmp_path, answer(calls=[call("a", "search", "")]), answer("ok")) as it:
        await it.ask()
        [result] = [m for m in it.upstream.requests[-1].messages if m["role"] == "tool"]
    assert "q" in json.loads(result["content"])["error"]
    assert json.loads(result["content"])["ok"] is False


@pytest.mark.parametrize("reason", ["stop", "function_call", "", None, "tool_use"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_tool_call_counts_whatever_the_finish_reason(
    tmp_path: Path, reason: str | None, *, streamed: bool
) -> None:
    """B024."""
    asked = call("a", "now", "{}")
    message = {"role": "assistant", "content": None, "tool_calls": [asked]}
    whole = answer(choices=[{"index": 0, "message": message, "finish_reason": reason}])
    end = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
    first = stream(d({"tool_calls": [{"index": 0, **asked}]}), end, DONE) if streamed else whole
    last = stream(words("It is 9°."), f("stop"), DONE) if streamed else answer("It is 9°.")
    async with case(tmp_path, first, last, first) as it:
        if streamed:
            chunks = await it.stream()
            assert (text_of(chunks), reasons_of(chunks)) == ("It is 9°.", ["stop"])
            assert reasons_of(await it.stream(tools=[client_tool("now")])) == ["tool_calls"]
        else:
            got = (await it.ask())["choices"][0]
            assert (got["message"]["content"], got["finish_reason"]) == ("It is 9°.", "stop")
            assert (await it.ask(tools=[client_tool("now")]))["choices"][0]["finish_reason"] == "tool_calls"


# --- The loop ------------------------------------------------------------------------------------------------------


def forced(request: UpstreamRequest) -> Reply:
    choice = request.json.get("tool_choice")
    force = choice == "required" or (isinstance(choice, dict) and choice["function"]["name"] == "now")
    return answer(calls=[call(f"c{request.number}", "now", "{}")]) if force else answer("10:00")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
async def test_forced_choice_holds_for_the_first_round_only(tmp_path: Path, choice: Any) -> None:
    """B025."""
    async with case(tmp_path, then=forced) as it:
        got = await it.ask(tool_choice=choice)
        assert got["choices"][0]["message"]["content"] == "10:00"
        assert [request.json.get("tool_choice") for request in it.upstream.requests] == [choice, "auto"]
        assert [name for name, _, _ in await it.ran()] == ["now"]


async def test_choice_of_none_offers_nothing_and_a_client_s_own_choice_goes_to_the_client(tmp_path: Path) -> None:
    """B025."""
    async with case(tmp_path, then=forced) as it:
        got = await it.ask(tool_choice="none")
        assert got["choices"][0]["message"]["content"] == "10:00"
        assert len(it.upstream.requests) == 1
    named = {"type": "function", "function": {"name": "open_door"}}
    (tmp_path / "own").mkdir()
    async with case(tmp_path / "own", answer(calls=[call("a", "open_door", "{}")])) as it:
        got = await it.ask(tools=[client_tool("open_door")], tool_choice=named)
        assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "open_door"
        assert it.upstream.requests[0].json["tool_choice"] == named


async def test_client_tools_alone_end_the_turn(tmp_path: Path) -> None:
    """B026."""
    asked = call("a", "open_door", "{}")
    streamed = stream(d({"tool_calls": [{"index": 0, **asked}]}), f("tool_calls"), DONE)
    async with case(tmp_path, answer(calls=[asked]), streamed) as it:
        got = (await it.ask(tools=[client_tool("open_door")]))["choices"][0]
        assert (got["finish_reason"], [c["id"] for c in got["message"]["tool_calls"]]) == ("tool_calls", ["a"])
        assert reasons_of(await it.stream(tools=[client_tool("open_door")])) == ["tool_calls"]
        assert len(it.upstream.requests) == 2


async def test_unknown_tool_is_told_with_close_names_and_the_turn_goes_on(tmp_path: Path) -> None:
    """B034."""
    script: list[Script] = [
        answer(calls=[call("a", "fleet_list_hosts", "{}")]),
        answer(calls=[call("b", "fleet_get_hosts", "{}")]),
        lambda request: strict_history(request) or answer("one host"),
    ]
    async with case(tmp_path, *script) as it:
        assert (await it.ask())["choices"][0]["message"]["content"] == "one host"
        [result] = [m for m in it.upstream.requests[1].messages if m["role"] == "tool"]
        assert result["tool_call_id"] == "a"
        assert "fleet_get_hosts" in json.loads(result["content"])["error"]


@pytest.mark.parametrize("name", ["fleet_list_hosts", "FLEET_GET_HOSTS", "functions.fleet_get_hosts"])
async def test_unknown_tool_called_for_ever_ends_by_the_failure_limit(tmp_path: Path, name: str) -> None:
    """B034."""

    def stubborn(request: UpstreamRequest) -> Reply:
        if request.json.get("tool_choice") == "none":
            return answer("I give up")
        return answer(calls=[call(f"c{request.number}", name, "{}")])

    async with case(tmp_path, then=stubborn, tools=("fleet_get_hosts",)) as it:
        await it.ask()
        assert len(it.upstream.requests) <= 4
        assert all(not ok for _, _, ok in await it.ran())


async def test_blocking_tools_leave_everybody_else_alone(tmp_path: Path) -> None:
    """B040."""

    def reply(request: UpstreamRequest) -> Reply:
        last = request.messages[-1]
        if last["role"] == "user" and last["content"] == "slow":
            return answer(calls=[call(f"c{request.number}", "slow", "{}")])
        if last["role"] == "user" and last["content"] == "quick":
            return answer(calls=[call(f"c{request.number}", "now", "{}")])
        return answer("done")

    async with case(tmp_path, then=reply) as it:
        loop = asyncio.get_running_loop()
        slow = [asyncio.create_task(it.ask(messages=says("slow"))) for _ in range(20)]
        await it.upstream.received(20, timeout_s=10)
        waits = []
        for _ in range(8):
            began = loop.time()
            status, _, _ = await it.gateway.get("/healthz")
            assert status == 200
            assert (await it.ask(messages=says("quick")))["choices"][0]["message"]["content"] == "done"
            waits.append(loop.time() - began)
        assert not all(task.done() for task in slow), "the blocking tools still run"
        # A loop that the tools held would have stood still for 20 times 2 s, all of it in the first of these. One of them
        # may wait for a disk; that is not the tools' doing.
        assert sorted(waits)[-2] < 1, waits
        assert max(waits) < 20, waits
        async with asyncio.timeout(60):
            await asyncio.gather(*slow)


async def test_headers_of_the_client_reach_neither_upstream(tmp_path: Path) -> None:
    """B043."""
    config: dict[str, Any] = {"keys": {"static": {"app": {"key": "gw-KEY-1"}}}}
    async with case(tmp_path, then=answer("ok"), tools=None, **config) as it:
        sent = {
            "Authorization": "Bearer gw-KEY-1",
            "Cookie": "s=COOKIE-1",
            "X-Internal": "INTERNAL-1",
            "x-forwarded-for": "10.1.2.3",
            "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
            "baggage": "user=BAGGAGE-1",
            "x-gateway-session": "SESSION-1",
            "user-agent": "AGENT-1",
        }
        async with it.gateway.http.post(
            f"{it.gateway.url}/v1/chat/completions", json={"model": "m", "messages": says()}, headers=sent
        ) as response:
            assert response.status == 200
        [request] = it.upstream.requests
    everything = json.dumps(dict(request.headers))
    for value in ("gw-KEY-1", "COOKIE-1", "INTERNAL-1", "10.1.2.3", "BAGGAGE-1", "SESSION-1", "AGENT-1", "0123456789a"):
        assert value not in everything
    assert "authorization" not in request.headers, "this backend has no key of its own"


def needs_content(request: UpstreamRequest) -> Reply | None:
    for message in request.messages:
        if message["role"] == "assistant":
            if "content" not in message:
                return error(400, "content is missing")
            if message["content"] in {"", "None", "null"}:
                return error(400, f"content is {message['content']!r}")
    return None


@pytest.mark.parametrize("streamed", [False, True])
async def test_content_null_stays_in_the_replayed_message(tmp_path: Path, *, streamed: bool) -> None:
    """B045."""
    asked = call("a", "now", "{}")
    last: Reply = stream(words("ok"), f("stop"), DONE) if streamed else answer("ok")
    strict = lambda request: needs_content(request) or strict_history(request) or last  # noqa: E731
    first = stream(d({"tool_calls": [{"index": 0, **asked}]}), f("tool_calls"), DONE) if streamed else None
    async with case(tmp_path, first or answer(calls=[asked]), then=strict) as it:
        if streamed:
            assert text_of(await it.stream()) == "ok"
        else:
            assert (await it.ask())["choices"][0]["message"]["content"] == "ok"
        [message] = [m for m in it.upstream.requests[1].messages if m["role"] == "assistant"]
        assert message["content"] is None
        history = [*says(), {"role": "assistant", "content": None, "tool_calls": [asked]}]
        history.append({"role": "tool", "tool_call_id": "a", "content": "9"})
        if not streamed:
            assert (await it.ask(messages=history, tools=[client_tool("now")]))["choices"]


async def test_whole_message_has_no_field_of_a_stream(tmp_path: Path) -> None:
    """B048."""
    loose = {**call("a", "open_door", "{}"), "index": 0}
    message = {"role": "assistant", "tool_calls": [loose]}
    for number, tools in enumerate((None, ("now",))):
        folder = tmp_path / str(number)
        folder.mkdir()
        reply = answer(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])
        async with case(folder, reply, tools=tools) as it:
            got = await it.ask(tools=[client_tool("open_door")])
        [choice] = got["choices"]
        assert choice["message"]["tool_calls"] == [call("a", "open_door", "{}")]
        assert choice["message"]["content"] is None
        assert "delta" not in choice
        assert (got["object"], got["usage"]["total_tokens"]) == ("chat.completion", 2)


# --- Streams -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["reset", "end", "error frame", "error event", "fault behind a choice", "second round", "second round cut"]
)
@DIALECTS
async def test_failure_in_mid_stream_is_an_error_and_no_short_answer(tmp_path: Path, how: str, dialect: str) -> None:
    """B068."""
    said = stream(d({"role": "assistant", "content": "Hel"}), d({"content": "lo"}))
    frame = b'data: {"error":{"message":"overloaded","type":"server_error","code":null}}\n\n'
    calls_of_now = (tc(0, id="a", name="now", arguments="{}"), f("tool_calls"), u(10, 5), DONE)
    first = stream(d({"role": "assistant", "content": "Hel"}), *calls_of_now)
    second = stream(d({"role": "assistant", "content": "lo"}))
    fault = {"index": 0, "delta": {}, "finish_reason": "error", "error": {"message": "overloaded"}}
    script: list[Script] = {
        "reset": [said.reset_at(len(said.body))],
        "end": [stream(said.body)],
        "error frame": [stream(said.body, frame)],
        "error event": [stream(said.body, b"event: error\ndata: overloaded\n\n", DONE)],
        "fault behind a choice": [stream(said.body, chunk(choices=[fault]), DONE)],
        "second round": [stream(said.body, *calls_of_now), error(500, "broken for good")],
        "second round cut": [first, second.reset_at(len(second.body))],
    }[how]  # type: ignore[assignment]
    tools = NAMES if "round" in how else None
    async with case(tmp_path, *script, *script, tools=tools, dialect=dialect) as it:
        raw = await it.gateway.raw_stream({"model": "m", "messages": says()})
        events = [event.removeprefix(b"data: ") for event in raw.split(b"\n\n") if event]
        assert events[-1] == b"[DONE]"
        failure = json.loads(events[-2])["error"]
        assert set(failure) == {"message", "type", "param", "code"}
        assert "Traceback" not in failure["message"]
        before = [json.loads(event) for event in events[:-2]]
        assert text_of(before) == "Hello"
        assert reasons_of(before) == []
        assert b": " not in b"".join(event[:1] for event in events), "nothing but frames"
        assert raw.endswith(b"data: [DONE]\n\n")
        assert raw.count(b'"error"') == 1
        _, _, listed = await it.gateway.get("/v1/traces")
        assert listed["data"][0]["status"] >= 500
        booked = listed["data"][0]["prompt_tokens"], listed["data"][0]["completion_tokens"]
        if how == "second round":
            assert booked == (10, 5), "usage so far is booked"
        elif how == "second round cut":
            assert min(booked[0] - 10, booked[1] - 5) > 0
        else:
            assert min(booked) > 0, "where nothing was counted, it is estimated"
        trace = await it.gateway.trace(listed["data"][0]["id"])
        [lost] = [event["data"] for event in trace["events"] if event["type"] == "attempt.failed"]
        assert lost["outcome"] in ("broken", "unavailable")
        async with it.gateway.sdk() as client:
            heard: list[str] = []

            async def listen() -> None:
                pieces = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}], stream=True
                )
                async for piece in pieces:
                    heard.append(piece.choices[0].delta.content or "")  # noqa: PERF401 - what came before the error counts

            with pytest.raises(openai.APIError) as caught:
                await listen()
            assert "".join(heard) == "Hello"
            assert caught.value.message


PREAMBLE = chunk(id="", created=0, model="", choices=[], prompt_filter_results=[])


@pytest.mark.parametrize("tools", [None, NAMES], ids=["fast path", "tools offered"])
@pytest.mark.parametrize("include", [True, False])
@DIALECTS
async def test_chunks_without_choices_are_not_passed_on(
    tmp_path: Path, dialect: str, tools: tuple[str, ...] | None, *, include: bool
) -> None:
    """B069."""
    reply = stream(
        PREAMBLE,
        d({"role": "assistant"}),
        d({"content": None}),
        d({"content": "Hi"}),
        chunk(choices=None),
        f("stop"),
        u(3, 1),
        DONE,
    )
    async with case(tmp_path, reply, tools=tools, dialect=dialect) as it:
        chunks = await it.stream(stream_options={"include_usage": include})
    assert [bool(c["choices"]) for c in chunks] == [True] * (len(chunks) - include) + [False] * include
    assert (text_of(chunks), reasons_of(chunks)) == ("Hi", ["stop"])
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert all(c["id"] and c["created"] and c["model"] for c in chunks)


ENDINGS: dict[str, Reply] = {
    "text and finish in one chunk": stream(
        chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}]),
        u(5, 1),
        DONE,
    ),
    "usage in the finish chunk": stream(
        d({"role": "assistant", "content": "42"}),
        chunk(
            choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
            usage={"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
        ),
        DONE,
    ),
    "no blank line after the end mark": stream(
        d({"role": "assistant", "content": "42"}), f("stop"), u(5, 1), b"data: [DONE]"
    ),
    "no end mark": stream(d({"role": "assistant", "content": "42"}), f("stop"), u(5, 1)),
    "two finish chunks": stream(d({"role": "assistant", "content": "42"}), f("stop"), f("stop"), u(5, 1), DONE),
    "role in every chunk": stream(
        d({"role": "assistant", "content": "4"}), d({"role": "assistant", "content": "2"}), f("stop"), u(5, 1), DONE
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("tools", [None, NAMES], ids=["fast path", "tools offered"])
@DIALECTS
async def test_legal_ends_of_a_stream_are_complete(
    tmp_path: Path, dialect: str, tools: tuple[str, ...] | None, ending: str
) -> None:
    """B071."""
    async with case(tmp_path, ENDINGS[ending], tools=tools, dialect=dialect) as it:
        chunks = await it.stream(stream_options={"include_usage": True})
        _, _, listed = await it.gateway.get("/v1/traces")
        assert len(it.upstream.requests) == 1
    assert (text_of(chunks), reasons_of(chunks)) == ("42", ["stop"])
    assert sum(bool(c["choices"] and c["choices"][0]["delta"].get("role")) for c in chunks) == 1
    usages = [c["usage"] for c in chunks if c.get("usage")]
    assert [(x["prompt_tokens"], x["completion_tokens"]) for x in usages] == [(5, 1)]
    [trace] = listed["data"]
    assert (trace["status"], trace["prompt_tokens"], trace["completion_tokens"]) == (200, 5, 1)


async def test_end_of_an_inner_round_stays_inside(tmp_path: Path) -> None:
    """B076."""
    first = stream(
        d({"role": "assistant", "content": "Checking… "}),
        tc(0, id="a", name="now", arguments="{}"),
        f("tool_calls"),
        u(10, 5),
        DONE,
    )
    other = {"id": "chatcmpl-other", "model": "other-model", "created": 1}
    second = stream(
        chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": "It is 9°."}}], **other),
        chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], **other),
        chunk(choices=[], usage={"prompt_tokens": 30, "completion_tokens": 6, "total_tokens": 36}, **other),
        DONE,
    )
    plain = (answer("Checking… ", calls=[call("a", "now", "{}")], tokens=(10, 5)), answer("It is 9°.", tokens=(30, 6)))
    async with case(tmp_path, first, second, *plain) as it:
        chunks = await it.stream(stream_options={"include_usage": True})
        whole = await it.ask()
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    roles = [c["choices"][0]["delta"]["role"] for c in chunks if c["choices"] and c["choices"][0]["delta"].get("role")]
    assert roles == ["assistant"]
    assert (text_of(chunks), reasons_of(chunks)) == ("Checking… It is 9°.", ["stop"])
    assert not any(c["choices"][0]["delta"].get("tool_calls") for c in chunks if c["choices"])
    usages = [c["usage"] for c in chunks if c.get("usage")]
    assert [(x["prompt_tokens"], x["completion_tokens"], x["total_tokens"]) for x in usages] == [(40, 11, 51)]
    assert whole["choices"][0]["message"]["content"] == "Checking… It is 9°."
    assert whole["usage"]["total_tokens"] == 51


async def test_silence_is_filled_with_comments_that_no_sdk_takes_for_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B077: what is 15 s elsewhere is 0.1 s here."""
    assert SILENCE_S <= 15
    monkeypatch.setattr(ChatCompletions.__init__, "__kwdefaults__", {"silence_s": 0.1})
    first = stream(tc(0, id="a", name="wait", arguments="{}"), f("tool_calls"), DONE)
    second = stream(d({"role": "assistant", "content": "wai"}), Pause(0.35), d({"content": "ted"}), f("stop"), DONE)
    async with case(tmp_path, first, second, first, second) as it:
        raw = await it.gateway.raw_stream({"model": "m", "messages": says()})
        assert raw.startswith(b":"), "the tool ran before anything could be said"
        events = raw.split(b"\n\n")
        assert sum(event.startswith(b":") for event in events) >= 5
        assert all(event.startswith((b":", b"data: {", b"data: [DONE]")) for event in events if event)
        async with it.gateway.sdk() as client:
            heard = ""
            async for piece in await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], stream=True
            ):
                heard += piece.choices[0].delta.content or ""
    assert heard == "waited"


# --- Reload and metrics --------------------------------------------------------------------------------------------


async def test_refused_reload_shows_what_serves_and_the_last_error(tmp_path: Path) -> None:
    """B081."""
    good = "route: legal\nmodel: m\nkeywords: [contract]\n"
    broken: dict[str, str | None] = {
        "syntax error": "route: legal\nmodel: m\nkeywords: [contract\n",
        "unknown model": "route: legal\nmodel: nobody\nkeywords: [contract]\n",
        "half written": good[:-12],
        "empty": "",
    }
    async with case(tmp_path, then=answer("ok"), tools=None) as it:
        path = tmp_path / "routes" / "legal.yaml"
        path.write_text(good)
        _, _, v1 = await it.gateway.post("/v1/reload", {})
        for what, text in broken.items():
            path.write_text(text or "")
            status, _, _ = await it.gateway.post("/v1/reload", {})
            assert status == 400, what
            _, _, shown = await it.gateway.get("/v1/config")
            assert shown["version"] == v1["version"], what
            [problem, *_] = shown["last_error"]["problems"]
            assert problem["file"].endswith("legal.yaml"), what
            assert problem["message"], what
            assert problem["line"] >= 0, what
            assert shown["last_error"]["at"] > 0, what
            assert await decided(it, "my contract") == ("legal", v1["version"]), what
        path.write_text(good.replace("contract", "treaty"))
        status, _, v2 = await it.gateway.post("/v1/reload", {})
        assert status == 200
        _, _, shown = await it.gateway.get("/v1/config")
        assert (shown["version"], shown["last_error"]) == (v2["version"], None)
        assert await decided(it, "my treaty") == ("legal", v2["version"])
        _, _, metrics = await it.gateway.get("/metrics")
        assert f"hermes_reload_failures_total {len(broken)}.0" in metrics


async def decided(it: Case, text: str) -> tuple[str, str]:
    """The route and the version of an answered request."""
    status, headers, found = await it.gateway.post("/v1/chat/completions", {"model": "auto", "messages": says(text)})
    assert status == 200, found
    return headers["x-gateway-route"], headers["x-gateway-version"]


async def test_request_in_flight_keeps_its_version(tmp_path: Path) -> None:
    """B081."""
    async with case(tmp_path, answer("old").held(), then=answer("new"), tools=None) as it:
        _, _, before = await it.gateway.get("/v1/config")
        flying = asyncio.create_task(decided(it, "hello"))
        await it.upstream.stalled()
        write_route(tmp_path, "greeting", {"model": "m", "keywords": ["hello"]})
        status, _, after = await it.gateway.post("/v1/reload", {})
        assert status == 200
        assert await decided(it, "hello") == ("greeting", after["version"])
        it.upstream.release()
        assert await flying == ("-", before["version"])


async def test_removed_routes_and_models_are_gone_at_once_and_new_ones_found(tmp_path: Path) -> None:
    """B082."""
    routes = {"legal": {"model": "m", "keywords": ["contract"]}}
    async with case(tmp_path, then=answer("ok"), tools=None, routes=routes) as it:
        assert (await decided(it, "my contract"))[0] == "legal"
        assert (await decided(it, "my contract"))[0] == "legal"
        (tmp_path / "routes" / "legal.yaml").unlink()
        write_route(tmp_path, "travel", {"model": "n", "keywords": ["flight"]})
        config = tmp_path / "gateway.yaml"
        config.write_text(config.read_text().replace("\n  m:\n", "\n  n:\n").replace("default: m\n", "default: n\n"))
        noting = tmp_path / "plugins" / "noting.py"
        noting.write_text(noting.read_text().replace('"Ping."', '"Ping a host."'))
        status, _, state = await it.gateway.post("/v1/reload", {})
        assert status == 200, state
        assert await decided(it, "my contract") == ("-", state["version"])
        assert await decided(it, "my flight") == ("travel", state["version"])
        status, _, gone = await it.gateway.post("/v1/chat/completions", {"model": "m", "messages": says()})
        assert (status, gone["error"]["code"]) == (404, "model_not_found")
        _, _, models = await it.gateway.get("/v1/models")
        assert [model["id"] for model in models["data"]] == ["auto", "n"]
        _, _, listed = await it.gateway.get("/v1/tools")
        assert "Ping a host." in [tool["description"] for tool in listed["data"]]
        _, _, explained = await it.gateway.post("/v1/route", {"model": "auto", "messages": says("my flight")})
        assert (explained["route"], explained["model"], explained["version"]) == ("travel", "n", state["version"])


INVENTED = 120


async def test_labels_of_metrics_stay_few_whatever_clients_and_models_invent(tmp_path: Path) -> None:
    """B085."""

    def invents(request: UpstreamRequest) -> Reply:
        zz = f"zz{request.number}"
        if request.messages[-1]["role"] == "tool":
            return answer("x", model=zz)
        if request.json.get("stream"):
            made = tc(0, id=zz, name=zz, arguments="{}") if request.number % 2 else d({"content": zz})
            return stream(d({"role": zz}), made, f(zz), DONE)
        return [
            answer(calls=[call(zz, zz, "{}")], model=zz),
            body({"error": {"message": zz, "type": zz, "code": zz, "param": zz}}, status=400 + request.number % 20),
            answer("x", model=zz, system_fingerprint=zz),
        ][request.number % 3]

    async def scraped() -> str:
        return str((await it.gateway.get("/metrics"))[2])

    def series(text: str) -> int:
        return sum(1 for line in text.splitlines() if line and not line.startswith("#"))

    async def ask(number: int) -> None:
        zz = f"zz{number}"
        said = {
            "messages": says(zz),
            "user": zz,
            "safety_identifier": zz,
            "metadata": {zz: zz},
            "stream": number % 2 == 0,
        }
        named = [{"model": "m"}, {"model": "auto"}, {"model": f"any/{zz}"}, {"model": zz}, {"model": zz, "tools": zz}]
        headers = {"x_gateway_session": zz, "idempotency_key": zz, "x_gateway_tools": zz} if number % 7 == 0 else {}
        async with it.gateway.http.post(
            f"{it.gateway.url}/v1/chat/completions",
            json={**said, **named[number % len(named)]},
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        ) as response:
            await response.read()
        paths = [f"/v1/{zz}", f"/v1/models/{zz}", f"/v1/traces/{zz}", f"/v1/models/any/{zz}", f"/{zz}?{zz}={zz}"]
        method = ["GET", "POST", "PATCH", "PURGE"][number % 4]
        url = it.gateway.url + paths[number % len(paths)]
        async with it.gateway.http.request(
            method, url, headers={"user-agent": zz, "origin": it.gateway.url}
        ) as response:
            await response.read()

    models = {
        "m": {"backends": ["b1"], "retries": 0, "tools": list(NAMES)},
        "any/*": {"backends": ["b1"], "retries": 0},
    }
    async with case(tmp_path, then=invents, models=models) as it:
        for number in range(10):
            await ask(number)
        before = series(await scraped())
        for start in range(10, INVENTED, 10):
            await asyncio.gather(*(ask(number) for number in range(start, start + 10)))
        text = await scraped()
        assert len(it.upstream.requests) > INVENTED / 2
        assert series(text) - before < 100
        assert "zz" not in text
        models_told = {line.split('model="')[1].split('"')[0] for line in text.splitlines() if 'model="' in line}
        assert models_told <= {"m", "any/*", "auto", "other", "-"}
        assert 'tool="other"' in text
