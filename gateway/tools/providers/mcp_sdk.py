"""When the MCP SDK is imported: once a server is configured, and in a thread, for it takes seconds.

Knows how a session is made for a server, and what of a session others may use without importing the SDK themselves.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.config.mcp_servers import McpServerConfig
from gateway.security.outbound import OutboundGuard
from gateway.tools.outcome import TransportFailed
from gateway.tools.remote import RemoteTool

_HEAVY: Final = "gateway.tools.providers.mcp_link"


class SessionGone(TransportFailed):
    """The server does not know this session any more; the call was not made."""

    def __init__(self) -> None:
        super().__init__("the session has ended", processed=False)


class Link(Protocol):
    """A session; see `mcp_link.McpLink`."""

    gone: asyncio.Event
    words: deque[str]

    async def open(self, timeout_s: float) -> None:
        """Start it, or raise `TransportFailed`."""
        ...

    async def list(self) -> tuple[RemoteTool, ...]:
        """The server's tools, or raise `TransportFailed`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool by the server's own name for it."""
        ...

    async def close(self) -> None:
        """End it; bounded."""
        ...


# Makes a session that is not open yet; what it is given is told when the server says that its tools have changed.
MakeLink = Callable[[Callable[[], None] | None], Awaitable[Link]]


def link_maker(name: str, config: McpServerConfig, guard: OutboundGuard, root: Path, patience_s: float) -> MakeLink:
    """How sessions with one server are made.

    Args:
        name: the server's.
        config: how it is reached.
        guard: which addresses may be reached.
        root: where its program starts.
        patience_s: seconds one request over HTTP may stay without its answer.
    """
    command, url = config.command, config.url

    async def make(changed: Callable[[], None] | None) -> Link:
        await asyncio.to_thread(importlib.import_module, _HEAVY)
        from gateway.tools.providers.mcp_http import http_streams
        from gateway.tools.providers.mcp_link import McpLink
        from gateway.tools.providers.mcp_stdio import child_streams

        if command is not None:
            link = McpLink(
                name,
                lambda: child_streams(name, command, config.args, config.env, root, link.words.append),
                changed,
            )
            return link
        assert url is not None, "either is set"
        return McpLink(name, lambda: http_streams(url, config.headers, guard, patience_s), changed)

    return make
