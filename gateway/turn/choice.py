"""`tool_choice`, round for round.

Pure. Knows the client's word, the route's, and which of both holds when; the table is in `docs/turns.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.request import ChatRequest
from gateway.config.models import RouteConfig
from gateway.errors import InvalidRequest

NONE = b'"none"'
_AUTO = b'"auto"'
_REQUIRED = b'"required"'

_encode = msgspec.json.Encoder().encode


def first_choice(
    request: ChatRequest, route: RouteConfig | None, offered: Collection[str], *, has_tools: bool
) -> bytes | None:
    """The first round's `tool_choice`, encoded. A choice without anything to choose from never goes upstream.

    Raises:
        InvalidRequest: the client chose what is not there.
    """
    choice = request.tool_choice
    if choice is not None and choice.mode == "named":
        names = {tool.name for tool in request.tools} | set(offered)
        if choice.name not in names:
            raise InvalidRequest(f"`tool_choice` names {choice.name!r}, which is not offered.", param="tool_choice")
    if not has_tools:
        if choice is not None and choice.mode == "required":
            raise InvalidRequest("`tool_choice` is `required`, but no tools are offered.", param="tool_choice")
        return None
    if requires_tool(request, route):
        return _REQUIRED
    return choice.wire if choice is not None else None


def requires_tool(request: ChatRequest, route: RouteConfig | None) -> bool:
    """Whether the route's `tool_choice: required` holds: the client left the choice to the model, and no tool has been used
    since the user last spoke.
    """
    if route is None or route.tool_choice != "required":
        return False
    left_open = request.tool_choice is None or request.tool_choice.mode == "auto"
    return left_open and not _used(request.messages)


def later_choice(first: bytes | None) -> bytes | None:
    """What holds from the second round on: a forced choice is left to the model then, or it could never answer."""
    if first is None or first in (_AUTO, NONE):
        return first
    value: Any = msgspec.json.decode(first)
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        # Which tools are allowed goes on to hold, that one has to be called does not.
        inner = value.get("allowed_tools")
        freed = {**inner, "mode": "auto"} if isinstance(inner, dict) else None
        return _encode({**value, "allowed_tools": freed} if freed is not None else {**value, "mode": "auto"})
    return _AUTO


def _used(messages: Sequence[Message]) -> bool:
    for message in reversed(messages):
        if message.role == "user":
            return False
        if message.role == "tool":
            return True
    return False
