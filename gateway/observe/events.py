"""Events: what happened in a turn, in order.

Pure values, and the recorder that collects those of one turn. Does not know who reads them.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from gateway.clock import Clock
from gateway.security.masking.messages import Conversation

EventType = Literal[
    "request.received",
    "request.refused",
    "budget.warned",
    "decision.made",
    "hidden.restored",
    "hidden.kept",
    "tools.offered",
    "tools.withheld",
    "tools.left_out",
    "context.counted",
    "context.windowed",
    "context.summarised",
    "memory.recalled",
    "session.opened",
    "session.kept",
    "session.left_out",
    "cache.asked",
    "cache.failed",
    "round.started",
    "attempt.waited",
    "attempt.skipped",
    "attempt.masked",
    "attempt.failed",
    "round.answered",
    "round.recorded",
    "tool.started",
    "tool.finished",
    "guard.decided",
    "approval.requested",
    "approval.waiting",
    "approval.decided",
    "approval.told",
    "approval.executed",
    "compensation.recorded",
    "compensation.begun",
    "compensation.finished",
    "compensation.ended",
    "compensation.told",
    "state.changed",
    "journal.written",
    "effect.started",
    "effect.finished",
    "effect.found",
    "effect.probed",
    "effect.unknown",
    "turn.joined",
    "turn.escalated",
    "hook.changed",
    "hook.refused",
    "turn.finished",
    "turn.failed",
    "turn.cancelled",
]


class Event(msgspec.Struct, frozen=True, gc=False):  # what it holds knows nothing of it
    """One thing that happened. `seq` counts from 0 within its trace, `at` is seconds since the epoch."""

    seq: int
    type: EventType
    at: float
    data: dict[str, Any]

    def id_in(self, trace_id: str) -> str:
        """The event's id, unique over all traces."""
        return f"evt_{trace_id}_{self.seq}"


class Subscriber(Protocol):
    """Somebody who reads finished traces. Must return fast and never raise."""

    def finished(self, trace: Recorder) -> None:
        """Called once per turn, on the event loop, after its last event."""
        ...


class Recorder(msgspec.Struct, eq=False):
    """Collects the events of one turn; handing them on happens once, when the turn is over.

    Attributes:
        trace_id: 32 hex digits.
        owner: who the turn belongs to.
        clock: what dates events.
        live: who is told of every event at once.
        events: in the order they happened.
        failed_attempts: how many of them tell of a call to a backend that failed.
        private: what is private in the turn, or None where nothing is looked for.
    """

    trace_id: str
    owner: str
    clock: Clock
    live: tuple[LiveSubscriber, ...] = ()
    events: list[Event] = []
    failed_attempts: int = 0
    private: Conversation | None = None

    def follow(self, listener: LiveSubscriber) -> None:
        """Tell one more listener of every event from now on."""
        self.live = (*self.live, listener)

    def add(self, kind: EventType, data: dict[str, Any]) -> None:
        """Record one event. `data` is kept as it is; it must be encodable as JSON, and what is JSON already is `msgspec.Raw`."""
        events = self.events
        events.append(Event(len(events), kind, self.clock.now(), data))
        if self.live:
            for listener in self.live:
                listener.happened(self, events[-1])

    def emit(self, kind: EventType, **data: Any) -> None:
        """`add` with the data as keywords."""
        self.add(kind, data)


class LiveSubscriber(Protocol):
    """Somebody who wants each event while the turn runs. Must return fast and never raise."""

    def happened(self, trace: Recorder, event: Event) -> None:
        """Called on the event loop right after the event was recorded."""
        ...
