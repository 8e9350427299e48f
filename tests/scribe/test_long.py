"""Conversations of thousands of messages: what a turn costs does not grow with what lies behind it."""

from __future__ import annotations

from bench.context import conversation, decide, measure
from gateway.scribe.conversations import Conversations
from gateway.scribe.pins import PinPatterns


def test_the_window_of_ten_thousand_messages_is_decided_within_5_ms() -> None:
    found = measure(10_000, 8)
    assert found["messages"] > 10_000
    assert found["sent"] < 60
    # The best of some: the others are the machine's.
    assert found["best_ms"] < 5
    assert found["remembered_kb"] < 2_000


def test_what_is_not_sent_is_not_remembered() -> None:
    known, patterns = Conversations(), PinPatterns([])
    decide(known, patterns, conversation(400))
    (key,) = list(known._known)
    window = known._known[key].window
    assert window.seen == 401
    assert len(window._alive) < 100
    assert len(window._by_asked) <= len(window._alive)
