"""A chat request as the gateway reads it: a typed view of what is needed, everything else untouched.

Pure values; the codecs make them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from gateway.chat.blocks import Message


class ClientTool(msgspec.Struct, frozen=True, gc=False):
    """A tool the client sent and will run itself. `wire` is its JSON as it came; `name` is empty for unknown kinds."""

    name: str
    wire: bytes


# For `map`, as in `blocks.py`: agents send a hundred tools with every request.
tool_name_of: Final[Callable[[ClientTool], str]] = attrgetter("name")
tool_wire_of: Final[Callable[[ClientTool], bytes]] = attrgetter("wire")


class ToolChoice(msgspec.Struct, frozen=True, gc=False):
    """`tool_choice`: `mode` is `auto`, `none`, `required` or `named`; `name` goes with `named`."""

    mode: str
    name: str | None = None
    wire: bytes = b'"auto"'


class ChatRequest(msgspec.Struct, frozen=True, gc=False):
    """One request.

    Attributes:
        model: the name the client asked for.
        messages: in order, validated for shape and pairing.
        stream: whether the answer is to be streamed.
        include_usage: whether a streamed answer ends with a usage chunk.
        tools: the client's own tools.
        tool_choice: None where the client did not say.
        parallel_tool_calls: None where the client did not say.
        n: how many answers.
        user: `safety_identifier`, else `user`, else None.
        functions: whether the client speaks the older form, `functions` and `function_call`: its answer is written so.
        fields: every other field, raw JSON, unknown ones included.
        approvals: approvals that the conversation carries beside its messages, by id.
    """

    model: str
    messages: tuple[Message, ...]
    stream: bool = False
    include_usage: bool = False
    tools: tuple[ClientTool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    n: int = 1
    user: str | None = None
    fields: Mapping[str, msgspec.Raw] = {}
    functions: bool = False
    approvals: tuple[str, ...] = ()

    @property
    def has_image(self) -> bool:
        """Whether any message carries an image."""
        return any(message.has_image for message in self.messages)
