"""What a message is worth when there is no room for all of them.

Pure. Knows sources (user, model, tool) and kinds (instruction or fact, noise). Does not know budgets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from gateway.chat.blocks import Message, ToolCall
from gateway.chat.thread import same_json

Kind = Literal["system", "user", "noise", "assistant", "tool"]

# Small talk: nothing in it that anybody would come back to.
_NOISE_CHARS: Final = 40
_NOISE: Final = re.compile(
    r"(?i)^\W*(?:(?:ok(?:ay|ey)?|thanks?(?: you)?|thank you|thx|cheers|great|perfect|nice|cool|good|fine|sure|got it|hello|hi|"
    r"hey|bye|good ?(?:morning|evening|night|bye)|welcome|you(?:'re| are) welcome|very much|so much|a lot|again|there|"
    r"sounds good|no problem|好的?|谢谢(?:你|您)?|多谢|嗯+|哦+|你好|您好|再见|收到|明白了?|不客气|可以|辛苦了|了解)\W*)+$"
)

_digest = msgspec.json.Encoder(order="deterministic").encode


def kind_of(message: Message) -> Kind:
    """What kind a message is of."""
    match message.role:
        case "system" | "developer":
            return "system"
        case "tool":
            return "tool"
        case "assistant":
            return "tool" if message.tool_calls else "assistant"
    return "noise" if not message.has_image and is_small_talk(message.text) else "user"


def is_small_talk(text: str) -> bool:
    """Whether a text is nothing but a greeting, thanks or a nod."""
    return len(text) <= _NOISE_CHARS and _NOISE.match(text) is not None


def asked(calls: Sequence[ToolCall]) -> bytes:
    """What a message's calls ask for: the same for calls that would get the same result."""
    return _digest([[call.name, same_json(call.arguments)] for call in calls])
