"""Messages with values in the place of placeholders: the way back from `security/masking/messages.py`, for texts that were cut.

Pure. Does not know why a text was cut.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.chat.blocks import Block, Message, Refusal, Text, ToolCall, ToolResult
from gateway.security.masking.unmasking import unmask


def with_values(message: Message, values: Mapping[str, str]) -> Message:
    """The message as it was before it was masked, apart from what was cut."""
    return Message(message.role, tuple(_block(block, values) for block in message.blocks), message.name)


def _block(block: Block, values: Mapping[str, str]) -> Block:
    match block:
        case Text(text):
            return Text(unmask(text, values))
        case Refusal(text):
            return Refusal(unmask(text, values))
        case ToolResult(call_id, text):
            return ToolResult(call_id, unmask(text, values, in_json=text.lstrip()[:1] in ("{", "[")))
        case ToolCall(id_, name, arguments, custom):
            return ToolCall(id_, name, unmask(arguments, values, in_json=not custom), custom)
        case _:
            return block
