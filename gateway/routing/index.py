"""The utterances of all routes in one encoder's space, and what a text's scores there mean for a decision.

Knows scores, thresholds and margins; does not know how scores come about (`scoring.py`), how thresholds were found
(`calibration.py`), encoders, texts' scripts or what a decision leads to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.routing.calibration import Calibration, Lines, fit
from gateway.routing.encoder import EncoderFailed
from gateway.routing.fits import Fits, fit_key
from gateway.routing.likeness import NO_ROUTE, Outcome, View
from gateway.routing.negation import negates
from gateway.routing.normalise import normalise
from gateway.routing.scoring import Scorer

Vectors = NDArray[np.float32]

# Utterances of different routes that are at least this alike say nearly the same, or its opposite.
_TWINS = 0.75
_DIGITS = 5
_NO_LENGTH = np.float32(1e-9)


class Index:
    """Scores and judges texts.

    Attributes:
        routes: route names, in the order of scores; `NO_ROUTE` among them where there are utterances of none.
        utterances: the texts as they stand in the files, grouped by route.
        scorer: what gives scores.
        calibration: what was fitted, or given.
        margin: how far ahead of the second route the best one must be.
        thresholds: the score a text has to reach, by the order of `routes`.
    """

    def __init__(
        self,
        utterances: Sequence[tuple[str, str]],
        vectors: Vectors,
        *,
        encoder: str = "",
        fits: Fits | None = None,
        lines: Lines | None = None,
        calibration: Calibration | None = None,
        threshold: float | None = None,
        own_thresholds: Mapping[str, float] | None = None,
        margin: float | None = None,
    ) -> None:
        """Build from (route, utterance) pairs in any order and their unit vectors; calibrates itself unless told how.

        `encoder` names the space in what `fits` keeps for later versions. `lines` are labelled texts to calibrate by beside
        the utterances; a given `calibration` is taken instead of one fitted here. `threshold` and `margin` stand for all routes, `own_thresholds` for some; each outweighs what was fitted.
        Blocks, seconds for thousands of utterances.
        """
        normal = [normalise(text) for _, text in utterances]
        order = sorted(
            range(len(normal)), key=lambda place: (utterances[place][0], normal[place], utterances[place][1])
        )
        normal = [normal[place] for place in order]
        names = [utterances[place][0] for place in order]
        self.routes = tuple(dict.fromkeys(names))
        self.utterances = tuple(utterances[place][1] for place in order)
        self._negates = tuple(negates(text) for text in normal)
        self._number = {route: number for number, route in enumerate(self.routes)}
        owner = np.asarray([self._number[name] for name in names], dtype=np.intp)
        ordered = np.asarray(vectors, dtype=np.float32)[order]
        key = fit_key(encoder, zip(names, normal, strict=True))
        if calibration is None and threshold is not None and margin is not None:
            calibration = Calibration(threshold, margin)
        known = fits.get(key) if fits is not None and lines is None else None
        learnt = known[1] if known is not None else None
        self._nowhere = self._number.get(NO_ROUTE)
        # A scorer that let go of its features can score, and cannot be calibrated any more.
        if known is not None and (calibration is not None or learnt is not None):
            self.scorer = known[0]
        else:
            self.scorer = Scorer(normal, ordered, owner, len(self.routes), self._nowhere)
        if calibration is None:
            learnt = calibration = learnt or fit(self.routes, self.scorer, lines, key)
        self.scorer.forget_features()
        if fits is not None and lines is None:
            fits.put(key, self.scorer, learnt)
        self.calibration = calibration
        self.margin = calibration.margin if margin is None else margin
        fitted = calibration.thresholds if threshold is None else {}
        usual = calibration.threshold if threshold is None else threshold
        own = own_thresholds or {}
        self.thresholds = tuple(own.get(route, fitted.get(route, usual)) for route in self.routes)

    def judge(
        self, text: str, vector: Vectors, barred: frozenset[str] = frozenset(), *, views: bool = False
    ) -> Outcome:
        """Say which route a normalised text, whose unit vector this is, is most like. `barred` routes do not count."""
        barred_numbers = [self._number[route] for route in barred if route in self._number]
        count = len(self.routes) - len(barred_numbers)
        if count <= (self._nowhere is not None):
            return Outcome()
        found, nearest = self.scorer.score(text, vector, barred_numbers, every=views)
        # Rounded, so that the last digits of a matrix product decide nothing.
        scores = found.astype(np.float64).round(_DIGITS)
        # Routes are in the order of their names, and of equal scores the first is found.
        best = int(scores.argmax())
        score = float(scores[best])
        margin = None
        if count > 1:
            scores[best] = -np.inf
            margin = round(score - float(scores.max()), _DIGITS)
            scores[best] = score
        verdict = "chosen"
        if best == self._nowhere:
            verdict = "like_none"
        elif score < self.thresholds[best]:
            verdict = "below_threshold"
        elif margin is not None and (
            margin < self.margin or self._contradicts(text, vector, best, nearest[best], barred_numbers)
        ):
            verdict = "ambiguous"
        seen = self._views(scores, nearest, verdict) if views else ()
        if verdict != "chosen":
            return Outcome(reason=verdict, views=seen)
        return Outcome(self.routes[best], score, margin, f"like {self.utterances[nearest[best]]!r}", seen)

    def _contradicts(self, text: str, vector: Vectors, best: int, nearest: int, barred: Sequence[int]) -> bool:
        """Whether the text negates what the nearest utterance does not (or the reverse) and a twin of it is elsewhere.

        Encoders hear "turn it on", "turn it off" and "do not turn it on" as nearly one: where two routes hold such
        twins, the negated text belongs to neither for sure.
        """
        if negates(text) == self._negates[nearest]:
            return False
        vectors = self.scorer.centres.vectors
        nowhere = [] if self._nowhere is None else [self._nowhere]
        _, others = self.scorer.score(text, vector, [*barred, *nowhere, best], every=True)
        twins = vectors[others[others >= 0]] @ vectors[nearest]
        return bool(len(twins)) and float(twins.max()) >= _TWINS

    def _views(self, scores: NDArray[np.float64], nearest: NDArray[np.intp], verdict: str) -> tuple[View, ...]:
        order = [int(number) for number in np.argsort(-scores, kind="stable") if np.isfinite(scores[number])]
        views = []
        for place, number in enumerate(order):
            score = float(scores[number])
            rivals = [other for other in order[:2] if other != number]
            margin = round(score - float(scores[rivals[0]]), _DIGITS) if rivals else None
            threshold = None if number == self._nowhere else self.thresholds[number]
            below = threshold is not None and score < threshold
            said = verdict if place == 0 else "below_threshold" if below else "lower_score"
            if said == "like_none":
                said = "chosen"
            views.append(View(self.routes[number], score, threshold, margin, self.utterances[nearest[number]], said))
        return tuple(views)


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
