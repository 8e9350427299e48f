"""What the headers of an answered turn say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.http import Headers
from gateway.api.standing import standing_headers
from gateway.turn.context import Turn


def answer_headers(turn: Turn) -> Headers:
    """The headers of a turn's answer, as far as it is known by now who answers."""
    if turn.replayed is not None:
        return _told_again(turn.replayed)
    decision = turn.decision
    headers: Headers = [
        (b"x-gateway-version", decision.version.encode()),
        (b"x-gateway-route", decision.route.encode() if decision.route else b"-"),
        (b"x-gateway-strategy", decision.strategy.encode()),
        (b"x-gateway-model", turn.answering.encode()),
        (b"x-gateway-backend", (turn.backend or "-").encode()),
    ]
    if turn.recalled:
        headers.append((b"x-gateway-replayed", b"true"))
    if waits_for := turn.waits_for:
        headers.append((b"x-gateway-approval", ",".join(waits_for).encode()))
    if decision.score is not None:
        headers.append((b"x-gateway-score", f"{decision.score:.4f}".encode()))
    if turn.standing is not None:
        headers += standing_headers(turn.standing)
    return headers


def _told_again(told: Mapping[str, Any]) -> Headers:
    """The headers of an answer that was given before."""
    headers: Headers = [
        (f"x-gateway-{name}".encode(), str(told.get(name) or "-").encode())
        for name in ("version", "route", "strategy", "model", "backend")
    ]
    if told.get("score") is not None:
        headers.append((b"x-gateway-score", f"{told['score']:.4f}".encode()))
    if told.get("approval"):
        headers.append((b"x-gateway-approval", str(told["approval"]).encode()))
    headers.append((b"x-gateway-replayed", b"true"))
    return headers
