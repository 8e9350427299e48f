"""E-mail addresses.

Pure. Looks around each at sign and no farther than an address can reach, so that no text takes long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gateway.security.masking.found import MOST, Found

_AT: Final = re.compile(r"@|%40")
_LONGEST_NAME: Final = 64
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.!#$&'*+-^_`{|}~")
_QUOTES: Final = "'`*{|}~^.!#$&"
_DOMAIN: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}([A-Za-z]{2,24}|xn--[a-z0-9-]{2,59})"
)
# Ends of names that are files': `logo@2x.png`.
_FILES: Final = frozenset("png jpg jpeg gif svg webp ico css js ts mjs json py md html".split())


def find_emails(text: str, start: int = 0, end: int = MOST) -> Iterator[Found]:
    """Every e-mail address of a text in plain form."""
    for at in _AT.finditer(text, start, end):
        first = at.start()
        floor = max(0, first - _LONGEST_NAME)
        while first > floor and _is_name(text[first - 1]):
            first -= 1
        # What quotes or marks an address is no part of it.
        while first < at.start() and text[first] in _QUOTES:
            first += 1
        domain = _DOMAIN.match(text, at.end())
        if first == at.start() or domain is None or domain.group(1).lower() in _FILES:
            continue
        if text[first : at.start()] == "git" and text[domain.end() : domain.end() + 1] in {":", "/"}:
            continue
        yield Found(first, domain.end(), "email")


def _is_name(sign: str) -> bool:
    # Latin letters with accents write names too; other scripts stand right beside an address without a space.
    return sign in _NAME or "\u00c0" <= sign <= "\u024f"
