"""Events of one turn, in order."""

from __future__ import annotations

from gateway.observe.events import Event, Recorder
from tests.clocks import HandClock


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, int, str]] = []

    def happened(self, trace: Recorder, event: Event) -> None:
        # What is told is already part of the trace.
        assert trace.events[-1] is event
        self.heard.append((trace.trace_id, event.seq, event.type))


def test_events_are_numbered_dated_and_told_as_they_happen() -> None:
    clock, listener = HandClock(100.0), Listener()
    trace = Recorder("a" * 32, "app", clock, (listener,))
    trace.emit("request.received", model="auto")
    clock.at = 101.5
    trace.emit("turn.finished", status=200)
    assert [(event.seq, event.type, event.at) for event in trace.events] == [
        (0, "request.received", 100.0),
        (1, "turn.finished", 101.5),
    ]
    assert listener.heard == [("a" * 32, 0, "request.received"), ("a" * 32, 1, "turn.finished")]


def test_an_events_id_is_unique_over_traces() -> None:
    event = Event(3, "turn.finished", 1.0, {})
    assert event.id_in("a" * 32) == f"evt_{'a' * 32}_3"
    assert event.id_in("b" * 32) != event.id_in("a" * 32)


def test_an_event_that_is_added_is_the_one_that_is_emitted() -> None:
    listener = Listener()
    trace = Recorder("a" * 32, "app", HandClock(100.0), (listener,))
    data = {"to": "decided", "reason": "rule"}
    trace.add("state.changed", data)
    trace.emit("state.changed", **data)
    assert trace.events == [Event(seq, "state.changed", 100.0, data) for seq in (0, 1)]
    assert trace.events[0].data is data
    assert [seq for _, seq, _ in listener.heard] == [0, 1]
