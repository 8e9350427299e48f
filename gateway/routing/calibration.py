"""Thresholds and margin, found from the utterances themselves by cross-validation, and from labelled lines where given.

A threshold keeps 95 of 100 utterances that the others send to the right route. Pure: scores in, numbers out, the same for
the same utterances in any order. Knows scores; does not know texts, encoders or decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.routing.likeness import NO_ROUTE
from gateway.routing.scoring import Judged, Scorer

Vectors = NDArray[np.float32]
Places = NDArray[np.intp]

_LOST = 0.05
# For routes of one utterance each there is nothing to be learnt.
_FALLBACK_THRESHOLD = 0.40
# As many judged utterances of a route as count for as much, in its threshold, as those of all routes together.
_TRUSTED = 20
# Nearer than this, two routes are a tie, however near to each other their own utterances are.
_LEAST_MARGIN = 0.005
_MOST_MARGIN = 0.02
_TIED = 0.005
# Labelled lines rarely hold as many strangers as traffic does: together they weigh at least this much of the rest.
_STRANGERS = 0.3
# All utterances together count for as much as so many labelled lines: one line must not turn half of them away.
_UTTERANCES = 5.0
# Thresholds that are worse than the best by no more than this share of the lines are as good: the middle of them is taken.
_AS_GOOD = 0.008
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Lines:
    """Labelled texts: normalised, with their unit vectors, and the route each belongs to, or None for none of them."""

    texts: Sequence[str]
    vectors: Vectors
    routes: Sequence[str | None]


class Calibration(msgspec.Struct, frozen=True):
    """What was fitted.

    Attributes:
        threshold: score a text has to reach for a route without a threshold of its own.
        margin: how far ahead of the second route the best one must be.
        thresholds: by route.
        kept: share of the judged utterances that reach their own route with these numbers, in 0..1; None if none was judged.
        key: digest of utterances and encoder that this belongs to.
    """

    threshold: float
    margin: float
    thresholds: Mapping[str, float] = {}
    kept: float | None = None
    key: str = ""


def fit(routes: Sequence[str], scorer: Scorer, lines: Lines | None = None, key: str = "") -> Calibration:
    """Calibrate what scores these routes; `lines` are labelled texts beside the utterances. Blocks, for seconds."""
    judged = scorer.cross_validated()
    labelled = None
    if lines is not None and len(lines.texts):
        number = {route: place for place, route in enumerate(routes)}
        belongs = np.asarray([number.get(route, NOWHERE) if route else NOWHERE for route in lines.routes], np.intp)
        labelled = belongs, scorer.scores(lines.texts, lines.vectors)
    thresholds, threshold, margin = calibrate(judged, scorer.lowest, labelled)
    return Calibration(
        threshold,
        margin,
        {route: float(own) for route, own in zip(routes, thresholds, strict=True) if route != NO_ROUTE},
        kept(judged, thresholds, margin),
        key,
    )


def calibrate(
    judged: Judged, lowest: float, lines: tuple[Places, Vectors] | None = None
) -> tuple[NDArray[np.float64], float, float]:
    """Fit.

    Args:
        judged: cross-validated utterances.
        lowest: scattered utterances must not put a threshold below this.
        lines: routes, by number, and scores of labelled lines; `NOWHERE` is the route of a line that belongs to none.

    Returns:
        The threshold of each route, the one for routes without an own, and the margin.
    """
    owner, routes = judged.owner, judged.scores.shape[1]
    own, others = _own_and_best_other(judged)
    right = own > others
    threshold = max(_threshold(own, own > others, judged.strange), lowest)
    offsets = np.zeros(routes)
    if right.any():
        # Routes whose utterances are more scattered than others' score lower, strangers to them too.
        sums, counts = np.bincount(owner[right], own[right], routes), np.bincount(owner[right], minlength=routes)
        means = sums / np.maximum(counts, 1)
        offsets = (means - own[right].mean()) * counts / (counts + _TRUSTED)
    if lines is not None and len(lines[0]):
        threshold = _from_lines(*lines, offsets, threshold, own[right] - offsets[owner[right]])
    thresholds = np.clip(threshold + offsets, lowest, 1).round(4)
    return thresholds, round(threshold, 4), _margin((own - others)[right])


def kept(judged: Judged, thresholds: NDArray[np.float64], margin: float) -> float | None:
    """The share of judged utterances that reach their own route; None where none was judged."""
    if not len(judged.owner):
        return None
    own, others = _own_and_best_other(judged)
    return round(float(((own >= thresholds[judged.owner]) & (own - others >= margin)).mean()), 4)


def _own_and_best_other(judged: Judged) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = np.arange(len(judged.owner))
    rest = judged.scores.astype(np.float64)
    own = rest[rows, judged.owner].copy()
    rest[rows, judged.owner] = -np.inf
    return own, rest.max(axis=1, initial=-np.inf)


def _threshold(own: NDArray[np.float64], right: NDArray[np.bool_], strange: Vectors) -> float:
    if not right.any():
        return _FALLBACK_THRESHOLD
    threshold = float(np.quantile(own[right], _LOST))
    if np.isfinite(strange).all():
        # Few utterances, all alike, put the quantile so high that nothing else gets through. Half way between what
        # belongs and what does not is as far up as a threshold makes sense.
        threshold = min(threshold, (float(np.median(own)) + float(np.median(strange))) / 2)
    return threshold


def _margin(leads: NDArray[np.float64]) -> float:
    finite = leads[np.isfinite(leads)]
    if not len(finite):
        return _LEAST_MARGIN
    return round(min(max(float(np.quantile(finite, _TIED)), _LEAST_MARGIN), _MOST_MARGIN), 4)


def _from_lines(
    owner: Places, scores: Vectors, offsets: NDArray[np.float64], found: float, known: NDArray[np.float64]
) -> float:
    """The threshold under which most labelled lines end where they should; `found` where they do not tell.

    `known` is how high the utterances score that find their own route; they are friends too.
    """
    chosen = scores.argmax(axis=1)
    height = scores[np.arange(len(owner)), chosen].astype(np.float64) - offsets[chosen]
    strange = owner == NOWHERE
    right = chosen == owner
    if not strange.any() or not right.any():
        # Without strangers every threshold is too high; without friends, too low.
        return min(found, float(np.quantile(height[right], _LOST))) if right.any() else found
    weight = max(1.0, _STRANGERS * float((~strange).sum()) / float(strange.sum()))
    gain = np.where(strange, weight, np.where(right, -1.0, 0.0))
    every = np.concatenate([height, known])
    lost = np.full(len(known), -min(1.0, _UTTERANCES / max(len(known), 1)))
    order = np.argsort(every, kind="stable")
    # What is won by raising the threshold past each in turn: strangers turned away, less friends lost.
    won = np.cumsum(np.concatenate([gain, lost])[order])
    best = won >= won.max() - _AS_GOOD * len(owner)
    highest, lowest = every[order][best].max(), every[order][best].min()
    if won.max() > 0:
        return float((highest + lowest) / 2)
    # No line is won by a threshold. Where none is lost on the whole by the one that was found, that one stays.
    return found if gain[height < found].sum() >= 0 else min(found, float(height.min()))
