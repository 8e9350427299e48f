"""A list of tools that breaks the protocol, read tool by tool: one that is wrong costs nobody the others.

Knows what servers written without an SDK leave out. Does not know sessions. Imports the MCP SDK's types: `mcp_sdk.py` says when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic
import structlog
from mcp import types

_log = structlog.stdlib.get_logger("gateway.tools.mcp")


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
        tool = {**tool, "inputSchema": {"type": "object", **_without_booleans(schema or {})}}
    if not _is_valid(tool):
        tool = {key: value for key, value in tool.items() if key != "outputSchema"}
    return tool


def _without_booleans(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with objects where older versions of the protocol know no `true` and `false`."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    said: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}
    return {**schema, "properties": {n: said[v] if isinstance(v, bool) else v for n, v in properties.items()}}


def _is_valid(tool: Any) -> bool:
    """As all older versions of the protocol have it; the newest asks less."""
    try:
        made = types.Tool.model_validate(tool, by_name=False)
    except pydantic.ValidationError:
        return False
    return _takes_object(made.input_schema) and (made.output_schema is None or _takes_object(made.output_schema))


def _takes_object(schema: Mapping[str, Any]) -> bool:
    required = schema.get("required") or []
    named = isinstance(required, list) and all(isinstance(name, str) for name in required)
    properties = schema.get("properties")
    if properties is not None:
        named &= isinstance(properties, dict) and all(isinstance(each, dict) for each in properties.values())
    return schema.get("type") == "object" and isinstance(schema.get("$schema", ""), str) and named
