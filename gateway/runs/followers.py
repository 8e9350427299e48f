"""What follows the end of a run: webhooks that tell of it, each a run of its own.

Knows who is to be told what, and when a delivery that failed is tried again. They are recorded in the transaction that ends the
run, so that no end goes untold. How one is delivered is `webhooks.py`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.approvals.desk import EXECUTES
from gateway.config.runs import WebhookConfig
from gateway.saga.owed import END, undo_run
from gateway.store.run_records import RunRow

KIND: Final = "webhook"
# Seconds to the next attempt, as Standard Webhooks advise: immediately, 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h.
RETRIES_S: Final = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 36_000.0)


# Runs that are turns, and may have done something.
_TURNS: Final = frozenset({"chat", "response"})
_WHY: Final = {"failed": "failed", "cancelled": "was cancelled"}
_NEVER: Final = 1_000_000


class Delivery(msgspec.Struct, frozen=True):
    """What a webhook run's body holds: the webhook's name in the configuration, and what is sent."""

    webhook: str
    content: Any


class _Addressed(msgspec.Struct):
    webhook: str


class Followers:
    """Makes the runs that follow.

    Args:
        webhooks: who is told, by name, as they are now.
        undoes: whether there is anything that could be undone of a run that fails.
    """

    def __init__(
        self,
        webhooks: Callable[[], Mapping[str, WebhookConfig]],
        undoes: Callable[[], bool] = lambda: False,
    ) -> None:
        self._webhooks = webhooks
        self._undoes = undoes

    def of(self, run: RunRow, status: str, now: float) -> Sequence[RunRow]:
        """What follows the end of a run: deliveries, and the run that undoes what it has done where it failed."""
        event = f"response.{status}"
        if run.kind == KIND or run.kind in EXECUTES.values():
            # Deliveries themselves, and what was approved: its own end is told by its turn.
            return []
        told = [
            _delivery(run, name, event, now) for name, webhook in self._webhooks().items() if event in webhook.events
        ]
        if status == "completed" or run.kind not in _TURNS or not self._undoes():
            return told
        # Whether it is to be undone, and what: whoever executes it finds out.
        return [*told, undo_run(run.trace_id, run.owner, END, f"the run {_WHY.get(status, status)}", None, now)]

    def most(self, run: RunRow) -> int | None:
        """How often a run is begun where that is not what the configuration says for all."""
        if run.kind in EXECUTES.values():
            # What was approved, or is owed, is never given up; the ledger sees to it that nothing is done twice.
            return _NEVER
        return len(RETRIES_S) + 1 if run.kind == KIND else None

    def receiver(self, run: RunRow) -> str | None:
        """Whom a run tells something, where it is a delivery."""
        return msgspec.json.decode(run.body, type=_Addressed).webhook if run.kind == KIND else None

    def wait_s(self, run: RunRow) -> float | None:
        """Seconds to the next attempt where that is not the usual."""
        return RETRIES_S[min(run.deliveries, len(RETRIES_S)) - 1] if run.kind == KIND else None


def shown_id(run: RunRow) -> str:
    """What the client knows the run as."""
    return f"resp_{run.trace_id}" if run.kind == "response" else run.id


def _delivery(run: RunRow, name: str, event: str, now: float) -> RunRow:
    # The same end of the same run is the same delivery, whoever writes it down.
    trace_id = hashlib.sha256(f"{run.id}\0{run.epoch}\0{name}\0{event}".encode()).hexdigest()[:32]
    content = {
        "id": f"evt_{trace_id}",
        "object": "event",
        "type": event,
        "created_at": int(now),
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
        "data": {"id": shown_id(run)},
    }
    return RunRow(
        id=f"run_{trace_id}",
        kind=KIND,
        trace_id=trace_id,
        owner=run.owner,
        parent_id=run.id,
        body=msgspec.json.encode(Delivery(name, content)),
        created_at=now,
        due_at=now,
    )
