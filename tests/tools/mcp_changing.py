"""A server of the official SDK that learns tools while it runs, and tells who listens: `mcp_changing.py [PORT]`.

Over stdio, or over streamable HTTP on a port of this machine.
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("changing")


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Learn a tool of this name."""

    def learnt() -> str:
        return f"I am {name}"

    server.add_tool(learnt, name=name, description="Tell who it is.")
    await ctx.notify_tools_changed()
    return f"learnt {name}"


@server.tool()
async def forget(name: str, ctx: Context) -> str:
    """Forget the tool of this name."""
    server.remove_tool(name)
    await ctx.notify_tools_changed()
    return f"forgot {name}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
