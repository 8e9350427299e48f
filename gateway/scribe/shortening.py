"""Texts made shorter: their beginning and their end, and a word about what is missing.

Pure.
"""

from __future__ import annotations

from typing import Final

from gateway.chat.blocks import Block, Message, Reasoning, Text, ToolResult
from gateway.scribe.tokens import text_tokens

# Of what is kept, this share is the beginning.
_HEAD: Final = 0.7
# What the word about the rest takes.
_MARK_TOKENS: Final = 16


def shortened(text: str, max_tokens: int) -> str:
    """The text within so many tokens, by the gateway's own estimate; at least a word about its length."""
    tokens = text_tokens(text)
    if tokens <= max_tokens:
        return text
    mark = f"[… {len(text)} characters shortened …]"
    keep = int(len(text) * max(0, max_tokens - _MARK_TOKENS) / tokens)
    # The share that is kept may be denser than the whole.
    while keep > 0:
        head = int(keep * _HEAD)
        tail = keep - head
        out = f"{text[:head]}{mark}{text[-tail:] if tail else ''}"
        if text_tokens(out) <= max_tokens:
            return out
        keep = keep * 3 // 4
    return mark


def both_ends(text: str, most: int) -> str:
    """A text's first and last characters, a line each, where it has more than so many."""
    head = int(most * _HEAD)
    return text if len(text) <= most else f"{text[:head]}\n{text[head - most :]}"


def shortened_message(message: Message, max_tokens: int) -> Message:
    """The message with its result, or its words, within so many tokens; calls stay as they are, thoughts go."""
    blocks: list[Block] = []
    for block in message.blocks:
        match block:
            case ToolResult(call_id, text):
                blocks.append(ToolResult(call_id, shortened(text, max_tokens)))
            case Text(text):
                blocks.append(Text(shortened(text, max_tokens)))
            case Reasoning():
                continue
            case _:
                blocks.append(block)
    return Message(message.role, tuple(blocks), message.name)
