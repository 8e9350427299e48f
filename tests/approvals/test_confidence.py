"""Calls that a model is not sure of wait; how sure it is comes from its tokens, or from what it says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gateway.approvals.confidence import by_tokens, said, tokens_in
from gateway.approvals.gates import gates_of
from tests.approvals.office import asks, office
from tests.frames import chunk, d, f
from tests.replies import Reply, answer, body, call, stream

REFUND = {"order_id": "SO-1"}


def with_logprobs(*probabilities: float) -> Reply:
    """An answer that calls, with a token for each of these: the first is the name."""
    pieces = ["refund", '{"order_id": ', '"SO-1"}']
    tokens: list[dict[str, Any]] = [
        {"token": piece, "logprob": math.log(p), "bytes": None, "top_logprobs": []}
        for piece, p in zip(pieces, probabilities, strict=True)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": [call("c1", "refund", '{"order_id": "SO-1"}')]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": {"content": tokens}}
    return body({"id": "x", "object": "chat.completion", "created": 1, "model": "u", "choices": [choice]})


@pytest.mark.parametrize(("sure", "waits"), [((0.95, 0.9, 0.9), False), ((0.99, 0.9, 0.3), True), (None, True)])
async def test_log_probabilities_of_the_calls_tokens_decide(
    tmp_path: Path, *, sure: tuple[float, ...] | None, waits: bool
) -> None:
    reply = asks("refund", REFUND) if sure is None else with_logprobs(*sure)
    async with office(tmp_path, reply, answer("Refunded."), approvals={"confidence": "logprobs"}) as here:
        _, headers = await here.ask("refund SO-1")
        assert here.upstream.requests[0].json["logprobs"] is True
        assert ("x-gateway-approval" in headers) is waits
        assert here.done() == ([] if waits else [("refund", "SO-1")])


async def test_streamed_tokens_count_too(tmp_path: Path) -> None:
    def sure(p: float) -> Any:
        return {"content": [{"token": "{}", "logprob": math.log(p), "bytes": None, "top_logprobs": []}]}

    for p, waits in ((0.9, False), (0.2, True)):
        folder = tmp_path / str(p)
        folder.mkdir()
        piece = {"index": 0, **call("c1", "refund", '{"order_id": "SO-1"}')}
        frames = [
            d({"role": "assistant"}),
            chunk(choices=[{"index": 0, "delta": {"tool_calls": [piece]}, "logprobs": sure(p), "finish_reason": None}]),
            f("tool_calls"),
        ]
        async with office(
            folder,
            stream(*frames),
            stream(d({"content": "Refunded."}), f("stop")),
            approvals={"confidence": "logprobs"},
        ) as here:
            ask = {"model": "auto", "messages": [{"role": "user", "content": "refund"}]}
            text = (await here.served.raw_stream(ask, x_api_key="secret-app-0000000000000")).decode()
            assert ("apr_" in text) is waits
            assert here.done() == ([] if waits else [("refund", "SO-1")])


@pytest.mark.parametrize(("value", "waits"), [(0.9, False), ("0.85", False), (0.5, True), (None, True), ("sure", True)])
async def test_argument_says_it_and_is_taken_away(tmp_path: Path, *, value: Any, waits: bool) -> None:
    arguments = REFUND if value is None else {**REFUND, "confidence": value}
    async with office(
        tmp_path, asks("refund", arguments), answer("Refunded."), approvals={"confidence": "argument"}
    ) as here:
        _, headers = await here.ask("refund SO-1")
        offered = {tool["function"]["name"]: tool["function"] for tool in here.upstream.requests[0].json["tools"]}
        assert "confidence" in offered["refund"]["parameters"]["required"]
        assert "confidence" not in offered["pay"]["parameters"]["properties"]
        assert ("x-gateway-approval" in headers) is waits
        assert here.done() == ([] if waits else [("refund", "SO-1")])
        if waits:
            assert (await here.approval(headers["x-gateway-approval"]))["arguments"] == REFUND


async def test_without_a_source_every_such_call_waits(tmp_path: Path) -> None:
    async with office(tmp_path, asks("refund", REFUND)) as here:
        assert "x-gateway-approval" in (await here.ask("refund SO-1"))[1]
        assert here.done() == []


def test_confidence_is_of_the_calls_own_tokens() -> None:
    text = [("I will ", math.log(0.1)), ("pay", math.log(0.9)), ("(", 0.0), ('{"a":1}', math.log(0.4))]
    assert by_tokens(text, "pay", '{"a":1}') == pytest.approx((0.9 * 1.0 * 0.4) ** (1 / 3))
    assert by_tokens(text, "pay", '{"b":1}') == pytest.approx((0.1 * 0.9 * 0.4) ** (1 / 4))
    assert by_tokens([], "pay", "{}") is None
    assert by_tokens([("x", float("-inf"))], "pay", "{}") is None
    assert tokens_in(b'{"choices":[{"logprobs":{"content":null}}]}') == []
    assert tokens_in(b"[]") == []
    values: list[Any] = [1, 0, 1.1, -1, True, "0.5", "x", None, []]
    assert [said(value) for value in values] == [*(1.0, 0.0, None, None, None, 0.5, None, None, None)]


@pytest.mark.parametrize("confidence", [None, float("nan"), 0.79])
def test_gates_are_each_enough(confidence: float | None) -> None:
    def gates(**said: Any) -> tuple[str, ...]:
        usual = {"needs_confirmation": False, "confidence_gate": False, "deletes": False}
        return gates_of(**{**usual, **said}, confidence=confidence, threshold=0.8)

    assert gates() == ()
    assert gates(needs_confirmation=True) == ("needs_confirmation",)
    assert gates(confidence_gate=True) == ("confidence",)
    assert gates(deletes=True) == ("deletes",)
    assert gates_of(needs_confirmation=False, confidence_gate=True, deletes=False, confidence=0.8, threshold=0.8) == ()
