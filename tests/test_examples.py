"""The examples of the pages do what the pages say: each hook in a gateway that serves, each tool in a real provider."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.tools import ToolContext
from gateway.tools.providers.python import PythonProvider
from tests.documents import Example, code, examples, rows, section, text_of
from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream, answer, call

CONFIG: dict[str, Any] = {
    "backends": {"demo": {"provider": "demo"}},
    "models": {"fast": {"backends": ["demo"]}, "strong": {"backends": ["demo"]}},
    "router": {"default": "strong", "semantic": {"enabled": False}},
    "keys": {
        "static": {"app": {"key": "app-key-1", "roles": ["admin"]}, "test": {"key": "trial-key-1", "tags": ["trial"]}}
    },
}
ORDERS = """
from gateway.tools import tool

@tool
async def query_order(order_id: str) -> dict:
    '''Look up an order for its status and its total price.

    order_id: the order's number, for example SO-2024-0318
    '''
    if order_id == "SO-2024-0404":
        raise LookupError("there is no such order")
    return {"order_id": order_id, "status": "shipped", "items": "a keyboard", "total": 758, "currency": "CNY"}

def register(registry):
    registry.add(query_order)
"""
ROUTES: dict[str, dict[str, Any]] = {"orders": {"model": "strong", "keywords": ["order"], "tools": ["query_order"]}}


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}}
ALLOWED_AUTO = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}}
CUSTOM = {"type": "custom", "custom": {"name": "draw"}}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def example_of(hook: str) -> str:
    return next(each.text for each in examples("python") if f"async def {hook}(" in each.text)


@asynccontextmanager
async def gateway_with(folder: Path, **plugins: str) -> AsyncIterator[Served]:
    async with serving(folder, CONFIG, ROUTES, {"orders": ORDERS, **plugins}) as served:
        yield served


async def ask(
    served: Served, text: str, *, key: str = "app-key-1", model: str = "auto", **more: Any
) -> tuple[Any, ...]:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return await served.post("/v1/chat/completions", body, authorization=f"Bearer {key}")


async def events_of(served: Served, headers: Any) -> list[dict[str, Any]]:
    status, _, trace = await served.get(f"/v1/traces/{headers['x-gateway-trace']}", authorization="Bearer app-key-1")
    assert status == 200
    found: list[dict[str, Any]] = trace["events"]
    return found


def data_of(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    data: dict[str, Any] = next(event["data"] for event in events if event["type"] == kind)
    return data


async def test_on_request_refuses_and_shortens(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, guard=example_of("on_request")) as served:
        status, _, body = await ask(served, "Tell me about Project Halberd.")
        assert (status, body["error"]["code"]) == (403, "not_allowed")
        assert "does not answer questions about that project" in body["error"]["message"]
        status, headers, _ = await ask(served, "hello")
        assert status == 200
        assert data_of(await events_of(served, headers), "hook.changed") == {"hook": "on_request"}
        status, headers, body = await ask(served, "hello", max_tokens=2)
        assert status == 200
        assert body["usage"]["completion_tokens"] <= 2
        assert "hook.changed" not in {event["type"] for event in await events_of(served, headers)}


async def test_on_decision_sends_some_keys_elsewhere(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, trial=example_of("on_decision")) as served:
        for model in ("auto", "strong"):
            _, headers, _ = await ask(served, "hello", key="trial-key-1", model=model)
            assert headers["x-gateway-model"] == "fast"
            _, headers, _ = await ask(served, "hello", model=model)
            assert headers["x-gateway-model"] == "strong"
        chat = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        _, _, decision = await served.post("/v1/route", chat, authorization="Bearer trial-key-1")
        assert (decision["model"], decision["reason"]) == ("fast", "keys on trial get the fast model")


async def test_before_tool_changes_arguments_and_asks_again(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, numbers=example_of("before_tool")) as served:
        _, headers, _ = await ask(served, "What is the status of order so-2024-0318?")
        events = await events_of(served, headers)
        assert data_of(events, "tool.started")["arguments"] == {"order_id": "SO-2024-0318"}
        assert data_of(events, "tool.finished")["ok"] is True
        _, headers, _ = await ask(served, "What is the status of order SO-1999-0318?")
        events = await events_of(served, headers)
        assert "only orders of 2024 and 2025" in data_of(events, "hook.refused")["message"]
        finished = data_of(events, "tool.finished")
        assert finished["ok"] is False
        assert "ask the user for another number" in finished["content"]
        assert "tool.started" not in {event["type"] for event in events}


async def test_after_tool_keeps_something_from_the_model(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, prices=example_of("after_tool")) as served:
        _, headers, body = await ask(served, "What is the status of order SO-2024-0318?")
        content = json.loads(data_of(await events_of(served, headers), "tool.finished")["content"])
        assert content == {
            "ok": True,
            "result": {"order_id": "SO-2024-0318", "status": "shipped", "items": "a keyboard"},
        }
        assert "758" not in body["choices"][0]["message"]["content"]


async def test_on_answer_adds_and_withholds_streamed_or_not(tmp_path: Path) -> None:
    said = "answered by the company's gateway"
    async with gateway_with(tmp_path, last_word=example_of("on_answer")) as served:
        _, headers, body = await ask(served, "hello")
        assert body["choices"][0]["message"]["content"].endswith(f"({said})")
        assert data_of(await events_of(served, headers), "hook.changed") == {"hook": "on_answer"}
        chat = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        streamed = await served.raw_stream(chat, authorization="Bearer app-key-1")
        assert streamed.count(said.encode()) == 1
        assert streamed.endswith(b"data: [DONE]\n\n")
    withholding = example_of("on_answer").replace("intranet.example", "demo")
    (tmp_path / "other").mkdir()
    async with gateway_with(tmp_path / "other", last_word=withholding) as served:
        status, _, body = await ask(served, "hello", stream=True)
        assert (status, body["error"]["code"]) == (403, "not_allowed")


async def test_on_event_follows_turns(tmp_path: Path) -> None:
    telling = example_of("on_event") + "\n    if event.type == 'turn.finished':\n        OVER.set()\n"
    source = "import asyncio\nOVER = asyncio.Event()\n" + telling
    async with gateway_with(tmp_path, counting=source) as served:
        await ask(served, "What is the status of order SO-2024-0404?")
        module = inspect.unwrap(served.gateway.versions.current.hooks.on_event[0]).__globals__
        async with asyncio.timeout(10):
            await module["OVER"].wait()
        assert module["FAILURES"]["query_order"] >= 1


async def test_what_turns_really_tell_is_documented(tmp_path: Path) -> None:
    """Beside what stands in the code by name: the summaries, which are put together from parts."""
    text = section(text_of("observe"), "Events")
    told = {code(row["event"])[0]: set(code(row["data"])) for row in rows(text, "event", "when", "data")}
    sums = set(re.findall(r"`([a-z_]+)`", text.split("The summary:")[1].split("States are")[0]))
    async with gateway_with(tmp_path, numbers=example_of("before_tool")) as served:
        seen: dict[str, set[str]] = {}
        for text_asked in ("What is the status of order so-2024-0318?", "hello", "order SO-1999-1?"):
            _, headers, _ = await ask(served, text_asked)
            for event in await events_of(served, headers):
                seen.setdefault(event["type"], set()).update(event["data"])
        status, headers, _ = await ask(served, "hello", key="trial-key-1", model="no-such-model")
        assert status == 404
        for event in await events_of(served, headers):
            seen.setdefault(event["type"], set()).update(event["data"])
    assert {"turn.finished", "turn.failed", "tool.finished", "hook.refused"} <= set(seen)
    summed = {kind for kind in told if kind.startswith("turn.")}
    assert {k: left for k, keys in seen.items() if (left := keys - told[k] - (sums if k in summed else set()))} == {}
    assert sums - seen["turn.finished"] == set()


async def test_the_readmes_tool_answers(tmp_path: Path) -> None:
    found: Example = next(
        each for each in examples("python") if "def register(" in each.text and each.page.name == "README.md"
    )
    (tmp_path / "example.py").write_text(found.text, encoding="utf-8")
    provider = PythonProvider([tmp_path])
    try:
        (spec,) = await provider.list()
        await provider.open()
        assert spec.parameters["properties"]["article"]["description"] == "the article's number, for example A-1042"
        context = ToolContext(user=None, key="app", team=None, session=None, trace_id="0" * 32, idempotency_key="1")
        assert await provider.call(spec.name, {"article": "A-1042"}, context) == {"article": "A-1042", "in_stock": 12}
    finally:
        await provider.close()


# Who says what -> the fields of the request, the route's `tool_choice`, whether registry tools are offered, and the choices of
# the first and later rounds.
CHOICES: dict[str, tuple[dict[str, Any], str | None, bool, Any, Any]] = {
    "nobody anything": ({}, None, True, None, None),
    "the client `auto`": ({"tool_choice": "auto"}, None, True, "auto", "auto"),
    "the client `required`": ({"tool_choice": "required"}, None, True, "required", "auto"),
    "the client a function of its own": ({"tool_choice": _named("weather")}, None, True, _named("weather"), "auto"),
    "the client a function of the registry": (
        {"tool_choice": _named("query_order")},
        None,
        True,
        _named("query_order"),
        "auto",
    ),
    "the client a `custom` tool": ({"tool_choice": CUSTOM}, None, True, CUSTOM, "auto"),
    "the client `allowed_tools`": ({"tool_choice": ALLOWED}, None, True, ALLOWED, ALLOWED_AUTO),
    "the client `none`": ({"tool_choice": "none"}, None, False, "none", None),
    "the client `n` above 1": ({"n": 2, "tool_choice": "required"}, None, False, "required", None),
    "the route `required`, the client nothing or `auto`": ({}, "required", True, "required", "auto"),
    "the route `required`, the client anything else": (
        {"tool_choice": _named("weather")},
        "required",
        True,
        _named("weather"),
        "auto",
    ),
    "the route `none`": ({"tool_choice": "required"}, "none", False, "required", None),
}


@pytest.mark.parametrize("said", CHOICES)
async def test_what_a_request_says_of_tools_does_what_the_page_says(said: str, tmp_path: Path) -> None:
    more, of_route, offered, first, later = CHOICES[said]
    table = rows(
        text_of("turns"),
        "who says what",
        "registry tools",
        "client tools",
        "first round's `tool_choice`",
        "later rounds",
    )
    assert [row["who says what"] for row in table] == [*CHOICES, "anybody, in a round that may only answer"]
    row = table[list(CHOICES).index(said)]
    if row["registry tools"] != "as the client's row says":
        assert (row["registry tools"] == "offered", row["client tools"]) == (offered, "offered")
    route = {"model": "m", "keywords": ["order"], "tools": ["query_order"]}
    if of_route is not None:
        route["tool_choice"] = of_route
    calls = [answer(calls=[call("c1", "query_order", '{"order_id": "SO-2024-0318"}')])] if offered else []
    async with ScriptedUpstream(*calls, answer("It was shipped.")) as upstream:
        async with serving(tmp_path, native_config(upstream.base_url), {"orders": route}, {"orders": ORDERS}) as served:
            status, _, body = await ask(served, "where is my order", tools=[WEATHER], **more)
            assert status == 200, body
        sent = [request.json for request in await upstream.received(2 if offered else 1)]
    assert [request.get("tool_choice") for request in sent] == ([first, later] if offered else [first])
    names = {"weather", "query_order"} if offered else {"weather"}
    assert all({tool["function"]["name"] for tool in request["tools"]} == names for request in sent)


async def test_of_calls_of_both_kinds_ours_are_run_and_the_client_gets_its_own(tmp_path: Path) -> None:
    both = [call("c1", "query_order", '{"order_id": "SO-2024-0318"}'), call("c2", "weather", "{}")]
    route = {"model": "m", "keywords": ["order"], "tools": ["query_order"]}
    async with (
        ScriptedUpstream(answer(calls=both)) as upstream,
        serving(tmp_path, native_config(upstream.base_url), {"orders": route}, {"orders": ORDERS}) as served,
    ):
        _, headers, body = await ask(served, "where is my order", tools=[WEATHER])
        choice = body["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["weather"]
        started = [
            event["data"]["name"] for event in await events_of(served, headers) if event["type"] == "tool.started"
        ]
        assert started == ["query_order"]


async def test_endpoints_of_the_page_are_served_with_and_without_a_key(tmp_path: Path) -> None:
    """`needs` is true: who lacks what an endpoint needs is refused, who has it is not."""
    async with gateway_with(tmp_path) as served:
        for row in rows(text_of("api"), "endpoint", "needs", "does"):
            method, path = code(row["endpoint"])[0].split()
            path = re.sub(r"{\w+_id}", "0" * 32, path.replace("{name}", "fast"))
            chat = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
            if path.endswith("/responses"):
                chat = {"model": "auto", "input": "hello"}
            elif "conversations" in path:
                chat = {}
            results = []
            for key in (None, "trial-key-1", "app-key-1"):
                sent = {} if key is None else {"x_api_key": key}
                body = {} if path.startswith("/v1/config") else chat
                body = {"name": "n"} if path == "/v1/keys" else body
                sending = served.http.request(
                    method,
                    served.url + path,
                    json=None if method == "GET" else body,
                    headers={name.replace("_", "-"): value for name, value in sent.items()},
                )
                async with sending as answer:
                    results.append(answer.status)
                    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-gateway-trace"])
                    assert answer.headers["x-request-id"] == f"req_{answer.headers['x-gateway-trace']}"
            allowed = 404 if "_id}" in row["endpoint"] else 200
            if row["endpoint"] == "`POST /v1/runs`":
                allowed = 400  # a chat is no run of a plugin's type
            if "placeholders" in row["endpoint"]:
                allowed = 400  # a chat names none
            # There is nothing to go back to yet, no effect to run again, and a chat says nothing of one, nor of a key.
            nothing = "rollback" in path or "retry" in path or method == "DELETE"
            done = 404 if nothing else 400 if "settle" in path or "{key_id}" in row["endpoint"] else 200
            needed = {"nothing": [200, 200, 200], "a key": [401, allowed, allowed]}.get(row["needs"], [401, 403, done])
            assert results == needed, row["endpoint"]
