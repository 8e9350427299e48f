"""The gateway's notes in a conversation: pins, summary and memories, a marked block with the last user message.

Pure. Never a system message: what a user or a tool said is nobody's instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.chat.blocks import Message, Text
from gateway.scribe.marks import BEGIN, END
from gateway.scribe.pins import Pin
from gateway.scribe.tokens import text_tokens

_AROUND: Final = f"{BEGIN}\nEarlier in this conversation:\nFacts that hold:\n{END}\n\n"
AROUND_TOKENS: Final = text_tokens(_AROUND) + 4


class Notes(msgspec.Struct, frozen=True):
    """What is told.

    Attributes:
        pins: facts, in the order they were said.
        summary: of what was cut off; empty where nothing was.
        memories: what is remembered of other conversations, a line each, oldest first.
    """

    pins: tuple[Pin, ...] = ()
    summary: str = ""
    memories: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.pins or self.summary or self.memories)

    @property
    def text(self) -> str:
        """The block. What is newest stands last: pins."""
        lines = [BEGIN]
        if self.memories:
            lines += ["From earlier conversations:", *self.memories]
        if self.summary:
            lines += ["Earlier in this conversation:", self.summary]
        if self.pins:
            lines += ["Facts that hold:", *(f"- {pin.tag}: {pin.told}" for pin in self.pins)]
        return "\n".join([*lines, END])


def pins_tokens(pins: Sequence[Pin]) -> int:
    """What a block with these pins takes."""
    if not pins:
        return 0
    return AROUND_TOKENS + sum([text_tokens(f"- {pin.tag}: {pin.told}") + 1 for pin in pins])


def with_notes(messages: list[Message], notes: Notes) -> None:
    """Put the notes into the last user message, before its own words; nowhere where there is none."""
    if not notes:
        return
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "user":
            first = message.blocks[0] if message.blocks else None
            if isinstance(first, Text):
                blocks = (Text(f"{notes.text}\n\n{first.text}"), *message.blocks[1:])
            else:
                blocks = (Text(notes.text), *message.blocks)
            messages[index] = Message("user", blocks, message.name)
            return
