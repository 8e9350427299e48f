"""A list of tools that breaks the protocol, read tool by tool: one that is wrong costs nobody the others.

Knows what servers written without an SDK leave out. Does not know sessions. Imports the MCP SDK's types: `mcp_sdk.py` says when.
"""

from __future__ import annotations

from typing import Any, Final

import pydantic
import structlog
from mcp_types.methods import validate_server_result

_log = structlog.stdlib.get_logger("gateway.tools.mcp")

# What all older versions of the protocol ask of a tool; the newest asks less.
_STRICTEST: Final = "2025-11-25"


def usable_tools(server: str, tools: list[Any]) -> list[Any]:
    """The tools of a list that are as the protocol has them, or can be made so: without a kind of arguments they take an
    object, and a description of results that no client reads is left out.
    """
    usable = []
    for tool in tools:
        made = tool if _is_valid(tool) else _mended(tool)
        if made is not None and _is_valid(made):
            usable.append(made)
        else:
            name = tool.get("name") if isinstance(tool, dict) else None
            reason = f"`{str(name)[:80]}` is not what the protocol calls a tool"
            _log.warning("mcp tools not as expected", server=server, reason=reason)
    return usable


def _mended(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return None
    schema = tool.get("inputSchema")
    if schema is None or isinstance(schema, dict):
        tool = {**tool, "inputSchema": {"type": "object", **(schema or {})}}
    if not _is_valid(tool):
        tool = {key: value for key, value in tool.items() if key != "outputSchema"}
    return tool


def _is_valid(tool: Any) -> bool:
    try:
        validate_server_result("tools/list", _STRICTEST, {"tools": [tool]})
    except pydantic.ValidationError:
        return False
    return True
