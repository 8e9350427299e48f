"""What a response takes of a turn, and what a turn takes of a response's request.

Pure. Does not know how a response is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.chat.blocks import Message, Text
from gateway.chat.codecs.responses import ResponsesRequest
from gateway.chat.codecs.responses_parts import Item
from gateway.chat.usage import WireUsage
from gateway.store.response_records import ConversationItem
from gateway.turn.context import Turn
from gateway.turn.prepare import Wishes

_encode = msgspec.json.Encoder().encode


class BodyChoice(msgspec.Struct):
    """What a response takes of a choice."""

    logprobs: Any = None
    message: dict[str, Any] = {}


class Body(msgspec.Struct):
    """What a response takes of a whole answer's body."""

    choices: list[BodyChoice] = []
    usage: WireUsage | None = None


def spoken(items: Sequence[Item]) -> list[ConversationItem]:
    """Items as a conversation keeps them."""
    return [ConversationItem(str(item["id"]), _encode(item)) for item in items]


def narrowed(wishes: Wishes, request: ResponsesRequest) -> Wishes:
    """The wishes, with what the body says of the same things."""
    only = request.tools.only
    if only is not None:
        wishes = replace(wishes, tools=only if wishes.tools is None else wishes.tools & only)
    continues = request.conversation is not None or request.previous_id is not None
    if wishes.session is None and continues:
        wishes = replace(wishes, session=request.conversation, stored=True)
    return wishes


def used_settings(turn: Turn) -> dict[str, Any]:
    """Settings as the model got them: a route may have filled some in."""
    used: dict[str, Any] = {}
    for name in ("temperature", "top_p"):
        raw = turn.fields.get(name)
        value = msgspec.json.decode(raw) if raw is not None else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            used[name] = value
    return used


def body_of(body: bytes | None) -> Body:
    """A body as far as it is read here; an empty one where there is none."""
    if body is None:
        return Body()
    try:
        return msgspec.json.decode(body, type=Body)
    except msgspec.DecodeError:
        return Body()


def behind(message: Message, told: str) -> Message:
    """What of a message no item holds yet."""
    text = message.text
    if not told or not text.startswith(told):
        return message
    rest = text[len(told) :]
    others = tuple(block for block in message.blocks if not isinstance(block, Text))
    return Message(message.role, (*others, *((Text(rest),) if rest else ())), message.name)
