"""How alike vectors are to each route's utterances: to their centre, and to the nearest three of them.

From some hundred utterances on, the centre is looked at a second time after directions in which utterances of one route
differ anyway have been shortened (whitening). Knows vectors of one encoder; does not know texts, thresholds or decisions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Places = NDArray[np.intp]

_NEAREST = 3
# A place in the matrix that stands for "no utterance": less alike than anything can be.
_ABSENT = np.float32(-2)
_NO_LENGTH = np.float32(1e-9)
# With fewer utterances the directions of whitening are noise, and rejecting suffers.
_ENOUGH_TO_WHITEN = 300
# Share of a round cloud that is mixed into the measured one, so that no direction is trusted too much.
_ROUNDNESS = 0.1
# Numbers that one step over many texts may hold: 16 MB.
_BLOCK = 4_000_000


class Centres:
    """The utterances of all routes in one space.

    Attributes:
        vectors: one unit row an utterance.
        owner: each utterance's route, by number.
        counts: utterances of each route.
    """

    def __init__(self, vectors: Vectors, owner: Places, routes: int) -> None:
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.owner = owner
        self.counts = np.bincount(owner, minlength=routes)
        # Row r lists the places of route r's utterances, padded with a place behind the last.
        self._places = np.full((routes, max(_NEAREST, int(self.counts.max()))), len(owner), dtype=np.intp)
        for route in range(routes):
            self._places[route, : self.counts[route]] = np.flatnonzero(owner == route)
        self._spaces = [_Means(self.vectors, owner, routes)]
        if len(owner) >= _ENOUGH_TO_WHITEN:
            self._spaces.append(_Means(self.vectors, owner, routes, _whitening(self.vectors, owner, self.counts)))

    def likeness(self, vector: Vectors) -> tuple[Vectors, Places]:
        """Of one unit vector: its likeness to each route, in -1..1, and the place of each route's nearest utterance."""
        alike = np.append(self.vectors @ vector, _ABSENT)[self._places]
        nearest = self._places[np.arange(len(alike)), alike.argmax(axis=1)]
        means = [space.alike(vector[None, :])[0] for space in self._spaces]
        return _mean([*means, _mean_of_nearest(alike)]), nearest

    def likenesses(self, vectors: Vectors) -> Vectors:
        """The likeness of many unit vectors to each route, one row a vector."""
        return self._blocks(len(vectors), lambda block: self._of(vectors[block], None))

    def without_themselves(self, judged: Places) -> Vectors:
        """The likeness of some utterances to each route, each as if it were not among the utterances."""
        return self._blocks(len(judged), lambda block: self._of(self.vectors[judged[block]], judged[block]))

    def _blocks(self, count: int, compute: Callable[[slice], Vectors]) -> Vectors:
        size = max(1, _BLOCK // max(self._places.size, len(self.owner)))
        blocks = [compute(slice(begin, begin + size)) for begin in range(0, count, size)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.counts)), np.float32)

    def _of(self, vectors: Vectors, judged: Places | None) -> Vectors:
        rows = np.arange(len(vectors))
        alike = np.concatenate([vectors @ self.vectors.T, np.full((len(vectors), 1), _ABSENT, np.float32)], axis=1)
        if judged is not None:
            alike[rows, judged] = _ABSENT
        own = None if judged is None else self.owner[judged]
        return _mean([*(space.alike(vectors, own) for space in self._spaces), _mean_of_nearest(alike[:, self._places])])


class _Means:
    """The mean of each route's utterances as a direction, after a linear map."""

    def __init__(
        self, vectors: Vectors, owner: Places, routes: int, whitening: tuple[Vectors, Vectors] | None = None
    ) -> None:
        self._middle, self._map = whitening if whitening is not None else (None, None)
        self._sums = np.zeros((routes, vectors.shape[1]), dtype=np.float32)
        np.add.at(self._sums, owner, self._mapped(vectors))
        self._units = unit(self._sums)

    def _mapped(self, vectors: Vectors) -> Vectors:
        if self._map is None:
            return vectors
        mapped: Vectors = (vectors - self._middle) @ self._map
        return mapped

    def alike(self, vectors: Vectors, own: Places | None = None) -> Vectors:
        """Cosines with each route's mean. `own`: the route that each vector is part of, and taken out of."""
        mapped = self._mapped(vectors)
        units = mapped if self._map is None else unit(mapped)
        found: Vectors = units @ self._units.T
        if own is not None:
            found[np.arange(len(own)), own] = np.einsum("ij,ij->i", units, unit(self._sums[own] - mapped))
        return found


def unit(rows: Vectors) -> Vectors:
    """The rows, scaled to length 1; a row without length stays as it is."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = rows / np.maximum(lengths, _NO_LENGTH)
    return scaled


def _whitening(vectors: Vectors, owner: Places, counts: Places) -> tuple[Vectors, Vectors]:
    """The middle of all utterances, and the map under which utterances of one route differ equally in all directions."""
    sums = np.zeros((len(counts), vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, owner, vectors)
    apart = vectors - (sums / counts[:, None].astype(np.float32))[owner]
    spread = (apart.T @ apart).astype(np.float64) / max(1, len(owner) - len(counts))
    dimensions = len(spread)
    spread = (1 - _ROUNDNESS) * spread + np.eye(dimensions) * (_ROUNDNESS * np.trace(spread) / dimensions)
    sizes, directions = np.linalg.eigh(spread)
    # Where all utterances of a route are equal there is nothing to whiten by.
    stretched = directions / np.sqrt(np.maximum(sizes, max(float(sizes[-1]), 1e-6) * 1e-6))
    return vectors.mean(axis=0), stretched.astype(np.float32)


def _mean(parts: list[Vectors]) -> Vectors:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    mean: Vectors = total / np.float32(len(parts))
    return mean


def _mean_of_nearest(alike: Vectors) -> Vectors:
    """Mean of the three largest along the last axis; places without an utterance do not count."""
    top = np.partition(alike, alike.shape[-1] - _NEAREST, axis=-1)[..., -_NEAREST:]
    there = top > _ABSENT + 0.5
    total: Vectors = np.where(there, top, 0).sum(axis=-1, dtype=np.float32) / np.maximum(there.sum(axis=-1), 1)
    return total.astype(np.float32)
