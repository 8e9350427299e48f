"""A stored turn as something to read."""

from __future__ import annotations

import msgspec

from gateway.observe.encoding import encode_events, trace_row
from gateway.observe.events import Event
from gateway.observe.replay import replay
from tests.observe.turns import turn


def test_a_replay_tells_what_was_asked_decided_run_and_answered() -> None:
    text = replay(trace_row(turn()))
    for words in (
        f"trace {'a' * 32}",
        "status 200",
        "/v1/chat/completions for auto, streamed",
        "user: my diagnosis is secret 你好",
        "client tools: lookup",
        "route orders by semantic, score 0.810 -> model fast",
        'asks for query_order({"id":"SO-2024-0318"})',
        "PLANNING -> EXECUTING (1 call)",
        "query_order: ok, 0.200 s",
        "result: arrives tomorrow",
        "connection refused",
        "30 prompt tokens, 12 completion tokens",
    ):
        assert words in text


def test_steps_stand_in_order_with_their_time() -> None:
    lines = replay(trace_row(turn())).splitlines()
    times = [float(line.split(" ms")[0]) for line in lines if " ms  " in line]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert len(times) == len(turn().events)


def test_a_failed_turn_shows_its_code_and_message() -> None:
    text = replay(trace_row(turn(status=504, code="upstream_timeout", message="too slow")))
    assert "status 504" in text
    assert "code upstream_timeout" in text
    assert "too slow" in text


def test_a_turn_kept_without_content_still_reads() -> None:
    text = replay(trace_row(turn(), "none"))
    assert "asks for query_order()" in text
    assert "diagnosis" not in text


def test_long_and_hostile_texts_are_cut_to_one_harmless_line() -> None:
    row = trace_row(turn())
    said = "\x1b[2J\x1b[31m\r\n\u202e" + "x" * 10_000
    events = encode_events(
        [Event(0, "tool.finished", row.summary.started_at, {"name": said, "ok": True, "content": said})]
    )
    text = replay(msgspec.structs.replace(row, events=events), width=100)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) < 200


def test_a_trace_without_events_still_has_its_head() -> None:
    assert "status 200" in replay(msgspec.structs.replace(trace_row(turn()), events=b""))
