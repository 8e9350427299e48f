"""What is kept of a turn, and what is not."""

from __future__ import annotations

import json

import msgspec

from gateway.observe.encoding import decode_events, encode_events, summary, trace_row
from gateway.observe.events import Event, Recorder
from gateway.observe.redaction import Redactor
from tests.clocks import HandClock
from tests.observe.turns import SECRETS, turn


def test_the_row_sums_the_turn_up() -> None:
    row = trace_row(turn(owner="app/eve")).summary
    assert (row.owner, row.key, row.user, row.status) == ("app/eve", "app", "eve", 200)
    assert (row.route, row.model, row.backend, row.strategy, row.version) == (
        "orders",
        "fast",
        "small",
        "semantic",
        "1-abc",
    )
    assert (row.response_id, row.prompt_tokens, row.completion_tokens, row.seconds) == ("chatcmpl-1", 30, 12, 1.0)
    assert round(row.finished_at - row.started_at, 6) == 1.001


def test_events_come_back_in_order_with_raw_json_read() -> None:
    trace = turn()
    events = decode_events(trace_row(trace).events)
    assert [(event.seq, event.type, event.at) for event in events] == [
        (event.seq, event.type, event.at) for event in trace.events
    ]
    assert events[0].data["messages"] == [{"role": "user", "content": "my diagnosis is secret 你好"}]
    assert events[0].data["fields"]["temperature"] == 0


def test_without_content_nothing_that_was_said_is_kept() -> None:
    kept = trace_row(turn(), "none").events.decode()
    for said in SECRETS:
        assert said not in kept
        assert said in trace_row(turn()).events.decode()
    events = decode_events(kept.encode())
    assert events[0].data["fields"] == ["metadata", "temperature"]
    assert next(event for event in events if event.type == "round.answered").data["tool_calls"] == [
        {"id": "call_1", "name": "query_order"}
    ]
    assert events[-1].data["status"] == 200


def test_secrets_in_foreign_words_are_not_kept() -> None:
    trace = turn(status=502, code="upstream_error", message="bad key sk-1234567890 at http://h/?k=sk-1234567890")
    kept = trace_row(trace, redactor=Redactor(["sk-1234567890"])).events
    assert b"sk-1234567890" not in kept
    assert b"sk-1234567890" in trace_row(trace).events


def test_what_is_no_json_is_kept_all_the_same() -> None:
    trace = Recorder("a" * 32, "app", HandClock())
    trace.emit("request.received", messages=[msgspec.Raw(b'{"content": "\xff"}'), "half \ud800"], fields={})
    trace.emit("tool.started", name="x", arguments={"set": {1}, "object": object(), "nan": float("nan")})
    events = json.loads(encode_events(trace.events))
    assert [event["type"] for event in events] == ["request.received", "tool.started"]
    assert len(events[0]["data"]["messages"]) == 2


def test_a_trace_without_its_end_has_no_summary_and_counts_as_failed() -> None:
    trace = Recorder("a" * 32, "app", HandClock())
    assert summary(trace) == {}
    trace.events.append(Event(0, "request.received", 5.0, {"model": "x"}))
    assert summary(trace) == {}
    assert trace_row(trace).summary.status == 500
