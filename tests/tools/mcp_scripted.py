"""The scripted MCP server as tests hold it: its folder, and the provider over it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.config.models import ToolsConfig
from gateway.errors import Problem
from gateway.security.outbound import OutboundGuard
from gateway.tools.providers.mcp import McpProvider
from gateway.tools.providers.mcp_server import McpServer
from gateway.tools.providers.mcp_servers import McpServers
from gateway.tools.remote import RemoteTool

SCRIPT = Path(__file__).with_name("mcp_script.py")
# Generous: a busy machine starts processes slowly.
WAIT_S = 30.0


def scripted(folder: Path, **more: Any) -> dict[str, Any]:
    """The configuration of the server whose state is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"command": sys.executable, "args": ["-I", "-S", str(SCRIPT), str(folder)], **more}


def offer(folder: Path, *tools: dict[str, Any]) -> None:
    """What the server offers beside its own tools from now on."""
    beside = folder / "tools.new"
    beside.write_text(json.dumps(tools))
    beside.replace(folder / "tools.json")


def remote(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": schema}}


def lines(folder: Path, file: str) -> list[str]:
    path = folder / file
    return path.read_text().split() if path.exists() else []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(true: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> None:
    async with asyncio.timeout(wait_s):
        while not true():
            await asyncio.sleep(0.02)
    assert true(), what


class Shop:
    """MCP providers over one set of servers."""

    def __init__(self, config: ToolsConfig) -> None:
        self.config = config
        self.servers = McpServers(Path())
        self.guard = OutboundGuard(config.outbound)

    def server(self, name: str) -> McpServer:
        """A server that some provider holds."""
        server = self.servers.servers(self.config)[name]
        assert server is not None
        return server

    def provider(self, name: str, locked: Sequence[RemoteTool] | None = None) -> McpProvider:
        return McpProvider(
            name,
            self.config.mcp[name],
            self.servers.take(name, self.config.mcp[name], self.config, self.guard),
            locked,
            self.servers.put_back,
            timeout_s=self.config.timeout_s,
            place=Problem("gateway.yaml", 1, ""),
        )


@asynccontextmanager
async def shop(**config: Any) -> AsyncIterator[Shop]:
    made = Shop(ToolsConfig.model_validate(config))
    try:
        yield made
    finally:
        await made.servers.close()
