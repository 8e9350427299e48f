"""What the endpoints are handed: the objects behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.observe.metrics import Metrics
from gateway.store.store import Traces
from gateway.turn.service import Turns
from gateway.turn.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Services:
    """Made in `app.py`, read by every endpoint."""

    turns: Turns
    versions: Versioned[Snapshot]
    traces: Traces
    flush_traces: Callable[[float], Awaitable[bool]]
    metrics: Metrics
    clock: Clock
