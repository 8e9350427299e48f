"""The words of the ReAct protocol, as models write them: `Thought:`, `**Action:**`, `Action 1:`, `行动：`.

Pure. Knows how a label looks, also while only its beginning has come; does not know what stands behind one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from gateway.late import late

Kind = Literal["thought", "action", "input", "observation", "final"]

_TRADITIONAL: Final = str.maketrans("动输入参数观结终复", "動輸入參數觀結終覆")


def _in_both(*words: str) -> tuple[str, ...]:
    """The words in simplified and in traditional characters."""
    return tuple(dict.fromkeys((*words, *(word.translate(_TRADITIONAL) for word in words))))


_WORDS: Final[dict[Kind, tuple[str, ...]]] = {
    "thought": ("Thought", "思考", "想法"),
    "input": ("Action Input", "ActionInput", "Action_Input", *_in_both("行动输入", "动作输入", "行动参数", "动作参数")),
    "action": ("Action", *_in_both("行动", "动作")),
    "observation": ("Observation", *_in_both("观察结果", "观察")),
    "final": ("Final Answer", "FinalAnswer", "Final_Answer", *_in_both("最终答案", "最终回答", "最终答复")),
}
# What may stand around a label: quotes, headings, lists and bold of Markdown, and a number.
_LEAD = r"[ \t>#*_`-]{0,12}"
_TAIL = r"[ \t]{0,2}\d{0,3}[ \t]{0,2}[*_`]{0,3}[ \t]{0,2}"
# Behind the colon bold may end; nothing else is taken, for it may be the answer's own.
_BOLD_ENDS = late(r"\*{1,3}")
_BOLD_MOST = 3


def _any(kinds: Iterable[Kind]) -> str:
    words = sorted((word for kind in kinds for word in _WORDS[kind]), key=len, reverse=True)
    return "|".join(map(re.escape, words))


def _begun(word: str) -> str:
    """A pattern of the word, whole or only its beginning."""
    nested = _TAIL
    for letter in reversed(word):
        nested = f"(?:{re.escape(letter)}{nested})?"
    return nested


_ALL: Final = tuple(_WORDS)
_KIND_OF: Final = {word.casefold(): kind for kind, words in _WORDS.items() for word in words}
_LABEL = late(rf"({_LEAD})({_any(_ALL)})({_TAIL})[:：]", re.IGNORECASE)
_BEGUN = late(rf"{_LEAD}(?:{'|'.join(_begun(word) for words in _WORDS.values() for word in words)})", re.IGNORECASE)
# Within a line only those that end a thought, and not as the end of another word.
_INSIDE = late(rf"(?<![A-Za-z])({_any(('final', 'action'))})({_TAIL})[:：]", re.IGNORECASE)
_INSIDE_BEGUN = late(
    rf"(?<![A-Za-z])(?=\S)(?:{'|'.join(_begun(w) for kind in ('final', 'action') for w in _WORDS[kind])})\Z",
    re.IGNORECASE,
)
_INPUT_INSIDE = late(rf"(?<![A-Za-z])(?:{_any(('input',))}){_TAIL}[:：]", re.IGNORECASE)
_LINE_LABEL = late(rf"^{_LEAD}({_any(_ALL)}){_TAIL}[:：]\*{{0,3}}", re.IGNORECASE | re.MULTILINE)
# The longest beginning of a label that is not known to be one.
LONGEST: Final = 48


class Label(NamedTuple):
    """A label in a text: what it is, how it is spelled, and where it begins and ends."""

    kind: Kind
    word: str
    start: int
    end: int


def label_of(line: str, *, whole: bool) -> Label | Literal["maybe"] | None:
    """The label at the beginning of a line; `maybe` while more of the line has to come first.

    Args:
        line: what there is of the line.
        whole: whether nothing more of it will come.
    """
    if found := _LABEL.match(line):
        end = found.end()
        if "*" in found[1] and "*" not in found[3]:
            if not whole and len(line) - end < _BOLD_MOST:
                return "maybe"
            if closing := _BOLD_ENDS.match(line, end):
                end = closing.end()
        return Label(_KIND_OF[found[2].casefold()], found[2], 0, end)
    if not whole and len(line) <= LONGEST and _BEGUN.fullmatch(line):
        return "maybe"
    return None


def label_inside(text: str, start: int = 0) -> Label | None:
    """The first label within a line that ends a thought there: an action or the final answer."""
    if found := _INSIDE.search(text, start):
        return Label(_KIND_OF[found[1].casefold()], found[1], found.start(), found.end())
    return None


def begun_inside(line: str) -> int:
    """Where a label may have begun at the end of a line that is not whole; the line's length where none has."""
    found = _INSIDE_BEGUN.search(line, max(0, len(line) - LONGEST))
    return found.start() if found else len(line)


def input_inside(text: str, start: int, end: int) -> Label | None:
    """The label of an action's input within a line."""
    found = _INPUT_INSIDE.search(text, start, end)
    return Label("input", found[0], found.start(), found.end()) if found else None


def line_labels(text: str, start: int = 0) -> Iterable[Label]:
    """Labels at the beginning of lines, in order."""
    for found in _LINE_LABEL.finditer(text, start):
        yield Label(_KIND_OF[found[1].casefold()], found[1], found.start(), found.end())
