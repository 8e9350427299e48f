"""Cuts an answer into the pieces a stream sends, counts its tokens, and ends it where it has to end.

Pure. A token here is an estimate, the same for the same text: four letters of a word, or one Chinese character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.backends.demo.words import HAN

_CJK: Final = f"{HAN}\u3040-\u30ff\uac00-\ud7af\u3000-\u303f\uff00-\uffef"
# A word with the white space before it; one CJK character with its punctuation; trailing white space.
_PIECE: Final = re.compile(rf"\s*[{_CJK}]|\s*[^\s{_CJK}]+|\s+")
_LETTERS_A_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """A text as it will be sent: its pieces, their tokens altogether, and why it ends."""

    pieces: tuple[str, ...]
    tokens: int
    finish_reason: Literal["stop", "length"]

    @property
    def text(self) -> str:
        """The pieces joined."""
        return "".join(self.pieces)


def split_pieces(text: str) -> list[str]:
    """Words, or single CJK characters. Joined they are the text."""
    return _PIECE.findall(text)


def count_tokens(text: str) -> int:
    """An estimate: never 0 for a text that is not empty."""
    return sum(_piece_tokens(piece) for piece in split_pieces(text))


def _piece_tokens(piece: str) -> int:
    return max(1, -(-len(piece.strip()) // _LETTERS_A_TOKEN))


def cut(text: str, stop: Sequence[str], max_tokens: int | None) -> Cut:
    """End a text before the first stop sequence, and at `max_tokens` (a whole number from 1, or None)."""
    ends = [at for at in (text.find(sequence) for sequence in stop) if at >= 0]
    text = text[: min(ends)] if ends else text
    kept: list[str] = []
    tokens = 0
    for piece in split_pieces(text):
        cost = _piece_tokens(piece)
        if max_tokens is not None and tokens + cost > max_tokens:
            room = max_tokens - tokens
            if room:
                blanks = len(piece) - len(piece.lstrip())
                kept.append(piece[: blanks + room * _LETTERS_A_TOKEN])
            return Cut(tuple(kept), max_tokens, "length")
        kept.append(piece)
        tokens += cost
    return Cut(tuple(kept), tokens, "stop")
