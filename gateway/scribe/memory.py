"""Long-term memory: what of a turn is worth remembering, and how it is told later.

Pure. Preferences are what users say of how they want things, facts what they say of themselves by name, conclusions what an
answer came to. Does not know where memories are, nor how alike two texts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.late import late
from gateway.scribe.marks import unmarked
from gateway.scribe.pins import LASTING, said_in
from gateway.scribe.tokens import text_tokens

MemoryKind = Literal["preference", "fact", "conclusion"]

_READ_CHARS: Final = 4_000
_LONGEST: Final = 300
_SHORTEST: Final = 8
_SHORTEST_WIDE: Final = 4
_MOST_A_TURN: Final = 6

_SENTENCE: Final = late(r"[^\n.!?;。！？；]+(?:\.(?=\w)[^\n.!?;。！？；]+)*[.!?。！？]?")
_PREFERENCE: Final = late(
    r"(?i)\b(?:remember|keep in mind|from now on|always|never|i (?:prefer|like|love|hate|dislike|want you to)|we (?:prefer|always|never)|"
    r"my preference|please (?:use|avoid|stop|don'?t)|don'?t (?:use|send|write|call))\b"
    r"|记住|请记得|以后|始终|永远|我(?:喜欢|不喜欢|习惯|希望你|偏好)|不要再|请用|别再"
)
_FACT: Final = late(
    r"(?i)\b(?:my|our) (?:\w+ ){1,4}(?:is|are)\b|\bi(?:'m| am) (?:an?|the|from|in|at|responsible)\b|\bi (?:work|live)\b|\bwe are\b"
    r"|我叫|我是|我在|我负责|我们的\w{1,8}是|我的\w{1,8}是"
)
_CONCLUSION: Final = late(
    r"(?i)\b(?:in conclusion|to sum up|in summary|therefore|the (?:cause|reason|result|conclusion|answer) (?:is|was)|we (?:decided|agreed)|"
    r"it (?:turns|turned) out|decision:|conclusion:)\b|结论|因此|总之|原因是|决定"
)


class Remembered(msgspec.Struct, frozen=True):
    """A sentence worth remembering."""

    kind: MemoryKind
    text: str


def worth_remembering(asked: str, answered: str) -> list[Remembered]:
    """What a turn's user said to last, and what its answer came to."""
    found: dict[str, Remembered] = {}
    for sentence in _sentences(asked):
        if sentence.endswith(("?", "？")):
            continue
        if _PREFERENCE.search(sentence):
            found.setdefault(sentence, Remembered("preference", sentence))
        elif _FACT.search(sentence):
            found.setdefault(sentence, Remembered("fact", sentence))
    for sentence in _sentences(answered):
        if _CONCLUSION.search(sentence):
            found.setdefault(sentence, Remembered("conclusion", sentence))
    return list(found.values())[:_MOST_A_TURN]


def told(memories: Sequence[tuple[str, str, float]], max_tokens: int) -> tuple[str, ...]:
    """Lines for the notes: what, from where, and when; the first ones where there is not room for all, the newest last."""
    lines: list[tuple[float, str]] = []
    for text, source, at in memories:
        day = datetime.fromtimestamp(at, UTC).date().isoformat()
        line = f"- {text} ({source}, {day})"
        max_tokens -= text_tokens(line) + 1
        if max_tokens < 0:
            break
        lines.append((at, line))
    return tuple(line for _, line in sorted(lines, key=lambda each: each[0]))


def slot_of(text: str) -> str | None:
    """What a sentence says something of by name ("my desk"): what is said of it later takes its place."""
    return next((pin.tag for pin in said_in(text, 0) if not pin.tag.startswith(LASTING)), None)


def _sentences(text: str) -> list[str]:
    found = []
    for match in _SENTENCE.finditer(text[:_READ_CHARS]):
        sentence = unmarked(" ".join(match.group().split()))
        least = _SHORTEST if sentence.isascii() else _SHORTEST_WIDE
        if least <= len(sentence) <= _LONGEST:
            found.append(sentence)
    return found
