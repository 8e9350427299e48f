"""What the headers of an answered turn say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.cycle import head_lines, whole_lines
from gateway.api.http import Headers
from gateway.api.standing import standing_headers
from gateway.turn.context import Turn


def answer_lines(turn: Turn) -> bytes:
    """The lines of the head of a turn's answer, as far as it is known by now who answers.

    Raises:
        RuntimeError: a name holds a line break.
    """
    if turn.replayed is not None:
        return head_lines(_told_again(turn.replayed))
    decision = turn.decision
    lines = whole_lines(
        f"x-gateway-version: {decision.version}\r\nx-gateway-route: {decision.route or '-'}\r\n"
        f"x-gateway-strategy: {decision.strategy}\r\nx-gateway-model: {turn.answering}\r\n"
        f"x-gateway-backend: {turn.backend or '-'}\r\n".encode(),
        5,
    )
    if turn.recalled or turn.approvals is not None or turn.standing is not None or decision.score is not None:
        lines += head_lines(_further(turn))
    return lines


def _further(turn: Turn) -> Headers:
    """What few answers have to tell."""
    headers: Headers = []
    if turn.recalled:
        headers.append((b"x-gateway-replayed", b"true"))
    if waits_for := turn.waits_for:
        headers.append((b"x-gateway-approval", ",".join(waits_for).encode()))
    if turn.decision.score is not None:
        headers.append((b"x-gateway-score", f"{turn.decision.score:.4f}".encode()))
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
