"""MCP servers behind a whole gateway: what models are offered, what clients are told, and how changes come into service."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.serving import Served, native_config, serving
from tests.tools.mcp_http_script import http_script
from tests.tools.mcp_scripted import WAIT_S, offer, remote, scripted, until
from tests.upstream import Reply, Script, ScriptedUpstream, UpstreamRequest, answer, call, strict_history

ASK = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
PLUGIN = """
from gateway.tools import tool

@tool
async def send_email(to: str) -> str:
    "Send an email."
    return "python"

def register(registry): registry.add(send_email)
"""


@asynccontextmanager
async def gateway(
    folder: Path,
    *script: Script,
    mcp: Mapping[str, Any],
    tools: list[str] | None = None,
    plugins: Mapping[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    config = {"mcp": dict(mcp), "plugins": [], "offer": "always", "default": tools or [], **more}
    async with (
        ScriptedUpstream(*script, then=answer("done")) as upstream,
        serving(folder, native_config(upstream.base_url, tools=config), plugins=plugins) as served,
    ):
        yield served, upstream


def checked(reply: Reply) -> Script:
    def check(request: UpstreamRequest) -> Reply:
        return strict_history(request) or reply

    return check


def asks(call_id: str, name: str, arguments: str) -> Reply:
    return answer(calls=[call(call_id, name, arguments)])


def offered(request: UpstreamRequest) -> list[str]:
    return [each["function"]["name"] for each in request.json.get("tools", [])]


def result(request: UpstreamRequest) -> Any:
    return json.loads(request.messages[-1]["content"])


async def ask(served: Served, **more: Any) -> str:
    status, _, body = await served.post("/v1/chat/completions", {**ASK, **more})
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


async def test_b027_tools_of_one_name_are_told_apart_whatever_their_order(tmp_path: Path) -> None:
    mine = {"type": "function", "function": {"name": "send_email", "parameters": {"type": "object"}}}
    for order in (("mail", "promo"), ("promo", "mail")):
        folder = tmp_path / order[0]
        for name in order:
            (folder / name).mkdir(parents=True)
            offer(folder / name, remote("send_email", f"From {name}."))
        async with gateway(
            folder,
            asks("c1", "mail__send_email", "{}"),
            asks("c2", "promo__send_email", "{}"),
            asks("c3", "send_email", '{"to": "a"}'),
            asks("c4", "gateway__send_email", '{"to": "a"}'),
            mcp={name: scripted(folder / name) for name in order},
            tools=["mail__send_email", "promo__send_email", "send_email"],
            plugins={"mail": PLUGIN},
        ) as (served, upstream):
            await ask(served)
            assert offered(upstream.requests[0]) == ["mail__send_email", "promo__send_email", "send_email"]
            assert [(folder / name / "calls").read_text() for name in order] == ["send_email\n", "send_email\n"]
            assert result(upstream.requests[3]) == {"ok": True, "result": "python"}
            # A client's tool keeps its name; ours of that name is offered under another.
            await ask(served, tools=[mine])
            assert offered(upstream.requests[-1]) == [
                "send_email", "mail__send_email", "promo__send_email", "gateway__send_email",
            ]  # fmt: skip


async def test_b027_a_short_name_that_means_two_tools_is_refused_with_both(tmp_path: Path) -> None:
    async with gateway(
        tmp_path, mcp={"a": scripted(tmp_path / "a"), "b": scripted(tmp_path / "b")}, tools=["a__echo"]
    ) as (served, _):
        config = (served.folder / "gateway.yaml").read_text()
        (served.folder / "gateway.yaml").write_text(config.replace("- a__echo", "- echo"))
        status, _, body = await served.post("/v1/reload", {})
        assert status == 400, body
        assert "`echo` may mean `a__echo` or `b__echo`" in json.dumps(body)


async def test_b028_a_tool_of_any_name_is_called_by_the_name_it_is_offered_under(tmp_path: Path) -> None:
    names = ["agenda.replyInvite", "account/email-change", "Lint results viewer", "天气查询", "x" * 65, "x" * 66]
    (tmp_path / "any").mkdir()
    offer(tmp_path / "any", *(remote(name, "Does it.") for name in names))

    def call_next(request: UpstreamRequest) -> Reply:
        done = sum(message["role"] == "tool" for message in request.messages)
        return strict_history(request) or asks(f"c{done}", offered(request)[done], "{}")

    async with gateway(
        tmp_path,
        *[call_next] * len(names),
        mcp={"any": scripted(tmp_path / "any", allow=names)},
        # In files they stand in the server's own letters, with the server's name or without.
        tools=[f"any__{names[0]}", *names[1:]],
        max_rounds=10,
    ) as (served, upstream):
        assert await ask(served) == "done"
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in offered(upstream.requests[0]))
        assert (tmp_path / "any" / "calls").read_text().splitlines() == names
        _, _, listed = await served.get("/v1/tools")
        assert [each["remote_name"] for each in listed["data"]] == names


async def test_a_short_name_serves_while_it_is_unique(tmp_path: Path) -> None:
    async with gateway(
        tmp_path, asks("c5", "echo", '{"text": "hi"}'), mcp={"docs": scripted(tmp_path / "docs")}, tools=["echo"]
    ) as (served, upstream):
        await ask(served)
        assert offered(upstream.requests[0]) == ["docs__echo"]
        assert result(upstream.requests[1]) == {"ok": True, "result": "hi"}
        theirs = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}
        upstream.enqueue(asks("c6", "echo", "{}"))
        _, _, body = await served.post("/v1/chat/completions", {**ASK, "tools": [theirs]})
        assert body["choices"][0]["finish_reason"] == "tool_calls", "the client's own tool of that name is the client's"


async def test_b030_a_server_that_dies_in_a_call_costs_that_call_alone(tmp_path: Path) -> None:
    async with gateway(
        tmp_path,
        asks("c7", "docs__die", "{}"),
        checked(asks("c8", "docs__echo", '{"text": "back"}')),
        mcp={"docs": scripted(tmp_path / "docs")},
        tools=["docs__die", "docs__echo"],
    ) as (served, upstream):
        async with asyncio.timeout(WAIT_S):
            assert await ask(served) == "done"
        first, second = (json.loads(m["content"]) for m in upstream.requests[2].messages if m["role"] == "tool")
        assert not first["ok"]
        assert "the MCP server `docs` failed" in first["error"]
        assert second == {"ok": True, "result": "back"}


async def test_a_changed_list_raises_the_version_and_comes_into_service(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    async with gateway(tmp_path, mcp={"docs": scripted(docs)}, tools=["docs__echo"]) as (served, _):
        _, _, before = await served.get("/v1/config")
        # Files that are edited meanwhile wait for whoever asks for them.
        (served.folder / "gateway.yaml").write_text("nonsense")
        offer(docs, remote("forecast", "Forecast."))
        versions = served.gateway.versions
        await until(lambda: "docs__forecast" in versions.current.tools.specs, "the new tool is served")
        _, _, after = await served.get("/v1/config")
        assert after["generation"] == before["generation"] + 1
        assert after["version"].split("-")[1] != before["version"].split("-")[1]
        assert after["last_error"] is None


async def test_b044_what_a_pinned_server_changes_waits_for_its_lock(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    offer(docs, remote("notes", "Stores a note."))
    async with gateway(tmp_path, mcp={"docs": scripted(docs, pin=True)}, tools=["docs__notes"]) as (served, upstream):
        await ask(served)
        assert offered(upstream.requests[-1]) == [], "nothing is agreed to yet"


async def test_a_required_server_that_is_away_makes_the_gateway_not_ready(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "refuse").touch()
    async with gateway(tmp_path, mcp={"docs": scripted(docs, required=True)}, tools=["docs__echo"]) as (
        served,
        upstream,
    ):
        status, _, body = await served.get("/readyz")
        assert (status, body["error"]["code"]) == (503, "tools_unavailable")
        assert await ask(served) == "done", "what needs no tool is served all the same"
        assert offered(upstream.requests[0]) == []
        (docs / "refuse").unlink()
        versions = served.gateway.versions
        await until(lambda: "docs__echo" in versions.current.tools.specs, "the server came")
        assert (await served.get("/readyz"))[0] == 200
        await ask(served)
        assert offered(upstream.requests[-1]) == ["docs__echo"]


async def test_b043_no_header_of_a_client_reaches_a_server(tmp_path: Path) -> None:
    async with http_script() as script:
        servers = {
            "far": {"url": script.url},
            "own": {"url": script.url, "headers": {"Authorization": "Bearer theirs"}},
        }
        async with gateway(
            tmp_path,
            asks("c9", "far__whoami", "{}"),
            asks("c10", "own__whoami", "{}"),
            mcp=servers,
            tools=["far__whoami", "own__whoami"],
            outbound={"allow_private": ["127.0.0.1"]},
        ) as (served, upstream):
            headers = {
                "Authorization": "Bearer gw-KEY-1",
                "Cookie": "s=1",
                "X_Internal": "1",
                "X_Forwarded_For": "10.1.1.1",
                "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
                "baggage": "user=ann",
            }
            status, _, body = await served.post("/v1/chat/completions", ASK, **headers)
            assert status == 200, body
            assert all(json.loads(m["content"])["ok"] for m in upstream.requests[2].messages if m["role"] == "tool")
        sent = json.dumps([dict(each) for each in script.headers])
        assert not [
            said for said in ("gw-KEY-1", "s=1", "internal", "forwarded", "traceparent", "baggage") if said in sent
        ]
        assert {each.get("authorization") for each in script.headers} == {None, "Bearer theirs"}
