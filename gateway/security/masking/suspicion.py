"""One look at bytes that says whether anything private may be in them at all.

Pure. It may be wrong in one way only: what it lets pass, no detector would have found.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import re2

from gateway.security.masking.plain import DIGITS

# Seven digits, whatever stands between them that is neither letter nor digit of Latin script.
_DIGITS: Final = f"[{DIGITS}](?:[^0-9A-Za-z{DIGITS}]{{0,5}}[{DIGITS}]){{6}}"
_OF_KIND: Final[dict[str, str]] = {
    "phone": _DIGITS,
    "bank_card": _DIGITS,
    "id_number": _DIGITS,
    "email": "@|\uff20|%40",
    "iban": r"[A-Za-z\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}]{2}[0-9\x{FF10}-\x{FF19}]{2}[^0-9A-Za-z]{0,4}[0-9A-Za-z\x{FF10}-\x{FF5A}]{4}",
}
# Identity numbers in which letters stand between the digits.
_LETTERED: Final = frozenset({"it.codicefiscale", "fi.hetu"})
_CODE: Final = "[A-Za-z]{6}[0-9]{2}[A-Za-z][0-9]{2}|[0-9]{6}[A-Ya-y+-]"
# JSON's own way of writing characters: what it hides has to be read first. And what looks like a placeholder.
_ALWAYS: Final = r"\\u[0-9a-fA-F]{4}|\[\[[a-z0-9]{1,12}:"


def suspicious(kinds: Collection[str], id_numbers: Collection[str]) -> re2.Pattern:
    """A pattern that is found in every JSON text in which one of these kinds may be found."""
    options = re2.Options()
    options.log_errors = False
    parts = {_OF_KIND[kind] for kind in kinds if kind in _OF_KIND}
    if "id_number" in kinds and _LETTERED & {*id_numbers}:
        parts.add(_CODE)
    return re2.compile("|".join([*sorted(parts), _ALWAYS]).encode(), options=options)
