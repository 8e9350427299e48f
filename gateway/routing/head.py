"""A linear head: which route the features of a text point to.

Multinomial logistic regression, fitted with numpy alone by a method without chance, so that equal examples in equal order
give equal weights. Knows rows of numbers and which route each belongs to; does not know texts, encoders or thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

# Pairs of steps and slopes that approximate the curvature (L-BFGS).
_REMEMBERED = 8
# Held back as weights are here, the head picks no better after that; thousands of examples would cost seconds.
_ROUNDS = 16
_HALVINGS = 12
_SUFFICIENT = 1e-4
_SETTLED = 1e-3
# The bias says how common a route is among the examples; it is held back a hundred times less than the weights.
_BIAS_SHRINKAGE = 0.01
_TINY = 1e-10


@dataclass(frozen=True, slots=True)
class Head:
    """Weights of one column a route; the last row is the bias."""

    weights: Vectors

    def logits(self, features: Vectors) -> Vectors:
        """Logarithms of each route's share, up to a constant a row. Takes one row or many."""
        said: Vectors = features @ self.weights[:-1] + self.weights[-1]
        return said


def fit_head(features: Vectors, owner: NDArray[np.intp], routes: int, shrinkage: float) -> Head:
    """The head under which the examples are most likely, its weights held back by `shrinkage` (L2, above 0).

    Blocks: half a second for 1,500 examples of 150 routes, some seconds for 15,000.
    """
    count, width = features.shape
    rows = np.arange(count)
    held = np.full((width + 1, 1), shrinkage, np.float32)
    held[-1] *= _BIAS_SHRINKAGE

    def loss(weights: Vectors) -> tuple[float, Vectors]:
        share = Head(weights).logits(features)
        share -= share.max(axis=1, keepdims=True)
        own = share[rows, owner].astype(np.float64)
        np.exp(share, out=share)
        total = share.sum(axis=1, keepdims=True)
        value = float((np.log(total[:, 0], dtype=np.float64) - own).sum())
        value += float((held * weights * weights).sum(dtype=np.float64)) / 2
        share /= total
        share[rows, owner] -= 1
        slope = held * weights
        slope[:-1] += features.T @ share
        slope[-1] += share.sum(axis=0)
        return value, slope

    return Head(_least(loss, np.zeros((width + 1, routes), np.float32)))


def log_shares(logits: Vectors) -> Vectors:
    """Logarithms of probabilities from logits, along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: Vectors = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def _least(loss: Callable[[Vectors], tuple[float, Vectors]], weights: Vectors) -> Vectors:
    """Where a convex loss is least, by L-BFGS with a backtracking line search."""
    value, slope = loss(weights)
    known: list[tuple[Vectors, Vectors, float]] = []
    for _ in range(_ROUNDS):
        step = _step(slope, known)
        expected = _dot(slope, step)
        size = 1.0
        for _ in range(_HALVINGS):
            tried = weights - np.float32(size) * step
            new_value, new_slope = loss(tried)
            if new_value <= value - _SUFFICIENT * size * expected:
                break
            size /= 2
        else:
            return weights
        moved, turned = tried - weights, new_slope - slope
        curvature = _dot(moved, turned)
        if curvature > _TINY:
            known = [*known[1 - _REMEMBERED :], (moved, turned, 1 / curvature)]
        settled = value - new_value < _SETTLED * abs(new_value)
        weights, value, slope = tried, new_value, new_slope
        if settled:
            break
    return weights


def _step(slope: Vectors, known: list[tuple[Vectors, Vectors, float]]) -> Vectors:
    """The slope through the inverse of the curvature, as far as that is known (the two-loop recursion)."""
    step = slope.copy()
    taken: list[float] = []
    for moved, turned, inverse in reversed(known):
        share = inverse * _dot(moved, step)
        taken.append(share)
        step -= np.float32(share) * turned
    if known:
        moved, turned, inverse = known[-1]
        step *= np.float32(1 / (inverse * max(_dot(turned, turned), _TINY)))
    else:
        step *= np.float32(1 / max(_dot(slope, slope) ** 0.5, _TINY))
    for (moved, turned, inverse), share in zip(known, reversed(taken), strict=True):
        step += moved * np.float32(share - inverse * _dot(turned, step))
    return step


def _dot(one: Vectors, other: Vectors) -> float:
    return float(np.vdot(one, other))
