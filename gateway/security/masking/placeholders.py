"""Placeholders: what stands in a value's place while a model sees the text.

Pure. `[[phone:bcdfghjklmn]]`: ASCII, so that no JSON encoder writes it otherwise; letters alone, so that no detector takes it for
a number; no vowels, so that it is no word. Keyed by owner: nobody else's has the same letters.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

OPENING: Final = "[["
# The most bytes a placeholder has, and so the most that is held back of a stream.
LONGEST: Final = 32
_LETTERS: Final = "bcdfghjklmnpqrstvwxz"
_COUNT: Final = 11
_NAME_LENGTH: Final = 12
PLACEHOLDER: Final = re.compile(rf"\[\[[a-z0-9]{{1,{_NAME_LENGTH}}}:[{_LETTERS}]{{{_COUNT}}}\]\]")
# The same as some models copy it: in capitals, or with half of its brackets.
_COPY: Final = rf"[a-z0-9]{{1,{_NAME_LENGTH}}}:[{_LETTERS}]{{{_COUNT}}}"
COPIED: Final = re.compile(rf"\[\[({_COPY})\]\]|(?<!\[)\[({_COPY})\]", re.IGNORECASE)
COPIED_BYTES: Final = re.compile(rf"\[{_COPY}\]".encode(), re.IGNORECASE)
# What the kinds are called in placeholders: without signs that markdown escapes.
_NAMES: Final = {"id_number": "id", "bank_card": "card"}
# Of what a text holds that looks like a placeholder and is none.
LOOKALIKE: Final = "text"


def name_of(kind: str) -> str:
    """What a kind is called in a placeholder."""
    return _NAMES.get(kind) or re.sub("[^a-z0-9]", "", kind.lower())[:_NAME_LENGTH] or "private"


def said_name(placeholder: str) -> str:
    """The name that a placeholder begins with."""
    return placeholder.removeprefix(OPENING).partition(":")[0]


class Mint:
    """Makes one owner's placeholders: the same for the same value, always and on every replica.

    Args:
        key: the owner's.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def placeholder(self, value: str, kind: str, attempt: int = 0) -> str:
        """What stands for a value; another `attempt` makes another one, where two values got the same."""
        said = f"{kind}\0{attempt}\0{value}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(hmac.digest(self._key, said, hashlib.sha256)[:8])
        letters = []
        for _ in range(_COUNT):
            number, letter = divmod(number, len(_LETTERS))
            letters.append(_LETTERS[letter])
        return f"[[{name_of(kind)}:{''.join(letters)}]]"


def bare(placeholder: str) -> str:
    """The same where a name or an id belongs, which may hold letters, digits, `_` and `-` alone."""
    return placeholder.strip("[]").replace(":", "_")
