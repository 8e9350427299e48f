"""The MCP servers of a process: a version takes those it names, and the last one that gives a server back ends it.

Knows which configurations mean the same server. Does not know tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.config.mcp_servers import McpServerConfig
from gateway.config.models import ToolsConfig
from gateway.security.outbound import OutboundGuard
from gateway.tools.providers.mcp_sdk import link_maker
from gateway.tools.providers.mcp_server import McpServer

# A request over HTTP is given up when the call it belongs to has long been.
_PATIENCE: Final = 6.0
_CLOSE_S: Final = 15.0


class McpServers:
    """Servers by what they are configured as.

    Args:
        root: where their programs start.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listener: Callable[[], None] | None = None
        self._missed = False
        self._held: dict[str, tuple[McpServer, int]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def listen(self, changed: Callable[[], None]) -> None:
        """Tell `changed`, from now on, when a server offers other tools than the last version was built with."""
        self._listener = changed
        if self._missed:
            changed()

    def take(self, name: str, config: McpServerConfig, tools: ToolsConfig, guard: OutboundGuard) -> McpServer:
        """The server, started if it does not run yet. To be given back."""
        key = _key(name, config, tools)
        server, users = self._held.get(key) or (self._start(name, config, tools, guard), 0)
        self._held[key] = (server, users + 1)
        return server

    def put_back(self, server: McpServer) -> None:
        """Give it back, once. Nobody has to wait for its end."""
        for key, (held, users) in list(self._held.items()):
            if held is not server:
                continue
            if users > 1:
                self._held[key] = (held, users - 1)
                return
            del self._held[key]
            task = asyncio.create_task(server.close(), name=f"closing mcp server {server.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def away(self, tools: ToolsConfig) -> tuple[str, ...]:
        """The required servers that cannot be reached now."""
        return tuple(
            name
            for name, server in self.servers(tools).items()
            if tools.mcp[name].required and (server is None or server.error is not None)
        )

    def servers(self, tools: ToolsConfig) -> dict[str, McpServer | None]:
        """The servers that these settings name, as far as somebody holds them."""
        return {name: self._held.get(_key(name, config, tools), (None, 0))[0] for name, config in tools.mcp.items()}

    async def close(self) -> None:
        """Wait for those that are about to end; bounded."""
        for server, _ in list(self._held.values()):
            self.put_back(server)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_S)

    def _start(self, name: str, config: McpServerConfig, tools: ToolsConfig, guard: OutboundGuard) -> McpServer:
        make = link_maker(name, config, guard, self._root, tools.timeout_s * _PATIENCE)
        return McpServer(name, make, self._tell, per_owner=config.url is not None)

    def _tell(self) -> None:
        if self._listener is None:
            self._missed = True
        else:
            self._listener()


def _key(name: str, config: McpServerConfig, tools: ToolsConfig) -> str:
    # What is offered of it, and whether it has to be there, is not what the server is.
    reached = config.model_dump(mode="json", include={"command", "args", "env", "url", "headers"})
    return repr((name, reached, tools.outbound if config.url is not None else None, tools.timeout_s))
