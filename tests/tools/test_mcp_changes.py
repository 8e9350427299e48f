"""A real server of the official SDK that changes its tools: it tells by `subscriptions/listen`, over both transports."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.providers import mcp_server
from gateway.tools.providers.mcp_link import McpLink
from tests.tools.mcp_scripted import Shop, shop, until
from tests.tools.workshop import context

SERVER = str(Path(__file__).with_name("mcp_changing.py"))
# It is a large program, and a busy machine starts it slowly.
WAIT_S = 90.0


@asynccontextmanager
async def over_http() -> AsyncIterator[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, SERVER, str(port), stdout=quiet, stderr=quiet)
    try:
        yield {
            "mcp": {"changing": {"url": f"http://127.0.0.1:{port}/mcp"}},
            "outbound": {"allow_private": ["127.0.0.1"]},
        }
    finally:
        process.kill()
        await process.wait()


@pytest.fixture(params=["stdio", "http"])
async def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    # Only what it listens to may tell: neither the older notification, nor looking again from time to time.
    monkeypatch.setattr(McpLink, "_heard", _deaf)
    monkeypatch.setattr(mcp_server, "LOOK_S", 3600.0)
    if request.param == "stdio":
        async with shop(mcp={"changing": {"command": sys.executable, "args": [SERVER]}}) as made:
            yield made
    else:
        async with over_http() as config, shop(**config) as made:
            yield made


async def test_a_list_that_changes_is_news_and_another_version_s_tools(store: Shop) -> None:
    news = asyncio.Event()
    first = store.provider("changing")
    server = store.server("changing")
    await until(lambda: server.error is None, "it came", WAIT_S)
    store.servers.listen(news.set)
    assert [spec.name for spec in await first.list()] == ["changing__learn", "changing__forget"]
    hashes = []
    for tool, left in (("learn", ["changing__cook"]), ("forget", [])):
        news.clear()
        await first.call(f"changing__{tool}", {"name": "cook"}, context())
        await asyncio.wait_for(news.wait(), WAIT_S)
        later = store.provider("changing")
        specs = await later.list()
        assert [spec.name for spec in specs] == ["changing__learn", "changing__forget", *left]
        if left:
            assert "I am cook" in str(await later.call("changing__cook", {}, context()))
        hashes.append([spec.spec_hash for spec in specs[:2]])
        await later.close()
    assert hashes[0] == hashes[1], "what did not change is the same tool"
    await first.close()


async def _deaf(self: McpLink, message: Any) -> None:
    return
