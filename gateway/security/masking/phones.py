"""Phone numbers.

Pure. Shapes come first, `phonenumbers` decides; words before a number help where its shape alone says too little. An order's
number or a time is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import phonenumbers

from gateway.security.masking.context import says_other, says_phone
from gateway.security.masking.found import MOST, Found

# In front of a number stands no letter, no digit, no sign that makes it a part of something longer.
_BEFORE: Final = r"(?<![0-9A-Za-z_])(?<![A-Za-z]-)(?<![0-9][.,:-])"
_AFTER: Final = r"(?![0-9A-Za-z_]|[.:,][0-9])"

# Written for the whole world: `+49 30 123456`, `0044 20 7946 0958`.
_WORLD: Final = re.compile(r"(?<![0-9A-Za-z_+])(?:\+ ?|00)[1-9](?:[ ()./-]{0,3}[0-9]){6,14}(?![0-9])")
# A Chinese mobile number, with or without its country: in one, or grouped as people group it.
_MOBILE: Final = re.compile(
    _BEFORE
    + r"(?:86[ -]?)?1[3-9](?:[0-9]{9}|[0-9]([ -])[0-9]{4}\1[0-9]{4}|[0-9]([ -])[0-9]{8}|[0-9]([ -])[0-9]{3}\3[0-9]{5}"
    r"|[0-9]{2}([ -])[0-9]{3}\4[0-9]{4}|[0-9]{5}([ -])[0-9]{4})" + _AFTER
)
# With a trunk prefix and something between the groups: `010-6552 9988`, `(021) 6234 5678`, `020 7946 0958`.
_TRUNK: Final = re.compile(_BEFORE + r"\(?0[0-9]{1,5}\)?(?:[ ./-]{1,2}[0-9]{2,8}){1,4}" + _AFTER)
_TRUNK_BRACKETS: Final = re.compile(_BEFORE + r"\(0[0-9]{1,5}\)[0-9]{5,8}" + _AFTER)
_CHINA_SERVICE: Final = re.compile(_BEFORE + r"[48]00(?:-[0-9]{3}-[0-9]{4}|-[0-9]{7}| [0-9]{3} [0-9]{4})" + _AFTER)
# North America: something has to stand between the groups.
_NANP: Final = re.compile(
    _BEFORE + r"(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}" + _AFTER
)
# Bare digits count where the words before them say so.
_BARE: Final = re.compile(_BEFORE + r"[0-9](?:[ -]?[0-9]){6,12}" + _AFTER)
_SHORTEST_LOCAL: Final = 7


class Phones:
    """Finds phone numbers.

    Args:
        regions: the countries (`CN`, `US`) whose numbers are found as they are written at home; those that begin with `+` are
            found wherever they are from.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = tuple(regions)
        shapes: list[re.Pattern[str]] = [_TRUNK, _TRUNK_BRACKETS]
        if "CN" in regions:
            shapes.append(_CHINA_SERVICE)
        if {"US", "CA"} & {*regions}:
            shapes.append(_NANP)
        self._shapes = tuple(shapes)

    def find(self, text: str, start: int = 0, end: int = MOST) -> Iterator[Found]:
        """Every phone number of a text in plain form."""
        for match in _WORLD.finditer(text, start, end):
            if (length := self._world_length(match.group(), text, match.end())) is not None:
                yield Found(match.start(), match.start() + length, "phone")
        if "CN" in self._regions:
            for match in _MOBILE.finditer(text, start, end):
                if not says_other(text, match.start()) and _valid(_digits(match.group())[-11:], "CN"):
                    yield Found(match.start(), match.end(), "phone")
        for shape in self._shapes:
            for match in shape.finditer(text, start, end):
                if self._is_one(match.group()) and not says_other(text, match.start()):
                    yield Found(match.start(), match.end(), "phone")
        for match in _BARE.finditer(text, start, end):
            if says_phone(text, match.start()) and self._is_one(match.group(), local=True):
                yield Found(match.start(), match.end(), "phone")

    def _world_length(self, said: str, text: str, end: int) -> int | None:
        """How much of it is a number: what stands behind a space may be another one's."""
        if text[end : end + 1].isalpha() and text[end : end + 1].isascii():
            return None
        while True:
            digits = _digits(said)
            if _valid(f"+{digits.removeprefix('00') if said[0] == '0' else digits}", None):
                return len(said)
            cut = max(said.rfind(sign) for sign in " -./(")
            if cut < _SHORTEST_LOCAL:
                return None
            said = said[:cut].rstrip(" -./(")

    def _is_one(self, said: str, *, local: bool = False) -> bool:
        digits = _digits(said)
        if any(_valid(digits, region) for region in self._regions):
            return True
        # Without its area a number cannot be told from others: the words before it have to do.
        return local and _SHORTEST_LOCAL <= len(digits) <= 8 and digits[0] not in "01"


def _digits(said: str) -> str:
    return "".join(filter(str.isdigit, said))


@lru_cache(maxsize=4096)
def _valid(digits: str, region: str | None) -> bool:
    try:
        number = phonenumbers.parse(digits, region)
    except phonenumbers.NumberParseException:
        return False
    return phonenumbers.is_valid_number(number)
