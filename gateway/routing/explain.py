"""A decision for people to read, and for programs.

Pure. Takes a `Decision` made with `explain=True`; knows nothing of how it was reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.routing.decision import Candidate, Decision

# What the one-word reasons of a default decision mean.
REASONS = {
    "no_match": "no rule matched, and no route with utterances may be used here",
    "below_threshold": "no rule matched, and no route's utterances are alike enough",
    "like_none": "no rule matched, and the text is most like one of `router.semantic.none`, which belong to no route",
    "ambiguous": "no rule matched, and two routes are too close to call",
    "encoder_loading": "no rule matched, and the encoder is still loading",
    "encoder_timeout": "no rule matched, and the encoder took longer than `router.semantic.timeout_ms`",
    "encoder_failed": "no rule matched, and the encoder failed",
    "unreadable": "no rule matched, and no encoder reads this script",
    "semantic_disabled": "no rule matched, and there is no semantic routing: switched off, or no route has utterances",
    "no_text": "the last user message has no text",
}


def explanation(decision: Decision) -> dict[str, Any]:
    """The whole decision as JSON values, as `POST /v1/route` answers it."""
    return {"object": "route.decision", **msgspec.to_builtins(decision)}


def explanation_text(decision: Decision) -> str:
    """The decision in a few lines: what was decided, why, and what spoke for each route."""
    return "\n".join(_lines(decision))


def _lines(decision: Decision) -> Iterator[str]:
    yield f"route     {decision.route or '-'}"
    yield f"model     {decision.model}"
    cached = " (cached)" if decision.cached else ""
    yield f"strategy  {decision.strategy}{cached}"
    if decision.score is not None:
        ahead = "" if decision.margin is None else f", {decision.margin:.3f} ahead of the next"
        yield f"score     {decision.score:.3f}{ahead}"
    yield f"because   {REASONS.get(decision.reason, decision.reason)}"
    yield f"version   {decision.version}"
    if decision.calibration:
        yield f"threshold {decision.calibration}"
    if decision.candidates:
        yield ""
        width = max(len(candidate.route) for candidate in decision.candidates)
        for candidate in decision.candidates:
            yield f"{candidate.route:<{width}}  {candidate.verdict:<18}  {_evidence(candidate)}".rstrip()


def _evidence(candidate: Candidate) -> str:
    parts = [f"{match.kind} {match.value!r} at {match.start}-{match.end}" for match in candidate.matched]
    if candidate.score is not None:
        needed = "" if candidate.threshold is None else f" of {candidate.threshold:.3f}"
        nearest = "" if candidate.nearest is None else f", nearest {candidate.nearest!r}"
        parts.append(f"score {candidate.score:.3f}{needed}{nearest}")
    return "; ".join(parts)
