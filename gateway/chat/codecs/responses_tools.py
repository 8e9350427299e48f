"""Tools of the Responses API in Chat Completions' form, and the way back.

Pure. Functions and custom tools translate; the functions of a `namespace` are offered under flat names and called back by
their own; kinds that a service runs on its own side (`web_search`, …) are left out, because no backend here knows them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.chat.request import ClientTool, ToolChoice
from gateway.errors import InvalidRequest

# The longest name that OpenAI takes.
_LONGEST_NAME: Final = 64

_encode = msgspec.json.Encoder().encode


class Offered(msgspec.Struct, frozen=True):
    """The tools of a request.

    Attributes:
        tools: as they are offered.
        shown: as the response repeats them, with every field that OpenAI's schema requires.
        left_out: the kinds that are not offered, in order.
        choice: the `tool_choice` they go with, or None.
        only: names the registry's tools are narrowed to, or None.
        spaces: namespace and name of tools that are offered under a flat name.
    """

    tools: tuple[ClientTool, ...] = ()
    shown: tuple[dict[str, Any], ...] = ()
    left_out: tuple[str, ...] = ()
    choice: ToolChoice | None = None
    only: frozenset[str] | None = None
    spaces: Mapping[str, tuple[str, str]] = {}


def flat_name(space: str | None, name: str) -> str:
    """What a tool of a namespace is called inside: the same for every request."""
    if not space:
        return name
    flat = f"{space}__{name}"
    if len(flat) <= _LONGEST_NAME:
        return flat
    return f"{flat[: _LONGEST_NAME - 9]}_{hashlib.sha256(flat.encode()).hexdigest()[:8]}"


def offer(tools: Sequence[dict[str, Any]], choice: Any) -> Offered:
    """Read `tools` and `tool_choice`.

    Raises:
        InvalidRequest: one of them is malformed, or the choice forces what is not offered.
    """
    offered: list[ClientTool] = []
    shown: list[dict[str, Any]] = []
    missing: dict[str, None] = {}
    spaces: dict[str, tuple[str, str]] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise InvalidRequest(f"`{where}.type` must be a string.", param=f"{where}.type")
        if kind in ("function", "custom"):
            offered.append(_tool(tool, None, where))
            shown.append(_shown(tool))
        elif kind == "namespace":
            space, inner = tool.get("name"), tool.get("tools")
            if not isinstance(space, str) or not space or not isinstance(inner, list):
                raise InvalidRequest(f"`{where}` needs `name` and `tools`.", param=where)
            for place, each in enumerate(inner):
                spot = f"{where}.tools[{place}]"
                if not isinstance(each, dict) or each.get("type", "function") not in ("function", "custom"):
                    raise InvalidRequest(f"`{spot}` must be a function or a custom tool.", param=spot)
                made = _tool(each, space, spot)
                offered.append(made)
                spaces[made.name] = (space, str(each["name"]))
            shown.append({**tool, "tools": [_shown(each) for each in inner]})
        else:
            missing[kind] = None
    names: set[str] = set()
    for made in offered:
        if made.name in names:
            raise InvalidRequest(f"`tools` names {made.name!r} twice.", param="tools")
        names.add(made.name)
    offered, wanted, only = _chosen(offered, choice, missing)
    return Offered(tuple(offered), tuple(shown), tuple(missing), wanted, only, spaces)


def _tool(tool: dict[str, Any], space: str | None, where: str) -> ClientTool:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"`{where}.name` is missing.", param=f"{where}.name")
    flat = flat_name(space, name)
    if tool.get("type") == "custom":
        custom: dict[str, Any] = {"name": flat, **_given(tool, "description")}
        form = tool.get("format")
        if isinstance(form, dict):
            grammar = {key: form[key] for key in ("definition", "syntax") if key in form}
            custom["format"] = {"type": "grammar", "grammar": grammar} if form.get("type") == "grammar" else form
        return ClientTool(flat, _encode({"type": "custom", "custom": custom}))
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(f"`{where}.parameters` must be an object.", param=f"{where}.parameters")
    function = {"name": flat, **_given(tool, "description", "parameters", "strict")}
    return ClientTool(flat, _encode({"type": "function", "function": function}))


def _given(tool: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: tool[name] for name in names if tool.get(name) is not None}


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        return tool
    return {"type": "function", "description": None, "parameters": None, "strict": None, **tool}


def _chosen(
    offered: list[ClientTool], choice: Any, missing: Mapping[str, None]
) -> tuple[list[ClientTool], ToolChoice | None, frozenset[str] | None]:
    if choice is None:
        return offered, None, None
    if choice in ("auto", "none", "required"):
        return offered, ToolChoice(choice, None, _encode(choice)), None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(kind, str):
        kind = ""
    if kind == "allowed_tools":
        return _allowed(offered, choice)
    if kind in ("function", "custom", "mcp"):
        name = choice.get("name")
        if not isinstance(name, str):
            if kind == "mcp":
                return offered, ToolChoice("required", None, b'"required"'), None
            raise InvalidRequest("`tool_choice.name` must be a string.", param="tool_choice")
        flat = flat_name(_space(choice), name)
        if kind == "custom":
            if flat not in {tool.name for tool in offered}:
                raise InvalidRequest(f"`tool_choice` names {name!r}, which is not offered.", param="tool_choice")
            return offered, ToolChoice("other", None, _encode({"type": "custom", "custom": {"name": flat}})), None
        wire = _encode({"type": "function", "function": {"name": flat}})
        return offered, ToolChoice("named", flat, wire), None
    if kind in missing:
        raise InvalidRequest(f"`tool_choice` forces {kind!r}, which is not offered here.", param="tool_choice")
    raise InvalidRequest(
        "`tool_choice` must be auto, none, required, allowed_tools or a named function.", param="tool_choice"
    )


def _space(value: Mapping[str, Any]) -> str | None:
    space = value.get("namespace")
    return space if isinstance(space, str) else None


def _allowed(
    offered: list[ClientTool], choice: Mapping[str, Any]
) -> tuple[list[ClientTool], ToolChoice, frozenset[str]]:
    """Tools are narrowed here: few servers know the list themselves."""
    mode, tools = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(tools, list):
        raise InvalidRequest("`tool_choice` needs `mode` (auto, required) and `tools`.", param="tool_choice")
    names = frozenset(
        flat_name(_space(tool), tool["name"])
        for tool in tools
        if isinstance(tool, dict) and isinstance(tool.get("name"), str)
    )
    kept = [tool for tool in offered if tool.name in names]
    return kept, ToolChoice(mode, None, _encode(mode)), names
