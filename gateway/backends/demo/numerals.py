"""Numbers in words: "twenty-five", "one hundred and five", "三百二十".

Pure. Whole numbers below a million in English, below ten thousand in Chinese (beyond that stand the signs 万 and 亿,
which `arithmetic.py` reads).
"""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen".split()
    )
}
_TENS: Final = {
    word: 10 * value
    for value, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)
}
_SCALES: Final = {"hundred": 100, "thousand": 1000}
_HAN_DIGITS: Final = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_HAN_SCALES: Final = {"十": 10, "百": 100, "千": 1000}

_WORD: Final = "|".join(sorted({*_UNITS, *_TENS}, key=len, reverse=True))
# One group of the tokens' pattern; white space is a space in a verbose expression only where it is escaped.
ENGLISH: Final = (
    rf"\b(?:{_WORD})(?:[\ -](?:{_WORD}|hundred|thousand)|(?:(?<=hundred)|(?<=thousand))\ and\ (?:{_WORD}))*\b"
)
HAN: Final = "(?:[零〇一二两三四五六七八九十百千]+)(?!分之)"


def numeral(text: str) -> str | None:
    """The number's digits; None where the words do not make one number ("seven eight")."""
    return _chinese(text) if not text.isascii() else _english(text.lower())


def _english(text: str) -> str | None:
    total = current = 0
    room = 1_000_000  # the next word has to be smaller than this
    for word in re.split(r"[\s-]+", text):
        if word == "and":
            continue
        if word in _SCALES:
            scale = _SCALES[word]
            if not 0 < current < scale:
                return None
            if scale == 1000:
                total, current, room = total + current * 1000, 0, 1000
            else:
                current, room = current * scale, 100
            continue
        value = _UNITS.get(word, _TENS.get(word, 0))
        if value >= room:
            return None
        current += value
        room = 10 if word in _TENS else 1
    return str(total + current)


def _chinese(text: str) -> str | None:
    if all(char in _HAN_DIGITS for char in text):
        return "".join(str(_HAN_DIGITS[char]) for char in text) if len(text) == 1 else None
    total, digit = 0, None
    smaller_than = 10_000
    for char in text:
        if char in _HAN_DIGITS:
            if digit:
                return None
            digit = _HAN_DIGITS[char]
            continue
        scale = _HAN_SCALES[char]
        if scale >= smaller_than:
            return None
        total += (1 if digit is None else digit) * scale
        smaller_than, digit = scale, None
    return str(total + (digit or 0))
