"""What the router answers, and why.

Pure values. Knows nothing of how a decision is reached.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Strategy = Literal["rule", "semantic", "default", "explicit", "sticky"]


class Match(msgspec.Struct, frozen=True, gc=False):
    """A keyword or pattern that was found.

    `start` and `end` are character positions in the text as the client sent it.
    """

    kind: Literal["keyword", "pattern", "all_of", "none_of", "when"]
    value: str
    start: int
    end: int


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One route as the router saw it: what spoke for it and why it was taken or left.

    Attributes:
        route: the route's name; `-` for the utterances that belong to no route.
        score: similarity in -1..1, or None where no utterance was compared.
        threshold: the score it had to reach, or None.
        margin: distance to the best other route, or None.
        nearest: the utterance that was most alike, or None.
        matched: keywords and patterns that were found.
        verdict: `chosen`, or one word for why not: `below_threshold`, `ambiguous`, `lower_score`,
            `not_clearly_better` (than the conversation's own route), `lower_priority`, `barred`, `no_match`.
    """

    route: str
    score: float | None = None
    threshold: float | None = None
    margin: float | None = None
    nearest: str | None = None
    matched: tuple[Match, ...] = ()
    verdict: str = "no_match"


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes.

    Attributes:
        route: the route's name, or None for default and explicit decisions.
        model: a configured model's name.
        strategy: which part of the router decided.
        version: the version everything was decided by.
        score: similarity in -1..1, semantic decisions only.
        margin: distance to the second best route, semantic decisions only.
        cached: whether a cache answered.
        reason: one short sentence for people; for `default` it says why nothing matched
            (`no_match`, `below_threshold`, `ambiguous`, `like_none`, `encoder_loading`, `encoder_timeout`, `encoder_failed`, `unreadable`
            (no encoder knows the script), `semantic_disabled`, `no_text`).
        candidates: what was considered, best first; empty on the hot path of rules.
        matched: keywords and patterns behind a `rule` decision, where the decision was asked to explain itself.
        calibration: where thresholds come from, where the decision was asked to explain itself.
    """

    route: str | None
    model: str
    strategy: Strategy
    version: str
    score: float | None = None
    margin: float | None = None
    cached: bool = False
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    matched: tuple[Match, ...] = ()
    calibration: str = ""
