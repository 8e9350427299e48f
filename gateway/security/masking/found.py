"""What a detector says. Pure values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

# The kinds that are found without more being said than their names; `address` is found in declared fields alone.
KINDS: Final = ("phone", "id_number", "bank_card", "iban", "email", "address")


# Longer than any text: its end.
MOST: Final = 1 << 62


class Found(NamedTuple):
    """A private value at `text[start:end]`."""

    start: int
    end: int
    kind: str


# The end of a placeholder, which no value has in it.
_BLANK: Final = "]"


def blanked(text: str, found: Iterable[Found]) -> str:
    """The text with something in the place of what was found (in order), so that nothing is found there again."""
    out: list[str] = []
    place = 0
    for start, end, _ in found:
        out += (text[place:start], _BLANK * (end - start))
        place = end
    return "".join([*out, text[place:]])


def apart(found: Iterable[Found]) -> list[Found]:
    """Those that stay where several overlap: whoever was named first; in the text's order."""
    kept: list[Found] = []
    for each in found:
        at = bisect_left(kept, each)
        if each.start < each.end and not (
            (at and kept[at - 1].end > each.start) or (at < len(kept) and kept[at].start < each.end)
        ):
            kept.insert(at, each)
    return kept
