"""One look that says where anything private may be at all, before anybody looks closely.

Pure. It may be wrong in one way only: what it lets pass, no detector would have found. On RE2, in one pass for all kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import re2

from gateway.security.masking.context import PHONE_WORDS
from gateway.security.masking.plain import DIGITS, SIGNS, UNSEEN

# Characters around a suspicion that are looked at: what a detector may take in, and the words before it.
_AROUND: Final = 96

# `{D}` is a digit, `{S}` what may stand between digits.
_PHONE: Final = (
    r"(?:\+|{PLUS}|00){S}?[1-9{W}](?:{S}{0,4}{D}){6}",
    r"[1{W}][3-9{W}](?:{S}{0,2}{D}){9}",
    r"(?:^|[^0-9])[0{W}]{D}{1,5}(?:{S}{0,4}{D}){5}",
    r"[2-9{W}]{D}{2}{S}{1,3}[2-9{W}]{D}{2}{S}{D}{4}",
    r"[48{W}][0{W}]{2}{S}{D}{3}",
    PHONE_WORDS + r"[^0-9\n]{0,24}{D}(?:{S}{0,2}{D}){6}",
)
# The words of a full-width keyboard; in plain form they are words as any.
_WIDE_WORDS: Final = r"[{L}][^0-9\n]{0,24}{D}(?:{S}{0,2}{D}){6}"
_LONG: Final = r"{D}(?:{S}{0,2}{D}){12}"
_ANY_DIGITS: Final = r"{D}(?:[^0-9A-Za-z]{0,4}{D}){5}"
_MAIL: Final = r"[^\s](?:@|{AT}|%40)[^\s]"
_IBAN: Final = r"[A-Za-z{L}]{2}[0-9{W}]{2}{S}{0,2}[0-9A-Za-z{L}{W}]{4}"
# Identity numbers in which letters stand between the digits.
_LETTERED: Final = frozenset({"it.codicefiscale", "fi.hetu"})
_CODE: Final = "[A-Za-z]{6}[0-9]{2}[A-Za-z][0-9]{2}|[0-9]{6}[-+A-Ya-y]"
# JSON's own way of writing characters, and those that nobody sees: what they hide has to be read first. And what looks like a
# placeholder.
_ALWAYS: Final = UNSEEN + r"|\\u[0-9a-fA-F]{4}|\[[A-Za-z0-9]{1,12}:[A-Za-z]{11}\]"


class _Signs(NamedTuple):
    """What stands for the letters in braces above."""

    digit: str
    wide: str
    between: str
    plus: str
    at: str
    letters: str


# Of a JSON text as it came; and of a text in plain form.
_RAW: Final = _Signs(
    f"[{DIGITS}]", DIGITS[3:], f"[ ()./{SIGNS}\uff08\uff09\uff0e\uff0f-]", "\uff0b", "\uff20", "\uff21-\uff5a"
)
_PLAIN: Final = _Signs("[0-9]", "", "[ ()./-]", r"\+", "@", "")


class Suspicion:
    """Looks for places.

    Args:
        kinds: what is looked for.
        id_numbers: whose identity numbers.
    """

    def __init__(self, kinds: Collection[str], id_numbers: Collection[str]) -> None:
        parts: list[str] = []
        wide: list[str] = []
        if "phone" in kinds:
            parts += _PHONE
            wide = [_WIDE_WORDS]
        if "bank_card" in kinds or "id_number" in kinds:
            parts.append(_LONG)
        if "id_number" in kinds and {*id_numbers} - {"cn.ric"}:
            parts.append(_ANY_DIGITS)
            if _LETTERED & {*id_numbers}:
                parts.append(_CODE)
        if "email" in kinds:
            parts.append(_MAIL)
        if "iban" in kinds:
            parts.append(_IBAN)
        self._raw = _compiled([*(_written(part, _RAW) for part in (*parts, *wide)), _ALWAYS])
        self._plain = _compiled([_written(part, _PLAIN) for part in parts]) if parts else None

    def raised_by(self, encoded: bytes) -> bool:
        """Whether anything may be found in a JSON text."""
        return self._raw.search(encoded) is not None

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Parts of a text in plain form in which something may be found; the rest need not be looked at."""
        if self._plain is None:
            return
        # On bytes: for texts, the binding counts characters all the way.
        encoded = text.encode()
        ascii_only = len(encoded) == len(text)
        start, end = 0, 0
        for match in self._plain.finditer(encoded):
            first, last = match.span()
            if not ascii_only:
                first, last = len(encoded[:first].decode(errors="ignore")), len(encoded[:last].decode(errors="ignore"))
            if end and first - _AROUND <= end:
                end = last + _AROUND
                continue
            if end:
                yield start, min(end, len(text))
            start, end = max(0, first - _AROUND), last + _AROUND
        if end:
            yield start, min(end, len(text))


def _written(part: str, signs: _Signs) -> str:
    for name, value in (
        ("{D}", signs.digit),
        ("{W}", signs.wide),
        ("{S}", signs.between),
        ("{PLUS}", signs.plus),
        ("{AT}", signs.at),
        ("{L}", signs.letters),
    ):
        part = part.replace(name, value)
    return part


def _compiled(parts: list[str]) -> re2.Pattern:
    options = re2.Options()
    options.log_errors = False
    return re2.compile("|".join(parts).encode(), options=options)
