"""What a detector says. Pure values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

# The kinds that are found without more being said than their names; `address` is found in declared fields alone.
KINDS: Final = ("phone", "id_number", "bank_card", "iban", "email", "address")


class Found(NamedTuple):
    """A private value at `text[start:end]`."""

    start: int
    end: int
    kind: str


def apart(found: Iterable[Found]) -> list[Found]:
    """Those that stay where several overlap: whoever was named first; in the text's order."""
    kept: list[Found] = []
    for each in found:
        if each.start < each.end and all(each.end <= other.start or other.end <= each.start for other in kept):
            kept.append(each)
    return sorted(kept)
