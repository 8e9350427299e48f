"""Texts that nothing decided or that were close, grouped by likeness: what might become utterances, or belong to no route.

Pure. Knows texts, their decisions and their vectors; does not know where they come from, or files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.routing.decision import Candidate, Decision
from gateway.routing.likeness import NO_ROUTE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A decided text is told if it was ahead of the second route by less.
CLOSE = 0.05
# Of texts that missed their own route's threshold, nine in ten missed it by less than this; of strangers, one in four
# (validation parts of public intent sets, eight utterances a route).
_NEARLY = 0.2
# Paraphrases of one question are at least this alike to both packaged encoders, most of the time.
_ALIKE = 0.6


class Asked(msgspec.Struct, frozen=True):
    """A text that people sent, how often, and what is made of it now."""

    text: str
    n: int
    decision: Decision


class SuggestedText(msgspec.Struct, frozen=True):
    """One text of a group; score, threshold and margin of the route that is nearest to it, and why it was not decided."""

    text: str
    n: int
    score: float
    threshold: float | None
    margin: float | None
    nearest: str | None
    reason: str


class Suggestion(msgspec.Struct, frozen=True):
    """Texts that are alike.

    Attributes:
        route: the route that most of them are nearest to.
        kind: `utterances`: they might be added to that route; `none`: they are far from every route.
        n: how often they were sent, together.
        texts: the most frequent first.
    """

    route: str
    kind: Literal["utterances", "none"]
    n: int
    texts: tuple[SuggestedText, ...]


def is_telling(decision: Decision) -> bool:
    """Whether an explained decision says something about the utterances: rejected by likeness, or close."""
    if _nearest(decision) is None:
        return False
    if decision.strategy == "default":
        return decision.reason in {"below_threshold", "ambiguous"}
    return decision.strategy == "semantic" and decision.margin is not None and decision.margin < CLOSE


def suggest(asked: Sequence[Asked], vectors: NDArray[np.float32]) -> list[Suggestion]:
    """Group telling texts, whose unit vectors these are; the largest group first. Blocks for as many texts squared."""
    order = sorted(range(len(asked)), key=lambda place: (-asked[place].n, asked[place].text))
    leaders: list[int] = []
    groups: list[list[int]] = []
    for place in order:
        if leaders:
            alike = vectors[leaders] @ vectors[place]
            best = int(alike.argmax())
            if alike[best] >= _ALIKE:
                groups[best].append(place)
                continue
        leaders.append(place)
        groups.append([place])
    found = [_suggestion([asked[place] for place in group]) for group in groups]
    return sorted(found, key=lambda suggestion: (-suggestion.n, suggestion.texts[0].text))


def _suggestion(group: Sequence[Asked]) -> Suggestion:
    texts = []
    routes: Counter[str] = Counter()
    nearly = 0
    for each in group:
        candidate = _nearest(each.decision)
        if candidate is None or candidate.score is None:
            continue
        routes[candidate.route] += each.n
        gap = 0.0 if candidate.threshold is None else candidate.threshold - candidate.score
        nearly += each.n if gap <= _NEARLY else -each.n
        reason = each.decision.reason if each.decision.route is None else "close"
        texts.append(
            SuggestedText(
                each.text, each.n, candidate.score, candidate.threshold, candidate.margin, candidate.nearest, reason
            )
        )
    route = min(routes, key=lambda name: (-routes[name], name))
    return Suggestion(route, "utterances" if nearly > 0 else "none", sum(text.n for text in texts), tuple(texts))


def _nearest(decision: Decision) -> Candidate | None:
    scored = [
        candidate
        for candidate in decision.candidates
        if candidate.score is not None and candidate.verdict != "barred" and candidate.route != NO_ROUTE
    ]
    return max(scored, key=lambda candidate: candidate.score or 0.0, default=None)
