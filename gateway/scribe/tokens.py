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
# Characters a token holds: of words, of what has no spaces, of digits, of signs. What UTF-8 gives two bytes (Cyrillic, accents) takes
# half a token, three bytes (Han, kana, Hangul) one, four bytes (emoji) two. Over prose in seven languages, code, JSON, logs and
# identifiers that is 0.93 to 1.9 times what o200k and cl100k count (Hindi in o200k: 4), and 0.85 for base64.
_PROSE: Final = 4.2
_WORDLESS: Final = 1.6
_DIGITS: Final = 2.0
_SIGNS: Final = 1.5
_TWO_BYTES: Final = 0.5
_THREE_BYTES: Final = 1.1
# Letters a word has at most, in a text that is prose.
_WORD: Final = 12
_DENSE: Final = 2.5


def _kind(byte: int) -> int:
    character = chr(byte)
    if byte < 0x80:
        letter = "L" if character.isalpha() else "D" if character.isdigit() else " " if character.isspace() else "P"
        return ord(letter)
    # The first byte of a character tells how many there are; those that follow are no kind.
    return ord("." if byte < 0xC0 else "2" if byte < 0xE0 else "3" if byte < 0xF0 else "4")


_KINDS: Final = bytes(map(_kind, range(256)))
# Sound in base64: some 25 tokens a second of 16 kHz, 16 bit.
_AUDIO_BYTES: Final = 1_600
# Files travel in base64: what is read out of them is less.
_FILE_BYTES: Final = 10_000
# No estimate exceeds this many tokens a byte: whatever is shorter needs no look at its words.
_MOST_A_BYTE: Final = 0.7
_ROOM_A_MESSAGE: Final = 8

# Their bytes say little of what they take.
_ODD: Final = frozenset({Image, Audio, Unknown})

_encode = msgspec.json.Encoder().encode


def text_tokens(text: str) -> int:
    """A text's tokens, by the kinds of its characters."""
    kinds = text.encode("utf-8", "surrogatepass").translate(_KINDS)
    letters, spaces, digits = kinds.count(b"L"), kinds.count(b" "), kinds.count(b"D")
    # What has no spaces, or is full of digits, is no prose: identifiers, base64.
    prose = spaces * _WORD >= letters and digits <= letters
    words = letters / (_PROSE if prose else _WORDLESS) + spaces / _PROSE
    others = digits / _DIGITS + kinds.count(b"P") / _SIGNS
    wide = kinds.count(b"2") * _TWO_BYTES + kinds.count(b"3") * _THREE_BYTES + kinds.count(b"4") * 2
    return int(words + others + wide + 0.999)


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
    return int(size / _DENSE) + 1 if size else 0


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
            return text_tokens(name) + text_tokens(arguments) + MESSAGE_TOKENS
        case ToolResult(_, text):
            return text_tokens(text)
        case Image(_, detail):
            return _LOW_IMAGE_TOKENS if detail == "low" else _IMAGE_TOKENS
        case Audio(data):
            return MESSAGE_TOKENS + len(data) // _AUDIO_BYTES
        case Unknown(_, value):
            size = len(_encode(value))
            return 100 + size // 16 if size > _FILE_BYTES else MESSAGE_TOKENS + int(size / _DENSE)
