"""How alike vectors are to each route's utterances: to their centre, and to the nearest of them.

Knows vectors of one encoder; does not know texts, thresholds or decisions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Places = NDArray[np.intp]

# With so many utterances a route, the nearest counts for as much as the centre; with a hundred it is nearly everything.
_HALF_NEAREST = 3
# Less alike than anything can be: a place that does not count.
_ABSENT = np.float32(-2)
# The most a cosine of float32 vectors can come out as.
_HIGHEST = np.float32(1.0001)
_NO_LENGTH = np.float32(1e-9)
# Numbers that one step over many texts may hold: 16 MB.
_BLOCK = 4_000_000


class Centres:
    """The utterances of all routes in one space.

    Attributes:
        vectors: one unit row an utterance.
        owner: each utterance's route, by number, in ascending order.
        counts: utterances of each route, one at least.
    """

    def __init__(self, vectors: Vectors, owner: Places, routes: int, nowhere: int | None = None) -> None:
        """`nowhere` is the number of what is no route: how many utterances it has says nothing about the others."""
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.owner = owner
        self.counts = np.bincount(owner, minlength=routes)
        self._begins = np.searchsorted(owner, np.arange(routes))
        usual = len(owner) / routes if nowhere is None else (len(owner) - self.counts[nowhere]) / max(routes - 1, 1)
        self._nearest_share = np.float32(usual / (usual + _HALF_NEAREST))
        self._sums = np.zeros((routes, self.vectors.shape[1]), dtype=np.float32)
        np.add.at(self._sums, owner, self.vectors)
        self._units = unit(self._sums)

    def central(self, vector: Vectors) -> tuple[Vectors, Vectors]:
        """Of one unit vector: its cosine with each route's centre, and the most its likeness to each route can be."""
        centre: Vectors = self._units @ vector
        return centre, self._mixed(centre, _HIGHEST)

    def likeness(self, vector: Vectors, centre: Vectors, route: int) -> tuple[np.float32, int]:
        """Its likeness to one route, in -1..1, and the place of that route's nearest utterance."""
        begin = int(self._begins[route])
        alike = self.vectors[begin : begin + int(self.counts[route])] @ vector
        nearest = int(alike.argmax())
        return np.float32(self._mixed(centre[route], alike[nearest])), begin + nearest

    def likenesses(self, vectors: Vectors) -> Vectors:
        """The likeness of many unit vectors to each route, one row a vector."""
        return self._blocks(len(vectors), lambda block: self._of(vectors[block], None))

    def without_themselves(self, judged: Places) -> Vectors:
        """The likeness of some utterances to each route, each as if it were not among the utterances."""
        return self._blocks(len(judged), lambda block: self._of(self.vectors[judged[block]], judged[block]))

    def _blocks(self, count: int, compute: Callable[[slice], Vectors]) -> Vectors:
        size = max(1, _BLOCK // len(self.owner))
        blocks = [compute(slice(begin, begin + size)) for begin in range(0, count, size)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.counts)), np.float32)

    def _of(self, vectors: Vectors, judged: Places | None) -> Vectors:
        alike, centre = vectors @ self.vectors.T, vectors @ self._units.T
        if judged is not None:
            rows, own = np.arange(len(vectors)), self.owner[judged]
            alike[rows, judged] = _ABSENT
            centre[rows, own] = np.einsum("ij,ij->i", vectors, unit(self._sums[own] - vectors))
        near = np.maximum.reduceat(alike, self._begins, axis=1)
        return self._mixed(centre, np.where(near == _ABSENT, centre, near))

    def _mixed(self, centre: Vectors, near: Vectors | np.float32) -> Vectors:
        mixed: Vectors = centre + self._nearest_share * (near - centre)
        return mixed


def unit(rows: Vectors) -> Vectors:
    """The rows, scaled to length 1; a row without length stays as it is."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = rows / np.maximum(lengths, _NO_LENGTH)
    return scaled
