"""Utterances as one matrix, and how alike a text is to each route.

A route's score is the mean of two likenesses: to the centre of its utterances, and to the three nearest of them. Knows
vectors of one encoder and thresholds; does not know encoders, texts' scripts or what a decision leads to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.routing.encoder import EncoderFailed
from gateway.routing.likeness import Outcome, View
from gateway.routing.negation import negates
from gateway.routing.normalise import normalise

Vectors = NDArray[np.float32]

_NEAREST = 3
# A place in the matrix that stands for "no utterance": less alike than anything can be.
_ABSENT = np.float32(-2)

# keep95: the threshold that keeps 95 of 100 of the routes' own examples, each judged by the others.
_LOST = 0.05
# For routes of one utterance each there is nothing to be learnt.
_FALLBACK_THRESHOLD = 0.40
# Scattered utterances put the quantile so low that everything gets through.
_LOWEST = 0.25
# Nearer than this, two routes are a tie.
_AUTO_MARGIN = 0.01
# Utterances of different routes that are at least this alike say nearly the same, or its opposite.
_TWINS = 0.75
_DIGITS = 5
_NO_LENGTH = np.float32(1e-9)
# More examples than these change the quantile in the third digit and cost seconds.
_MOST_JUDGED = 2000
# Numbers that one step of the calibration may hold: 16 MB.
_BLOCK = 4_000_000


class Index:
    """The utterances of all routes in one encoder's space.

    Attributes:
        routes: route names, in the order of scores.
        utterances: the texts as they stand in the files, grouped by route.
        threshold: score a text has to reach for routes without a threshold of their own.
        margin: how far ahead of the second route the best one must be.
    """

    def __init__(
        self,
        utterances: Sequence[tuple[str, str]],
        vectors: Vectors,
        *,
        threshold: float | None = None,
        own_thresholds: Mapping[str, float] | None = None,
        margin: float | None = None,
    ) -> None:
        """Build from (route, utterance) pairs and their unit vectors; calibrates itself unless told a threshold.

        Blocks, up to a second for thousands of utterances.
        """
        names = [route for route, _ in utterances]
        self.routes = tuple(dict.fromkeys(names))
        self.utterances = tuple(text for _, text in utterances)
        self._negates = tuple(negates(normalise(text)) for text in self.utterances)
        self._vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        number = {route: i for i, route in enumerate(self.routes)}
        self._owner = np.asarray([number[name] for name in names], dtype=np.intp)
        counts = np.bincount(self._owner, minlength=len(self.routes))
        # Row r lists the places of route r's utterances, padded with a place behind the last.
        self._places = np.full((len(self.routes), max(_NEAREST, int(counts.max()))), len(names), dtype=np.intp)
        for route in range(len(self.routes)):
            self._places[route, : counts[route]] = np.flatnonzero(self._owner == route)
        self._counts = counts
        self._sums = np.zeros((len(self.routes), self._vectors.shape[1]), dtype=np.float32)
        np.add.at(self._sums, self._owner, self._vectors)
        self._centres = _unit(self._sums)
        self.margin = _AUTO_MARGIN if margin is None else margin
        self.threshold = self._calibrated() if threshold is None else threshold
        own = own_thresholds or {}
        self.thresholds = tuple(own.get(route, self.threshold) for route in self.routes)

    def judge(
        self, text: str, vector: Vectors, barred: frozenset[str] = frozenset(), *, views: bool = False
    ) -> Outcome:
        """Say which route a normalised text, whose unit vector this is, is most like. `barred` routes do not count."""
        alike = np.append(self._vectors @ vector, _ABSENT)[self._places]
        # Rounded, so that the last digits of a matrix product decide nothing.
        scores = np.round((self._centres @ vector + _mean_of_nearest(alike)) / 2, _DIGITS).astype(np.float64)
        open_ = [number for number, route in enumerate(self.routes) if route not in barred]
        if not open_:
            return Outcome()
        order = sorted(open_, key=lambda number: (-scores[number], self.routes[number]))
        best = order[0]
        score = round(float(scores[best]), _DIGITS)
        margin = round(score - float(scores[order[1]]), _DIGITS) if len(order) > 1 else None
        nearest = self._places[np.arange(len(self.routes)), alike.argmax(axis=1)]
        verdict = "chosen"
        if score < self.thresholds[best]:
            verdict = "below_threshold"
        elif margin is not None and (margin < self.margin or self._contradicts(text, best, order[1:], nearest)):
            verdict = "ambiguous"
        seen = self._views(order, scores, nearest, verdict) if views else ()
        if verdict != "chosen":
            return Outcome(reason=verdict, views=seen)
        return Outcome(self.routes[best], score, margin, f"like {self.utterances[nearest[best]]!r}", seen)

    def _contradicts(self, text: str, best: int, others: Sequence[int], nearest: NDArray[np.intp]) -> bool:
        """Whether the text negates what the nearest utterance does not (or the reverse) and a twin of it is elsewhere.

        Encoders hear "turn it on", "turn it off" and "do not turn it on" as nearly one: where two routes hold such
        twins, the negated text belongs to neither for sure.
        """
        if negates(text) == self._negates[nearest[best]]:
            return False
        twins = self._vectors[nearest[list(others)]] @ self._vectors[nearest[best]]
        return bool(len(twins)) and float(twins.max()) >= _TWINS

    def _views(
        self, order: Sequence[int], scores: NDArray[np.float64], nearest: NDArray[np.intp], verdict: str
    ) -> tuple[View, ...]:
        views = []
        for place, number in enumerate(order):
            score = round(float(scores[number]), _DIGITS)
            rivals = [other for other in order[:2] if other != number]
            margin = round(score - float(scores[rivals[0]]), _DIGITS) if rivals else None
            threshold = self.thresholds[number]
            said = verdict if place == 0 else "below_threshold" if score < threshold else "lower_score"
            views.append(View(self.routes[number], score, threshold, margin, self.utterances[nearest[number]], said))
        return tuple(views)

    def _calibrated(self) -> float:
        """The 5 % quantile of the scores of examples that the others judge rightly; see `_threshold`."""
        step = -(-len(self.utterances) // _MOST_JUDGED)
        judged = np.arange(0, len(self.utterances), step)
        # The only utterance of a route has no others to be judged by.
        judged = judged[self._counts[self._owner[judged]] > 1]
        own_scores, best_others = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
        rows_at_once = max(1, _BLOCK // max(self._places.size, len(self.utterances)))
        for begin in range(0, len(judged), rows_at_once):
            block = judged[begin : begin + rows_at_once]
            scores, rows, own = self._scores_without(block), np.arange(len(block)), self._owner[block]
            own_scores.append(scores[rows, own].copy())
            scores[rows, own] = _ABSENT
            best_others.append(scores.max(axis=1))
        return _threshold(np.concatenate(own_scores), np.concatenate(best_others))

    def _scores_without(self, judged: NDArray[np.intp]) -> Vectors:
        """Scores of some utterances against all routes, each as if it were not among the examples."""
        queries, own = self._vectors[judged], self._owner[judged]
        rows = np.arange(len(judged))
        alike = np.concatenate(
            [queries @ self._vectors.T, np.full((len(judged), 1), _ABSENT, dtype=np.float32)], axis=1
        )
        alike[rows, judged] = _ABSENT
        centres = queries @ self._centres.T
        centres[rows, own] = np.einsum("ij,ij->i", queries, _unit(self._sums[own] - queries))
        scores: Vectors = (centres + _mean_of_nearest(alike[:, self._places])) / np.float32(2)
        return scores


def checked(vectors: Vectors, rows: int, dimensions: int) -> Vectors:
    """The vectors, once they are known to be usable; scaled to length 1.

    Raises:
        EncoderFailed: the shape is wrong, a number is not finite, or a vector has no direction.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.shape != (rows, dimensions):
        raise EncoderFailed(f"vectors of shape {vectors.shape}, expected {(rows, dimensions)}")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or (lengths < _NO_LENGTH).any():
        raise EncoderFailed("a vector is not finite or has no direction")
    unit: Vectors = vectors / lengths
    return unit


def _threshold(own: Vectors, others: Vectors) -> float:
    """From cross-validated scores: of each judged example to its own route, and to the best other route."""
    right = own[own > others]
    if not len(right):
        return _FALLBACK_THRESHOLD
    threshold = float(np.quantile(right, _LOST))
    if others.max() > _ABSENT:
        # Few utterances, all alike, put the quantile so high that nothing else gets through. Half way between what
        # belongs and what does not is as far up as a threshold makes sense.
        threshold = min(threshold, (float(np.median(own)) + float(np.median(others))) / 2)
    return round(max(threshold, _LOWEST), 4)


def _mean_of_nearest(alike: Vectors) -> Vectors:
    """Mean of the three largest along the last axis; places without an utterance do not count."""
    top = np.partition(alike, alike.shape[-1] - _NEAREST, axis=-1)[..., -_NEAREST:]
    there = top > _ABSENT + 0.5
    total: Vectors = np.where(there, top, 0).sum(axis=-1, dtype=np.float32) / np.maximum(there.sum(axis=-1), 1)
    return total.astype(np.float32)


def _unit(rows: Vectors) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Vectors = rows / np.maximum(lengths, _NO_LENGTH)
    return unit
