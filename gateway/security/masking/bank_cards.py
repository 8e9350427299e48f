"""Numbers of bank cards: an issuer's first digits, a length that it uses, and Luhn's checksum.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stdnum import luhn

from gateway.security.masking.context import says_other
from gateway.security.masking.found import MOST, Found

_SHAPE: Final = re.compile(
    r"(?<![0-9A-Za-z_])(?<![A-Za-z]-)(?<![0-9][.,:-])(?:[2-6][0-9]{12,18}"
    r"|[2-6][0-9]{3}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{1,4}(?:\1[0-9]{1,3})?"
    r"|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5}|62[0-9]{4}[ -][0-9]{10,13})(?![0-9A-Za-z_]|[.-][0-9])"
)
# First digits, from and to, and the lengths that go with them.
_ISSUERS: Final[tuple[tuple[str, str, frozenset[int]], ...]] = (
    ("4", "4", frozenset({13, 16, 19})),
    ("51", "55", frozenset({16})),
    ("2221", "2720", frozenset({16})),
    ("34", "34", frozenset({15})),
    ("37", "37", frozenset({15})),
    ("62", "62", frozenset({16, 17, 18, 19})),
    ("6011", "6011", frozenset({16, 19})),
    ("644", "659", frozenset({16, 19})),
    ("3528", "3589", frozenset({16})),
    ("300", "305", frozenset({14, 16})),
    ("36", "36", frozenset({14})),
    ("38", "39", frozenset({14, 16})),
    ("50", "50", frozenset({16, 19})),
    ("56", "58", frozenset({16, 19})),
    ("60", "60", frozenset({16, 19})),
)


def find_bank_cards(text: str, start: int = 0, end: int = MOST) -> Iterator[Found]:
    """Every card number of a text in plain form."""
    for match in _SHAPE.finditer(text, start, end):
        said = match.group()
        digits = said.replace(" ", "").replace("-", "")
        if not _issued(digits) or not luhn.is_valid(digits):
            continue
        # One long number in ten passes by chance: an order's, where the words before it say so.
        if said == digits and says_other(text, match.start()):
            continue
        yield Found(match.start(), match.end(), "bank_card")


def _issued(digits: str) -> bool:
    return any(len(digits) in lengths and first <= digits[: len(first)] <= last for first, last, lengths in _ISSUERS)
