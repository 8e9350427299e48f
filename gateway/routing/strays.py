"""Utterances that would go to another route if they were not among the utterances.

By the scores, thresholds and margin that decide for requests, with a head and neighbours that do not know the utterance.
Blocks, for as long as learning takes. Knows one encoder's index; does not know files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.routing.index import Index
from gateway.routing.likeness import NO_ROUTE
from gateway.routing.normalise import normalise
from gateway.routing.scoring import Scorer


@dataclass(frozen=True, slots=True)
class Stray:
    """One of them.

    Attributes:
        route: the route it stands in.
        utterance: as written.
        other: the route it would go to, or `NO_ROUTE`.
        own_score, other_score: its scores for both.
        nearest: the utterance of the other route that it is most like.
    """

    route: str
    utterance: str
    other: str
    own_score: float
    other_score: float
    nearest: str


def strays(index: Index) -> list[Stray]:
    """All of them, in the order of routes. Routes of one utterance are not judged.

    Where two draw each other over, only the one that is drawn more is told: it probably stands in the wrong file.
    """
    texts = [normalise(text) for text in index.utterances]
    vectors, owner = index.scorer.centres.vectors, index.scorer.centres.owner
    nowhere = index.routes.index(NO_ROUTE) if NO_ROUTE in index.routes else None
    # The index's own scorer has let go of what judging needs.
    judged = Scorer(texts, vectors, owner, len(index.routes), nowhere).cross_validated()
    rows = np.arange(len(judged.owner))
    others = judged.scores.copy()
    own = others[rows, judged.owner]
    others[rows, judged.owner] = -np.inf
    best = others.argmax(axis=1)
    height = others.max(axis=1, initial=-np.inf)
    needed = np.asarray([-np.inf if name == NO_ROUTE else index.thresholds[k] for k, name in enumerate(index.routes)])
    astray = np.flatnonzero((height >= needed[best]) & (height - own >= index.margin))
    found = []
    for row in astray.tolist():
        place, other = int(judged.places[row]), int(best[row])
        _, nearest = index.scorer.score(texts[place], vectors[place], every=True)
        found.append(
            Stray(
                index.routes[int(judged.owner[row])],
                index.utterances[place],
                index.routes[other],
                float(own[row]),
                float(height[row]),
                index.utterances[int(nearest[other])],
            )
        )
    found.sort(key=lambda stray: (stray.own_score - stray.other_score, stray.route, stray.utterance))
    told: dict[tuple[str, str], Stray] = {}
    for stray in found:
        drawn = told.get((stray.other, stray.nearest))
        if drawn is None or drawn.other != stray.route:
            told[stray.route, stray.utterance] = stray
    return [told[place] for place in sorted(told)]
