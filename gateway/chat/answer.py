"""A whole answer of a model, as the gateway holds it.

Pure. Knows Chat Completions' answer body well enough to read and to name what is in it; does not know who sent it.
"""

from __future__ import annotations

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.usage import Usage


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One of several answers to the same question."""

    index: int
    message: Message
    finish_reason: str | None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What one model call came back with.

    Attributes:
        message: the first choice's message.
        finish_reason: of the first choice, as it should have been said: `tool_calls` where there are calls; may be None.
        usage: token counts, or None where the upstream gave none.
        body: the answer's JSON object in Chat Completions' form (all choices and unknown fields included). The adapter
            has seen to it that it is what OpenAI's schema requires.
        said_finish: the finish reason as it stands in `body`.
    """

    message: Message
    finish_reason: str | None
    usage: Usage | None
    body: bytes
    said_finish: str | None = None
