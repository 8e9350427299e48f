"""What one model call came to. Pure values."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.chat.answer import Answer, Choice
from gateway.chat.blocks import Message, ToolCall
from gateway.chat.usage import Usage
from gateway.turn.joining import RecordedRound

# Ends behind which a call's arguments may be missing their tail, however well they read.
CUT: Final = frozenset({"length", "content_filter"})


class Round(msgspec.Struct, frozen=True, gc=False):
    """What one model call came to.

    Attributes:
        calls: those in the message.
        usage: what it cost; the gateway's own estimate where the upstream gave no figures.
        told_usage: whether the upstream gave them.
        answer: the whole body, where the call was not streamed.
        recorded: what an earlier attempt left of this round, or None.
        choices: every answer, where the client asked for several and they were streamed.
        tokens: its tokens with their log-probabilities, where it was streamed and somebody asks.
        withheld: whether the client has seen nothing of it, and will not.
    """

    message: Message
    finish_reason: str | None
    calls: tuple[ToolCall, ...]
    usage: Usage
    told_usage: bool
    answer: Answer | None = None
    recorded: RecordedRound | None = None
    choices: tuple[Choice, ...] = ()
    withheld: bool = False
    tokens: tuple[tuple[str, float], ...] = ()
