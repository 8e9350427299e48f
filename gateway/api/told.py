"""What the headers of an answered turn say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from gateway.api.cycle import head_lines, whole_lines
from gateway.api.http import Headers
from gateway.api.standing import standing_headers
from gateway.turn.context import Turn

# Routes, models and backends that answers come from.
_KEPT: Final = 256


def answer_lines(turn: Turn) -> bytes:
    """The lines of the head of a turn's answer, as far as it is known by now who answers.

    Raises:
        RuntimeError: a name holds a line break.
    """
    if turn.replayed is not None:
        return head_lines(_told_again(turn.replayed))
    decision = turn.decision
    # What a client wrote for a `*` may be anything, and is not kept.
    written = _written if turn.wanted else _known
    lines = written(decision.version, decision.route, decision.strategy, turn.answering, turn.backend)
    if turn.recalled or turn.approvals is not None or turn.standing is not None:
        return lines + head_lines(_further(turn))
    return lines if decision.score is None else lines + b"x-gateway-score: %.4f\r\n" % decision.score


def _written(version: str, route: str | None, strategy: str, model: str, backend: str | None) -> bytes:
    return whole_lines(
        f"x-gateway-version: {version}\r\nx-gateway-route: {route or '-'}\r\nx-gateway-strategy: {strategy}\r\n"
        f"x-gateway-model: {model}\r\nx-gateway-backend: {backend or '-'}\r\n".encode(),
        5,
    )


# An answer's are nearly always those of one before it.
_known = lru_cache(maxsize=_KEPT)(_written)


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
