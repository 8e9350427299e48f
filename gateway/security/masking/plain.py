"""One form for digits and separators, whatever keyboard wrote them: character for character, so that places stay.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

# Where the digits of other scripts begin: Arabic, Persian, Devanagari, Bengali, Thai, Tibetan, Khmer, and mathematical ones.
_ZEROS: Final = (0x0660, 0x06F0, 0x0966, 0x09E6, 0x0E50, 0x0F20, 0x17E0, *range(0x1D7CE, 0x1D800, 10))
# Full-width forms, as Chinese and Japanese keyboards write them; digits; dashes; spaces.
_FORMS: Final[dict[int, int]] = {
    **{0xFF01 + offset: 0x21 + offset for offset in range(0x5E)},
    **{zero + digit: 0x30 + digit for zero in _ZEROS for digit in range(10)},
    **dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2015, 0x2212, 0xFE63, 0x30FC), ord("-")),
    **dict.fromkeys((0x00A0, 0x2002, 0x2003, 0x2007, 0x2009, 0x200A, 0x202F, 0x3000), ord(" ")),
}
_OTHER_FORMS: Final = re.compile(f"[{''.join(map(chr, _FORMS))}]")
# Seen by nobody, and a way around whoever looks for digits.
_HALVES: Final = re.compile("[\ud800-\udfff]")
UNSEEN: Final = "[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]"
_UNSEEN: Final = re.compile(UNSEEN)
# The digits that are read as such, as a character class.
DIGITS: Final = "0-9\uff10-\uff19" + "".join(f"{chr(zero)}-{chr(zero + 9)}" for zero in _ZEROS)
# Dashes, spaces and what nobody sees, beyond ASCII, for the same.
SIGNS: Final = (
    "\u2010-\u2015\u2212\ufe63\u30fc\uff0d\u00a0\u2002\u2003\u2007\u2009\u200a-\u200f\u202a-\u202f\u3000\u00ad\u061c\u2060-\u2064"
    "\u2066-\u2069\ufe00-\ufe0f\ufeff"
)


def plain(text: str) -> str:
    """The text with ASCII digits, dashes and spaces; every character stands where it stood."""
    return text if text.isascii() or _OTHER_FORMS.search(text) is None else text.translate(_FORMS)


def encodable(text: str) -> str:
    """The text with another character in the place of each half of a surrogate pair, for what reads UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALVES.sub("\ufffd", text)
    return text


def seen(text: str) -> tuple[str, list[int] | None]:
    """The text without characters that nobody sees, and where each that is left stood, with the text's end; None: as it was."""
    if text.isascii() or _UNSEEN.search(text) is None:
        return text, None
    places = [place for place, sign in enumerate(text) if not _UNSEEN.match(sign)]
    return "".join([text[place] for place in places]), [*places, len(text)]
