"""Which scripts a text is written in, cheaply: by ranges of code points, no dictionary, no model.

Knows which scripts put no spaces between words, and which language code a script stands for in `when.language`.
Does not know languages that share a script: every Latin text is `en`.
"""

from __future__ import annotations

import re
import unicodedata

from gateway.late import late

# Han, kana, bopomofo, Thai, Lao, Tibetan, Burmese and Khmer. The combining voiced marks U+3099 and U+309A are left out:
# a space before one of them is all that keeps it from composing with the letter in front.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035"
    "\u3041-\u3096\u309d-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\ua9e0-\ua9ff\uaa60-\uaa7f\U0001aff0-\U0001afff\U0001b000-\U0001b16f\U00020000-\U000323af"
)
# Korean writes spaces, but endings follow a word without one, so no boundary can be asked for.
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"

_unbounded = late(f"[{UNSPACED}{_HANGUL}]")

_points = late("[\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0898-\u089f\u08ca-\u08ff\ufb1e]")

# In order: the first that is found decides between kana and Han, which Japanese mixes.
_LANGUAGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("ja", late("[\u3041-\u3096\u309d-\u30ff\u31f0-\u31ff]")),
    (
        "zh",
        late("[\u2e80-\u2fdf\u3005-\u3007\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"),
    ),
    ("ko", late(f"[{_HANGUL}]")),
    ("ru", late("[\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f]")),
    ("ar", late("[\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefe]")),
    ("th", late("[\u0e00-\u0e7f]")),
    ("el", late("[\u0370-\u03ff\u1f00-\u1fff]")),
    ("he", late("[\u0590-\u05ff\ufb1d-\ufb4f]")),
    ("hi", late("[\u0900-\u097f\ua8e0-\ua8ff]")),
    ("en", late("[A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff]")),
)
LANGUAGES = tuple(sorted(code for code, _ in _LANGUAGES))

# Letters and digits of any script but Latin.
_FOREIGN = late("[^\\W\\d_\u0000-\u024f\u1e00-\u1eff]")

# A Latin letter weighs less than a Han character: a word has about five letters, and a Chinese sentence with one product
# name in it is Chinese.
_LATIN_WEIGHT = 0.3
_COUNTED = 5000


def bounds_words(char: str) -> bool:
    """Whether `char` is part of words that are set apart by spaces or punctuation.

    A mark belongs to its letter: a Devanagari word may end in a vowel sign. Arabic and Hebrew points may be left out without
    making another word, so they bound nothing.
    """
    if char.isascii():
        return char.isalnum() or char == "_"
    if not char.isalnum() and (unicodedata.category(char)[0] != "M" or _points.match(char) is not None):
        return False
    return _unbounded.match(char) is None


def letters(text: str) -> dict[str, int]:
    """How many characters of each language's script `text` has; scripts that do not occur are absent.

    Of a text longer than 10,000 characters, the first and the last 5,000 are counted.
    """
    text = counted(text)
    counts = ((code, len(pattern.findall(text))) for code, pattern in _LANGUAGES)
    return {code: count for code, count in counts if count}


def counted(text: str) -> str:
    """The part of a text whose letters are counted: whoever compares counts has to take them from the same part."""
    return text if len(text) <= 2 * _COUNTED else text[:_COUNTED] + text[-_COUNTED:]


def language(text: str) -> str:
    """The language code that the text's main script stands for, or an empty string where there are no known letters.

    Japanese is told by kana: any kana beside Han characters makes it `ja`.
    """
    if text.isascii():
        return "en" if any(char.isalpha() for char in text) else ""
    counts: dict[str, float] = dict(letters(text))
    if "en" in counts:
        counts["en"] *= _LATIN_WEIGHT
    if "ja" in counts:
        counts["ja"] += counts.pop("zh", 0)
    return max(counts, key=lambda code: (counts[code], code), default="")


def is_latin(text: str) -> bool:
    """Whether nothing in `text` is a letter of another script than Latin."""
    return text.isascii() or _FOREIGN.search(text) is None
