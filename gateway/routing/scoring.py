"""The score of a text for each route: how alike it is, less what the linear head doubts.

A score is the likeness to the route's utterances (`centres.py`, in -1..1) plus 0.3 times the logarithm of the probability
that a linear head over vector and pieces gives the route (never above 0). The head tells neighbours apart, the likeness
knows what belongs nowhere. Knows utterances, their routes and their vectors; does not know thresholds or decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gateway.routing.centres import Centres
from gateway.routing.head import Head, fit_head, log_shares
from gateway.routing.pieces import WIDTH, Pieces

Vectors = NDArray[np.float32]
Places = NDArray[np.intp]

# Chosen on the train and valid parts of public intent sets, together with the head's shrinkage: English and Chinese, both
# packaged encoders, near and far strangers. Half or twice of each costs less than a point anywhere.
_DOUBT = np.float32(0.3)
_VECTOR_WEIGHT = np.float32(4)
_PIECES_WEIGHT = np.float32(3)
_SHRINKAGE = 1.0
# With fewer utterances, in all or a route, a head learns the accidents of their wording.
_FEWEST = 12
_FEWEST_A_ROUTE = 3
# Products of examples, routes and features: what a head may cost, some ten seconds. The rest of the utterances is left out.
_MOST_WORK = 8_000_000_000
# Scores are compared after rounding to five digits.
_ROUNDED = 2e-5
# Likenesses of strangers, where there is no head to doubt them.
_LOWEST = 0.25
_FOLDS = 5
# With more utterances one fold judges enough of them, and five would cost minutes.
_MOST_FOR_ALL_FOLDS = 4000
# More judged utterances than these change a quantile in the third digit.
_MOST_JUDGED = 3000


@dataclass(frozen=True, slots=True)
class Judged:
    """Utterances seen as if they were questions.

    Attributes:
        places: the place of each among the utterances.
        owner: the route of each, by number.
        scores: its score for each route without itself.
        strange: the best score it would have if its whole route were not there; minus infinity where there is no other.
    """

    owner: Places
    scores: Vectors
    strange: Vectors
    places: Places = field(default_factory=lambda: np.empty(0, np.intp))


class Scorer:
    """Scores texts against the utterances of one encoder's space. Building it blocks, seconds for thousands of them."""

    def __init__(
        self, texts: Sequence[str], vectors: Vectors, owner: Places, routes: int, nowhere: int | None = None
    ) -> None:
        """Learn from normalised utterances in an order that does not depend on files, their unit vectors and routes.

        `nowhere` is the number of what stands among the routes and is none: texts that belong to no route.
        """
        self.centres = Centres(vectors, owner, routes, nowhere)
        self._routes = routes
        self._nowhere = nowhere
        self._rank = _ranks(texts, owner)
        self._pieces: Pieces | None = None
        self._head: Head | None = None
        others = 0 if nowhere is None else int(self.centres.counts[nowhere])
        if routes > 1 and len(texts) - others >= max(_FEWEST, _FEWEST_A_ROUTE * (routes - (nowhere is not None))):
            self._pieces = Pieces(texts)
            self._features = _features(self.centres.vectors, self._pieces.rows(texts))
            self._head = self._fitted(np.arange(len(texts)))

    def score(
        self, text: str, vector: Vectors, barred: Sequence[int] = (), *, every: bool = False
    ) -> tuple[Vectors, Places]:
        """Of one normalised text and its unit vector: its score for each route, and each route's nearest utterance.

        Reading all utterances costs more than everything else, so a route that cannot come first or second by its centre
        and the head's doubt is not looked into, nor is a barred one: its score is minus infinity, its utterance -1. With
        `every`, all routes that are not barred are looked into; the others' scores come out the same, to the last digit.
        """
        centre, most = self.centres.central(vector)
        doubt = np.zeros(self._routes, np.float32)
        if self._head is not None and self._pieces is not None:
            doubt = _DOUBT * log_shares(self._head.logits(_features(vector, self._pieces.row(text))))
        most = most + doubt
        most[list(barred)] = -np.inf
        scores = np.full(self._routes, -np.inf, np.float32)
        nearest = np.full(self._routes, -1, np.intp)
        first = second = -np.inf
        for route in np.argsort(-most, kind="stable").tolist():
            if most[route] == -np.inf or (not every and most[route] < second - _ROUNDED):
                break
            likeness, nearest[route] = self.centres.likeness(vector, centre, route)
            score = max(float(likeness + doubt[route]), -1.0)
            scores[route] = score
            first, second = max(first, score), max(second, min(first, score))
        return scores, nearest

    def scores(self, texts: Sequence[str], vectors: Vectors) -> Vectors:
        """The scores of many texts, one row a text."""
        likeness = self.centres.likenesses(vectors)
        if self._head is None or self._pieces is None:
            return likeness
        return _joined(likeness, self._head.logits(_features(vectors, self._pieces.rows(texts))))

    def cross_validated(self) -> Judged:
        """Utterances, and the scores they would have if they were not among the utterances.

        Routes of one utterance are left out: nothing could be learnt about them without it. So is what belongs to no
        route: nobody asks for it to be found.
        """
        counts = self.centres.counts[self.centres.owner]
        folds = np.where(counts > 1, self._rank % _FOLDS, -1)
        if self._nowhere is not None:
            folds[self.centres.owner == self._nowhere] = -1
        if self._head is None:
            judged = np.flatnonzero(folds >= 0)
            parts = [self._judged(_thinned(judged), None)]
        elif not len(self._features):
            raise RuntimeError("what cross-validation needs was let go of")
        else:
            every = range(_FOLDS if len(counts) <= _MOST_FOR_ALL_FOLDS else 1)
            parts = []
            for fold in every:
                judged = _thinned(np.flatnonzero(folds == fold))
                if len(judged):
                    logits = self._fitted(np.flatnonzero(folds != fold)).logits(self._features[judged])
                    parts.append(self._judged(judged, logits))
        if not parts:
            return Judged(np.empty(0, np.intp), np.empty((0, self._routes), np.float32), np.empty(0, np.float32))
        return Judged(
            np.concatenate([part.owner for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.strange for part in parts]),
            np.concatenate([part.places for part in parts]),
        )

    def _judged(self, places: Places, logits: Vectors | None) -> Judged:
        likeness = self.centres.without_themselves(places)
        owner, rows = self.centres.owner[places], np.arange(len(places))
        scores = likeness if logits is None else _joined(likeness, logits)
        others = likeness.copy()
        if logits is not None:
            logits = logits.copy()
            logits[rows, owner] = -np.inf
            # With two routes the other one is left alone, and certain.
            others = _joined(likeness, logits) if self._routes > 1 else others
        others[rows, owner] = -np.inf
        if self._nowhere is not None:
            others[:, self._nowhere] = -np.inf
        return Judged(owner, scores, others.max(axis=1, initial=-np.inf), places)

    def forget_features(self) -> None:
        """Let go of what only `cross_validated` needs, for good: with many utterances the larger part of the memory."""
        self._features = np.empty((0, 0), np.float32)

    @property
    def lowest(self) -> float:
        """A threshold below this lets everything through."""
        return _LOWEST if self._head is None else -1.0

    def _fitted(self, places: Places) -> Head:
        most = max(1, _MOST_WORK // (self._features.shape[1] * self._routes))
        if len(places) > most:
            # The first of each route in the order of their digests: every route keeps its share.
            places = np.sort(places[np.argsort(self._rank[places], kind="stable")[:most]])
        owner = self.centres.owner[places]
        head = fit_head(self._features[places], owner, self._routes, _SHRINKAGE)
        return (
            head if self._nowhere is None else _evened(head, np.bincount(owner, minlength=self._routes), self._nowhere)
        )


def _evened(head: Head, counts: Places, nowhere: int) -> Head:
    """The head, in which a long list of what belongs nowhere counts no more than a route of the usual length."""
    excess = counts[nowhere] * (len(counts) - 1) / max(int(counts.sum() - counts[nowhere]), 1)
    if excess <= 1:
        return head
    weights = head.weights.copy()
    weights[-1, nowhere] -= np.float32(np.log(excess))
    return Head(weights)


def _thinned(places: Places) -> Places:
    return places[:: max(1, -(-len(places) // _MOST_JUDGED))]


def _features(vectors: Vectors, pieces: Vectors) -> Vectors:
    width = vectors.shape[-1]
    joined = np.empty((*vectors.shape[:-1], width + WIDTH), np.float32)
    np.multiply(vectors, _VECTOR_WEIGHT, out=joined[..., :width])
    np.multiply(pieces, _PIECES_WEIGHT, out=joined[..., width:])
    return joined


def _joined(likeness: Vectors, logits: Vectors) -> Vectors:
    score: Vectors = np.maximum(likeness + _DOUBT * log_shares(logits), np.float32(-1))
    return score


def _ranks(texts: Sequence[str], owner: Places) -> Places:
    """Each utterance's number within its route, in the order of digests: as good as chance, and always the same."""
    digests = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
    ranks = np.empty(len(texts), np.intp)
    seen: dict[int, int] = {}
    for place in sorted(range(len(texts)), key=lambda place: (digests[place], texts[place])):
        route = int(owner[place])
        ranks[place] = seen[route] = seen.get(route, -1) + 1
    return ranks
