"""The MCP provider over a scripted server on a socket: sessions, failures on the way, the outbound guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.tools.outcome import AnswerUnreadable, CallFailed, TransportFailed
from gateway.tools.providers import mcp_sessions
from gateway.tools.providers.mcp import McpProvider
from gateway.tools.spec import ToolContext
from tests.tools.mcp_http_script import HttpScript, http_script
from tests.tools.mcp_scripted import WAIT_S, Shop, shop, until
from tests.tools.workshop import context

LOOPBACK = {"allow_private": ["127.0.0.1"]}


@pytest.fixture
async def script() -> AsyncIterator[HttpScript]:
    async with http_script() as served:
        yield served


@pytest.fixture
async def store(script: HttpScript) -> AsyncIterator[Shop]:
    async with shop(
        mcp={"far": {"url": script.url, "headers": {"Authorization": "Bearer own"}}}, outbound=LOOPBACK
    ) as made:
        yield made


@pytest.fixture
async def far(store: Shop) -> AsyncIterator[McpProvider]:
    provider = store.provider("far")
    assert [spec.name for spec in await provider.list()] == ["far__whoami", "far__break", "far__wait", "far__huge"]
    yield provider
    await provider.close()


def of(key: str, user: str | None = None) -> ToolContext:
    return replace(context(), key=key, user=user)


async def test_each_owner_has_a_session_of_its_own_and_keeps_it(far: McpProvider, script: HttpScript) -> None:
    first = await far.call("far__whoami", {}, of("a"))
    other = await far.call("far__whoami", {}, of("a", "ann"))
    third = await far.call("far__whoami", {}, of("b"))
    assert len({first, other, third}) == 3
    assert await far.call("far__whoami", {}, of("a")) == first
    assert [calls for calls in script.sessions.values() if calls] == [["whoami"] * 2, ["whoami"], ["whoami"]]


async def test_a_session_that_the_server_has_forgotten_is_begun_anew(far: McpProvider, script: HttpScript) -> None:
    first = await far.call("far__whoami", {}, of("a"))
    script.forget()
    assert await far.call("far__whoami", {}, of("a")) != first


async def test_sessions_are_bounded_and_the_one_used_longest_ago_goes(
    far: McpProvider, script: HttpScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_sessions, "MAX_SESSIONS", 2)
    seen = [await far.call("far__whoami", {}, of(key)) for key in "abc"]
    await until(lambda: seen[0] not in script.sessions, "the oldest was ended at the server too")
    assert set(seen[1:]) <= set(script.sessions)


async def test_b030_a_connection_that_breaks_ends_its_own_call_alone(far: McpProvider, script: HttpScript) -> None:
    async with asyncio.timeout(WAIT_S):
        waiting = asyncio.create_task(far.call("far__wait", {}, of("a")))
        await until(lambda: script.waiting, "the other call is on its way")
        with pytest.raises(TransportFailed, match="the connection broke") as broke:
            await far.call("far__break", {}, of("a"))
        assert broke.value.processed
        script.release.set()
        session = await waiting
        assert await far.call("far__whoami", {}, of("a")) == session, "what the server remembers of them is not lost"


@pytest.mark.parametrize(("status", "processed"), [(503, False), (429, False), (502, True)])
async def test_a_server_that_is_overloaded_is_a_failure_on_the_way(
    far: McpProvider, script: HttpScript, status: int, processed: bool
) -> None:
    await far.call("far__whoami", {}, of("a"))
    script.status = status
    with pytest.raises(TransportFailed, match=f"HTTP {status}") as failed:
        await far.call("far__whoami", {}, of("a"))
    assert failed.value.processed is processed
    script.status = None
    assert await far.call("far__whoami", {}, of("a"))


@pytest.mark.parametrize(
    "odd",
    [
        (200, "<html>", "text/html"),
        (202, "", "text/plain"),
        (200, "[]", "application/json"),
        (200, "data: no\n\n", "text/event-stream"),
    ],
)
async def test_an_answer_that_cannot_be_read_does_not_say_that_nothing_happened(
    far: McpProvider, script: HttpScript, odd: tuple[int, str, str]
) -> None:
    script.odd = odd
    with pytest.raises(AnswerUnreadable, match=r"^the server's answer is not what the protocol allows$"):
        await far.call("far__whoami", {}, of("a"))


async def test_refused_credentials_are_told_without_them(far: McpProvider, script: HttpScript) -> None:
    await far.call("far__whoami", {}, of("a"))
    script.status = 401
    with pytest.raises(CallFailed, match="refused our credentials") as refused:
        await far.call("far__whoami", {}, of("a"))
    assert "own" not in str(refused.value)


async def test_an_answer_is_bounded(far: McpProvider) -> None:
    with pytest.raises(TransportFailed, match="larger than"):
        await far.call("far__huge", {}, of("a"))


async def test_b043_only_configured_headers_reach_the_server(far: McpProvider, script: HttpScript) -> None:
    await far.call("far__whoami", {}, of("a"))
    assert {headers.get("authorization") for headers in script.headers} == {"Bearer own"}
    assert {name for headers in script.headers for name in headers} <= {
        "accept", "accept-encoding", "authorization", "cache-control", "content-length", "content-type", "host",
        "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "user-agent",
    }  # fmt: skip


async def test_the_guard_keeps_a_server_from_private_addresses(script: HttpScript) -> None:
    async with shop(mcp={"far": {"url": script.url}}) as store:
        provider = store.provider("far")
        assert await provider.list() == ()
        assert "address not allowed" in provider.told[0].message
        assert script.headers == []
        await provider.close()


async def test_b031_a_redirect_to_elsewhere_is_not_followed(far: McpProvider, script: HttpScript) -> None:
    async with http_script() as elsewhere:
        await far.call("far__whoami", {}, of("a"))
        script.redirect = elsewhere.url
        with pytest.raises(CallFailed, match="not followed"):
            await far.call("far__whoami", {}, of("a"))
        assert elsewhere.headers == []


async def test_a_cancelled_call_goes_at_once(far: McpProvider, script: HttpScript) -> None:
    call: asyncio.Task[Any] = asyncio.create_task(far.call("far__wait", {}, of("a")))
    await until(lambda: script.waiting, "the call is on its way")
    call.cancel()
    _, late = await asyncio.wait({call}, timeout=5)
    assert not late
    assert await far.call("far__whoami", {}, of("a"))
