"""Thoughts of the rounds before, sent back to the model that had them.

Pure. Some servers refuse a call whose thoughts are missing, others refuse the field: who gets it is the backend's to know.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.chat.blocks import Message, Reasoning
from gateway.chat.codecs.chat_completions import encode_message

REASONING_CONTENT: Final = "reasoning_content"
# As servers of DeepSeek word it: that the field must be passed back, or is missing in a message.
_MISSED: Final = re.compile(
    rb"missing[^.]{0,40}reasoning_content|reasoning_content[^.]{0,60}(?:must be|is required|is missing)", re.IGNORECASE
)

_encode = msgspec.json.Encoder().encode
_decode_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def encode_with_reasoning(message: Message, field: str) -> bytes:
    """The message as `encode_message` writes it, and where it asks for calls, its thoughts under this field.

    The field stands there even where there are no thoughts: servers that want it want it on every such message.
    """
    encoded = encode_message(message)
    if message.role != "assistant" or not message.tool_calls:
        return encoded
    top = _decode_top(encoded)
    if field in top:
        return encoded
    thought = "".join(block.text for block in message.blocks if isinstance(block, Reasoning))
    return _encode({**top, field: thought})


def misses_reasoning(refusal: bytes) -> bool:
    """Whether a server refused a request because the thoughts behind its calls are not in it."""
    return _MISSED.search(refusal) is not None
