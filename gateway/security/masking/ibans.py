"""International bank account numbers, told by their country's length and checksum. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stdnum import iban

from gateway.security.masking.found import MOST, Found

_SHAPE: Final = re.compile(r"(?<![0-9A-Za-z_])[A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]){11,30}(?![A-Za-z0-9])")
_SHORTEST: Final = 15


def find_ibans(text: str, start: int = 0, end: int = MOST) -> Iterator[Found]:
    """Every account number of a text in plain form."""
    place = start
    while (match := _SHAPE.search(text, place, end)) is not None:
        said = match.group()
        # Words that follow are taken in by the shape: the number ends where it is valid.
        while len(said) >= _SHORTEST and not iban.is_valid(said, check_country=False):
            cut = max(said.rfind(" "), said.rfind("-"))
            said = said[: max(cut, 0)]
        if len(said) >= _SHORTEST:
            yield Found(match.start(), match.start() + len(said), "iban")
            place = match.start() + len(said)
        else:
            place = match.start() + 2
