"""Traces as turns leave them, for tests of their readers."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.observe.events import Recorder
from tests.clocks import HandClock

SECRETS = ("my diagnosis is secret", "SO-2024-0318", "arrives tomorrow", "你好")


def turn(trace_id: str = "a" * 32, owner: str = "app", began: float = 1_750_000_000.0, **last: Any) -> Recorder:
    """A turn with one tool call, answered unless `last` says otherwise."""
    clock = HandClock(began)
    trace = Recorder(trace_id, owner, clock)
    trace.emit(
        "request.received",
        endpoint="/v1/chat/completions",
        model="auto",
        stream=True,
        messages=[msgspec.Raw(b'{"role":"user","content":"my diagnosis is secret \xe4\xbd\xa0\xe5\xa5\xbd"}')],
        tools=["lookup"],
        fields={"temperature": msgspec.Raw(b"0"), "metadata": msgspec.Raw(b'{"note":"my diagnosis is secret"}')},
    )
    clock.at += 0.001
    trace.emit(
        "decision.made",
        route="orders",
        model="fast",
        strategy="semantic",
        score=0.81,
        margin=0.2,
        cached=False,
        reason="nearest utterance",
        version="1-abc",
    )
    trace.emit("tools.offered", names=["query_order"])
    trace.emit("round.started", round=1, model="fast", backend=None)
    trace.emit("attempt.failed", backend="small", error="connection refused", status=None, seconds=0.01)
    clock.at += 0.5
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "query_order", "arguments": '{"id":"SO-2024-0318"}'},
    }
    trace.emit(
        "round.answered",
        round=1,
        backend="small",
        finish_reason="tool_calls",
        content="",
        tool_calls=[call],
        prompt_tokens=10,
        completion_tokens=5,
        seconds=0.5,
        first_token_s=0.1,
    )
    trace.emit("state.changed", **{"from": "PLANNING", "to": "EXECUTING", "reason": "1 call"})
    trace.emit("tool.started", name="query_order", call_id="call_1", arguments={"id": "SO-2024-0318"})
    clock.at += 0.2
    trace.emit(
        "tool.finished",
        name="query_order",
        call_id="call_1",
        ok=True,
        seconds=0.2,
        error=None,
        content="arrives tomorrow",
        whole="arrives tomorrow, at noon",
    )
    summary = {
        "status": 200,
        "key": owner.partition("/")[0],
        "user": owner.partition("/")[2] or None,
        "stream": True,
        "seconds": 1.0,
        "response_id": "chatcmpl-1",
        "model": "fast",
        "route": "orders",
        "strategy": "semantic",
        "version": "1-abc",
        "backend": "small",
        "rounds": 2,
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "upstream_s": 0.7,
        "tool_s": 0.2,
        "first_token_s": 0.9,
        "finish_reason": "stop",
    } | last
    clock.at += 0.3
    status = summary["status"]
    trace.emit("turn.finished" if status == 200 else "turn.cancelled" if status == 499 else "turn.failed", **summary)
    return trace
