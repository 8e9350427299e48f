"""How many tokens a conversation takes, by estimate.

Pure. Errs to the high side and never by an exception; adding a message never lowers a count. What a backend reports
corrects the estimate (`ratio.py`). Does not know tokenisers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.chat.blocks import Audio, Block, Image, Message, Reasoning, Refusal, Text, ToolCall, ToolResult, Unknown

# What a message costs beside its words, and a picture of ordinary size; one asked for in `detail: low` costs this everywhere.
MESSAGE_TOKENS: Final = 4
_IMAGE_TOKENS: Final = 765
_LOW_IMAGE_TOKENS: Final = 85
# English prose holds four letters a token; JSON, numbers and identifiers three.
_PROSE: Final = 4
_DENSE: Final = 3
# Sound in base64: some 25 tokens a second of 16 kHz, 16 bit.
_AUDIO_BYTES: Final = 1_600
# Files travel in base64: what is read out of them is less.
_FILE_BYTES: Final = 10_000
# No estimate exceeds this many tokens a byte: whatever is shorter needs no look at its words.
_MOST_A_BYTE: Final = 0.4
_ROOM_A_MESSAGE: Final = 8

# Their bytes say little of what they take.
_ODD: Final = frozenset({Image, Audio, Unknown})

_encode = msgspec.json.Encoder().encode


def text_tokens(text: str, *, dense: bool = False) -> int:
    """A text's tokens: one for each character of a script without letters, one for four (`dense`: three) others."""
    size = len(text)
    letters = _DENSE if dense else _PROSE
    if text.isascii():
        return -(-size // letters)
    # UTF-8 gives a Han character three bytes, two more than it counts.
    wide = (len(text.encode("utf-8", "surrogatepass")) - size) / 2
    return int(wide + max(0.0, size - wide) / letters) + 1


def message_tokens(message: Message) -> int:
    """A message's tokens, calls, results, pictures and parts nobody knows included."""
    tokens = MESSAGE_TOKENS
    for block in message.blocks:
        tokens += _block_tokens(block)
    return tokens


def conversation_tokens(messages: Sequence[Message]) -> int:
    """The tokens of all of them."""
    return sum([message_tokens(message) for message in messages])


def tools_tokens(fields: Mapping[str, msgspec.Raw]) -> int:
    """What the offer of tools and the wanted shape of the answer take."""
    size = 0
    for name in ("tools", "functions", "response_format"):
        raw = fields.get(name)
        if raw is not None:
            size += len(bytes(raw))
    return -(-size // _DENSE)


def at_most(messages: Sequence[Message]) -> int | None:
    """A bound no estimate exceeds, found without reading a word; None where that cannot be said."""
    size = 0
    for message in messages:
        if message.wire is not None:
            size += len(message.wire)
            for block in message.blocks:
                if type(block) in _ODD:
                    return None
        else:
            for block in message.blocks:
                match block:
                    case Text(text) | Reasoning(text) | Refusal(text):
                        size += 4 * len(text)
                    case ToolResult(_, text):
                        size += 4 * len(text)
                    case ToolCall(_, name, arguments):
                        size += 4 * (len(name) + len(arguments))
                    case _:
                        return None
    return int(size * _MOST_A_BYTE) + _ROOM_A_MESSAGE * len(messages)


def _block_tokens(block: Block) -> int:
    match block:
        case Text(text) | Refusal(text) | Reasoning(text):
            return text_tokens(text)
        case ToolCall(_, name, arguments):
            return text_tokens(name) + text_tokens(arguments, dense=True) + MESSAGE_TOKENS
        case ToolResult(_, text):
            return text_tokens(text, dense=True)
        case Image(_, detail):
            return _LOW_IMAGE_TOKENS if detail == "low" else _IMAGE_TOKENS
        case Audio(data):
            return MESSAGE_TOKENS + len(data) // _AUDIO_BYTES
        case Unknown(_, value):
            size = len(_encode(value))
            return 100 + size // 16 if size > _FILE_BYTES else MESSAGE_TOKENS + size // _DENSE
