"""The order of messages as a strict server takes it: one system message in front, no `developer`, users and assistants in turn.

Pure. Only moves and joins: every word of the client's arrives unchanged, and nothing that was said by a user or a tool becomes
a system message. Does not know backends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gateway.chat.blocks import Block, Message, Reasoning, Text

_SIDES: Final = ("user", "assistant")
# Before an assistant's word that nobody asked for, where users have to begin.
_BEGINNING: Final = "(The conversation before this is left out.)"


class Layout(msgspec.Struct, frozen=True):
    """What a server insists on.

    Attributes:
        system_first: system messages stand in front, and there is one at most.
        no_developer: the role `developer` is unknown: it is `system`.
        alternating: a user begins, and users and assistants take turns; tool results belong to the assistant's side.
    """

    system_first: bool = False
    no_developer: bool = False
    alternating: bool = False


def laid_out(messages: tuple[Message, ...], layout: Layout) -> tuple[Message, ...]:
    """The messages in an order that the server takes."""
    out: Sequence[Message] = messages
    if layout.no_developer:
        out = [Message("system", each.blocks, each.name) if each.role == "developer" else each for each in out]
    if layout.system_first:
        out = _system_first(out)
    if layout.alternating:
        out = _alternating(out)
    return tuple(out)


def _system_first(messages: Sequence[Message]) -> Sequence[Message]:
    said = [message for message in messages if message.role in ("system", "developer")]
    if not said or (len(said) == 1 and said[0] is messages[0]):
        return messages
    rest = [message for message in messages if message.role not in ("system", "developer")]
    return [said[0] if len(said) == 1 else _joined(said), *rest]


def _alternating(messages: Sequence[Message]) -> Sequence[Message]:
    out: list[Message] = []
    for message in messages:
        before = out[-1] if out else None
        if before is not None and before.role == message.role and message.role in _SIDES and not before.tool_calls:
            out[-1] = _joined((before, message))
        elif message.role == "assistant" and (before is None or before.role in ("system", "developer")):
            out += [Message("user", (Text(_BEGINNING),)), message]
        else:
            out.append(message)
    return out


def _joined(messages: Iterable[Message]) -> Message:
    """One message that says what these say, in order: one text where they are texts."""
    first, *rest = messages
    blocks: list[Block] = list(first.blocks)
    for message in rest:
        for block in message.blocks:
            last = blocks[-1] if blocks else None
            if isinstance(block, Text) and isinstance(last, Text):
                blocks[-1] = Text(f"{last.text}\n\n{block.text}")
            elif not isinstance(block, Reasoning):
                blocks.append(block)
    return Message(first.role, tuple(blocks), first.name)
