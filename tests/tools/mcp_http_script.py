"""A scripted MCP server over streamable HTTP, in the test's own loop: it remembers requests and sessions, and breaks on demand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

TOOLS = [
    {"name": "whoami", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "break", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "wait", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "huge", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]


class HttpScript:
    """What the server saw and does.

    Attributes:
        url: its endpoint.
        headers: the headers of every request.
        sessions: calls by session.
        status: answered to everything instead, while it is set.
        odd: status, body and content type of the answer to every call instead, while it is set.
        waiting: how many calls of `wait` have come.
        release: lets them go.
    """

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[Mapping[str, str]] = []
        self.sessions: dict[str, list[str]] = {}
        self.status: int | None = None
        self.redirect: str | None = None
        self.odd: tuple[int, str, str] | None = None
        self.tools: list[dict[str, Any]] = list(TOOLS)
        self.waiting = 0
        self.release = asyncio.Event()

    def forget(self) -> None:
        """Every session."""
        self.sessions.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.redirect is not None:
            return web.Response(status=307, headers={"Location": self.redirect})
        if self.status is not None:
            return web.Response(status=self.status)
        if request.method == "GET":
            return web.Response(status=405)
        session = request.headers.get("mcp-session-id")
        if request.method == "DELETE":
            self.sessions.pop(session or "", None)
            return web.Response(status=204)
        message = await request.json()
        if message["method"] == "initialize":
            session = uuid.uuid4().hex
            self.sessions[session] = []
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "http script", "version": "1"},
            }
            return _answer(message, result, {"mcp-session-id": session})
        if message["method"] == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        if session not in self.sessions:
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        if message["method"] == "tools/list":
            return _answer(message, {"tools": self.tools})
        return await self._call(request, message, session)

    async def _call(self, request: web.Request, message: Any, session: str) -> web.StreamResponse:
        name = message["params"]["name"]
        self.sessions[session].append(name)
        if self.odd is not None:
            status, said, kind = self.odd
            return web.Response(status=status, text=said, content_type=kind)
        if name == "break":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if name == "wait":
            self.waiting += 1
            await self.release.wait()
        text = "x" * (9 * 1024 * 1024) if name == "huge" else session
        return _answer(message, {"content": [{"type": "text", "text": text}]})


def _answer(message: Any, result: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


@asynccontextmanager
async def http_script() -> AsyncIterator[HttpScript]:
    """Serve one on a free port."""
    script = HttpScript()
    app = web.Application()
    app.router.add_route("*", "/mcp", script.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        script.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        yield script
    finally:
        script.release.set()
        await runner.cleanup()
