"""What a text is made of, letter by letter: the part of likeness that an encoder smooths away.

Runs of one to three characters and whole words, weighed by how rare they are among the utterances and hashed into a row of
fixed width. Product names, numbers and Chinese words an encoder never met count here. Knows texts; does not know routes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

WIDTH = 1024
_LONGEST = 3
# Longer texts are prompts, not questions: their ends say what they are about, as for the encoder.
_MAX_CHARS = 600
_NO_LENGTH = 1e-9


class Pieces:
    """Turns normalised texts into unit rows of `WIDTH` numbers, by weights learnt from the utterances."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Count in how many of the texts each piece occurs. The order of the texts makes no difference."""
        found = Counter(piece for text in texts for piece in _pieces(text))
        self._rarest = math.log(1 + len(texts)) + 1
        self._known: dict[str, tuple[int, float]] = {}
        for piece, count in found.items():
            place, sign = _place(piece)
            self._known[piece] = place, sign * (math.log((1 + len(texts)) / (1 + count)) + 1)

    def rows(self, texts: Sequence[str]) -> Vectors:
        """One unit row a text; zeros where a text is empty."""
        rows = np.zeros((len(texts), WIDTH), np.float32)
        for number, text in enumerate(texts):
            rows[number] = self.row(text)
        return rows

    def row(self, text: str) -> Vectors:
        """The unit row of a text."""
        row = [0.0] * WIDTH
        known = self._known.get
        for piece in _pieces(text):
            found = known(piece)
            if found is None:
                place, sign = _place(piece)
                row[place] += sign * self._rarest
            else:
                row[found[0]] += found[1]
        made = np.asarray(row, np.float32)
        unit: Vectors = made / np.float32(max(float(np.linalg.norm(made)), _NO_LENGTH))
        return unit


def _place(piece: str) -> tuple[int, int]:
    digest = crc32(piece.encode("utf-8", "surrogatepass"))
    return (digest >> 1) % WIDTH, 1 if digest & 1 else -1


def _pieces(text: str) -> dict[str, None]:
    """Each piece once, in the order of the text: a set's order differs from process to process, and so would sums."""
    if len(text) > _MAX_CHARS:
        text = f"{text[: _MAX_CHARS // 2]} {text[-_MAX_CHARS // 2 :]}"
    framed = f" {text} "
    found = dict.fromkeys(
        framed[start : start + size] for size in range(1, _LONGEST + 1) for start in range(len(framed) - size + 1)
    )
    words = text.split()
    # A line break sets words apart from runs of characters: a normalised text holds none.
    found.update(dict.fromkeys(f"\n{word}" for word in words))
    found.update(dict.fromkeys(f"\n{one} {other}" for one, other in itertools.pairwise(words)))
    return found
