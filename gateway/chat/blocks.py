"""What a message is inside, whatever API it came by.

Pure values. Chat Completions, Responses and Messages are codecs that read and write these. As all values that a request is made
of, they lead to nothing that leads back to them: the garbage collector has no need to look at them (`gc=False`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, tag="text", gc=False):
    """Plain text."""

    text: str


class Image(msgspec.Struct, frozen=True, tag="image", gc=False):
    """An image by URL or data URL; `detail` as the client gave it."""

    url: str
    detail: str | None = None


class Audio(msgspec.Struct, frozen=True, tag="audio", gc=False):
    """Recorded sound: base64 `data` in `format` (`wav`, `mp3`)."""

    data: str
    format: str


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call", gc=False):
    """A call the model asked for. `arguments` is the text the model wrote, JSON or not.

    `custom` marks a call of a custom tool, whose input is free text: always the client's to run.
    """

    id: str
    name: str
    arguments: str
    custom: bool = False


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", gc=False):
    """What came of a call; `call_id` pairs it."""

    call_id: str
    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning", gc=False):
    """Thoughts the model showed."""

    text: str


class Refusal(msgspec.Struct, frozen=True, tag="refusal", gc=False):
    """The model's words for not answering."""

    text: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown", gc=False):
    """A part of a kind this version does not read; travels through as it is."""

    kind: str
    value: Any


Block = Text | Image | Audio | ToolCall | ToolResult | Reasoning | Refusal | Unknown


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message: a role and its blocks in order.

    `wire` is the message's JSON in Chat Completions' form exactly as it came, where it came that way; a codec that
    writes the same form writes these bytes.
    """

    role: Role
    blocks: tuple[Block, ...]
    name: str | None = None
    wire: bytes | None = None

    @property
    def text(self) -> str:
        """The message's text blocks, joined by line breaks."""
        if len(self.blocks) == 1:  # most messages
            block = self.blocks[0]
            return block.text if type(block) is Text else ""
        return "\n".join([block.text for block in self.blocks if isinstance(block, Text)])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls in this message."""
        blocks = self.blocks
        if len(blocks) == 1 and type(blocks[0]) is Text:  # most messages
            return ()
        if ToolCall not in map(type, blocks) or self.role != "assistant":
            return ()
        return tuple([block for block in blocks if isinstance(block, ToolCall)])

    @property
    def has_image(self) -> bool:
        """Whether an image is part of it."""
        return Image in map(type, self.blocks)


# For `map`: of long conversations, one thing of each message, without a step of Python for each.
role_of: Final[Callable[[Message], Role]] = attrgetter("role")
wire_of: Final[Callable[[Message], bytes | None]] = attrgetter("wire")
