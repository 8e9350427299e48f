"""Which text of a conversation is routed on, how much of it, and how long a conversation roughly is.

Pure. Knows messages; does not know routes or tokenisers.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.chat.blocks import Audio, Image, Message, Reasoning, Refusal, Text, ToolCall, ToolResult
from gateway.routing.noise import without_noise

# Roughly what vision models charge for a picture of ordinary size, and what one message costs beside its text.
_IMAGE_TOKENS = 765
_MESSAGE_TOKENS = 4
# Four letters a token holds for English; UTF-8 gives a Han character three bytes, about what it costs in tokens.
_BYTES_PER_TOKEN = 4
_END_CHARS = 50_000


def routing_text(messages: Sequence[Message]) -> str:
    """The last user message's text parts, joined by line breaks; empty where there is none.

    What programs add to a message (`noise.py`) is blanked out; a message that was nothing else is passed over.
    """
    return routing_texts(messages)[0]


def routing_texts(messages: Sequence[Message]) -> tuple[str, str]:
    """The text that is routed on, and the user's text before it; either may be empty."""
    latest: str | None = None
    for message in reversed(messages):
        if message.role != "user":
            continue
        sent = message.text
        text = without_noise(sent) if "<" in sent else sent
        if text is sent or text.strip() or not sent.strip():
            if latest is not None:
                return latest, text
            latest = text
    return latest or "", ""


def estimate_tokens(messages: Sequence[Message]) -> int:
    """A cheap estimate of the prompt's tokens: right within a factor of two for ordinary prose, never negative."""
    size = 0
    tokens = 0
    for message in messages:
        tokens += _MESSAGE_TOKENS
        for block in message.blocks:
            if type(block) is Text:  # nearly all of them
                text = block.text
                size += len(text) if text.isascii() else _bytes(text)
                continue
            match block:
                case Text(text) | Reasoning(text) | Refusal(text):
                    size += _bytes(text)
                case ToolCall(_, name, arguments):
                    size += _bytes(name) + _bytes(arguments)
                case ToolResult(_, text):
                    size += _bytes(text)
                case Image():
                    tokens += _IMAGE_TOKENS
                case Audio(data):
                    size += len(data) // 16
                case _:
                    pass
    return tokens + -(-size // _BYTES_PER_TOKEN)


def both_ends(text: str) -> str:
    """A text as it is; of one longer than 100,000 characters, the first and the last 50,000 and a line break between.

    Reading a text for keywords takes time in proportion to it, on the event loop; a body of 20 MB would stop everybody.
    """
    if len(text) <= 2 * _END_CHARS:
        return text
    return f"{text[:_END_CHARS]}\n{text[-_END_CHARS:]}"


def as_sent(position: int, length: int) -> int:
    """Where a position in `both_ends(text)` is in `text`, which is `length` characters long."""
    if length <= 2 * _END_CHARS or position <= _END_CHARS:
        return position
    return position - 1 + length - 2 * _END_CHARS


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
