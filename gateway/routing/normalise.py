"""The one form in which texts and keywords are compared.

Compatibility forms, case, composition, zero-width characters, white space and a keyboard's own quotes and dashes make no
difference in it; neither do spaces between characters of scripts that are written without them. Knows how to lead a position back to the text as it was sent.
What a backend receives never passes through here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from gateway.late import late
from gateway.routing.scripts import UNSPACED

# Unicode's default-ignorable code points: zero-width spaces and joiners, marks of direction, soft hyphen, variation
# selectors, Hangul fillers, tags.
_IGNORABLE = late(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SURROGATE = late("[\ud800-\udfff]")
# What case folding makes of the Turkish capital İ.
_DOTTED_I = late("i\u0307+")
_GAP = late(f"(?<=[{UNSPACED}]) (?=[{UNSPACED}])")
# ASCII in small letters, and what `str.split` takes for white space in it as spaces.
_SMALL = bytes(range(256)).lower().translate(bytes.maketrans(b"\n\r\t\v\f\x1c\x1d\x1e\x1f", b" " * 9))
# Composes with the character before it although its combining class is 0: medial and final jamo, half-width voiced marks.
_JOINS = late("[\u1160-\u11ff\ud7b0-\ud7ff\uff9e\uff9f\uffa0-\uffdc]")

# Putting marks in order takes time in proportion to the square of their number: beyond what any language stacks on one
# letter (the limit of Unicode's stream-safe format), they are dropped.
_MARKS = 30
# What may hold a run of marks long enough to become too long: none becomes more than three.
_MANY_MARKS = late(rf"[^\w\s\x00-\x7f]{{{_MARKS // 3 - 1},}}")
# Letters that become marks when they are composed.
_VOICED = (("\uff9e", "\u3099"), ("\uff9f", "\u309a"))
# One character that stands for a sentence of eighteen, and one for a word of eight: a text of them would grow as much. They
# stay what they are, by characters that mean nothing and that composing leaves alone.
_SENTENCES = (("\ufdfa", "\ufdd0"), ("\ufdfb", "\ufdd1"))
_BEFORE = (*_VOICED, *_SENTENCES)
# What keyboards and word processors make of plain quotes and hyphens.
_AFTER = (
    *((odd, "'") for odd in "\u2018\u2019\u201a\u201b\u02bc"),
    *((odd, '"') for odd in "\u201c\u201d\u201e\u201f"),
    *((odd, "-") for odd in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"),
    *((stand_in, sentence) for sentence, stand_in in _SENTENCES),
)


def normalise(text: str) -> str:
    """Return the form of `text` that is compared. Idempotent; never raises, lone surrogates included."""
    if not text.isascii():
        return _GAP.sub("", " ".join(fold(text).split()))
    # One table over bytes is many times faster than splitting into words and joining them.
    text = text.encode().translate(_SMALL).decode("ascii")
    # From the end: where there are no two in a row, that is found out five times as fast as by `in`.
    while text.rfind("  ") >= 0:
        text = text.replace("  ", " ")
    return text.strip(" ")


def fold(text: str) -> str:
    """`normalise` but for white space."""
    text = _IGNORABLE.sub("", text)
    text = _SURROGATE.sub("\ufffd", text)
    for letter, mark in _BEFORE:
        if letter in text:
            text = text.replace(letter, mark)
    many = _MANY_MARKS.search(text) is not None
    text = unicodedata.normalize("NFKC", _MANY_MARKS.sub(_few_marks, text) if many else text).casefold()
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", _DOTTED_I.sub("i", text))
    # A folded letter may compose into one that folds again (U+0345 and its kin).
    text = unicodedata.normalize("NFKC", text.casefold())
    for odd, plain in _AFTER:
        if odd in text:
            text = text.replace(odd, plain)
    return _MANY_MARKS.sub(_few_marks, text) if many else text


def _few_marks(found: re.Match[str]) -> str:
    kept: list[str] = []
    marks = 0
    for char in found[0]:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        if marks <= _MARKS:
            kept.append(char)
    return "".join(kept)


class Positions:
    """Where each character of a normalised text came from. A hundred times dearer than `normalise`: explain only.

    Attributes:
        exact: whether every character was led back; the whole text stands for each of them otherwise.
    """

    def __init__(self, text: str) -> None:
        chars: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._length = len(text)
        gap: tuple[int, int] | None = None
        for char, start, end in _folded(text):
            if char.isspace():
                gap = gap or (start, end)
                continue
            if gap is not None and chars and not _GAP.search(f"{chars[-1]} {char}"):
                self._add(chars, " ", *gap)
            gap = None
            self._add(chars, char, start, end)
        self.exact = "".join(chars) == normalise(text)

    def _add(self, chars: list[str], char: str, start: int, end: int) -> None:
        chars.append(char)
        self._starts.append(start)
        self._ends.append(end)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original's span behind a span of the normalised text; the whole text where it can't be told apart."""
        if not self.exact or end <= start:
            return 0, self._length
        return self._starts[start], self._ends[end - 1]


def _folded(text: str) -> Iterator[tuple[str, int, int]]:
    """Folded characters, each with the original's span it stems from."""
    start = 0
    for position in range(1, len(text) + 1):
        if position < len(text) and _continues(text[position]):
            continue
        for char in fold(text[start:position]):
            yield char, start, position
        start = position


def _continues(char: str) -> bool:
    """Whether `char` may melt into what stands before it."""
    if char.isascii():
        return False
    return unicodedata.category(char)[0] == "M" or bool(_JOINS.match(char) or _IGNORABLE.match(char))
