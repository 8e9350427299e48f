"""Metrics: what is counted, and that no stranger makes a new series."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config.versions import Version
from gateway.observe.events import Recorder
from gateway.observe.metrics import Metrics
from tests.clocks import HandClock
from tests.observe.turns import turn


def made() -> Metrics:
    metrics = Metrics(lambda: {"PLANNING": 2, "EXECUTING": 0})
    metrics.configure(
        Version(3, "abcdef" * 11),
        models=["fast", "strong"],
        routes=["orders"],
        tools=["query_order"],
        backends=["small"],
    )
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """The values by name and label values, in the order of the labels' names."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name.startswith("hermes_") and "le" not in sample.labels:
                found[sample.name, tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_one_turn_is_counted_everywhere_it_belongs() -> None:
    metrics = made()
    metrics.finished(turn())
    found = samples(metrics)
    expected = {
        ("hermes_requests_total", ("/v1/chat/completions", "fast", "orders", "200")): 1,
        ("hermes_request_seconds_sum", ("fast",)): 1.0,
        ("hermes_first_token_seconds_sum", ("fast",)): 0.9,
        ("hermes_tokens_total", ("prompt", "fast")): 30,
        ("hermes_tokens_total", ("completion", "fast")): 12,
        ("hermes_decisions_total", ("orders", "semantic")): 1,
        ("hermes_route_cache_total", ("miss",)): 1,
        ("hermes_attempts_failed_total", ("small",)): 1,
        ("hermes_tool_calls_total", ("ok", "query_order")): 1,
        ("hermes_tool_seconds_sum", ("query_order",)): 0.2,
        ("hermes_turn_rounds_sum", ()): 2,
        ("hermes_turns", ("PLANNING",)): 2,
        ("hermes_config_info", ("3", "3-abcdefabcdef")): 1,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["hermes_overhead_seconds_sum", ()] == pytest.approx(0.1)


def test_a_failed_turn_counts_by_its_status_and_not_as_overhead() -> None:
    metrics = made()
    metrics.finished(turn(status=504, code="upstream_timeout"))
    metrics.finished(turn(status=499))
    found = samples(metrics)
    assert found["hermes_requests_total", ("/v1/chat/completions", "fast", "orders", "504")] == 1
    assert found["hermes_requests_total", ("/v1/chat/completions", "fast", "orders", "499")] == 1
    assert found["hermes_overhead_seconds_count", ()] == 0


def test_a_refused_request_is_counted() -> None:
    metrics = made()
    trace = Recorder("a" * 32, "-", HandClock())
    trace.emit("request.refused", endpoint="/v1/chat/completions", status=401, code="invalid_api_key", message="x")
    metrics.finished(trace)
    assert samples(metrics)["hermes_requests_total", ("/v1/chat/completions", "-", "-", "401")] == 1


def test_no_client_and_no_model_makes_new_series() -> None:
    metrics = made()
    metrics.finished(turn())
    before = len(metrics.render().splitlines())
    for number in range(20_000):
        trace = Recorder("a" * 32, f"app/user{number}", HandClock())
        trace.emit("request.received", endpoint=f"/v1/x{number}", model=f"m{number}")
        trace.emit("decision.made", route=f"r{number}", strategy=f"s{number}", cached=False)
        trace.emit("attempt.failed", backend=f"b{number}", error=f"e{number}", status=None, seconds=0.1)
        trace.emit("tool.finished", name=f"t{number}", ok=False, seconds=0.1, error=f"e{number}")
        trace.emit("turn.failed", status=404, model=f"m{number}", route=f"r{number}", backend=f"b{number}", seconds=0.1)
        metrics.finished(trace)
    started = time.process_time()
    after = len(metrics.render().splitlines())
    assert time.process_time() - started < 0.2
    assert after - before < 100
    assert len(metrics._children) <= 4096
    assert samples(metrics)["hermes_tool_calls_total", ("error", "other")] == 20_000


@pytest.mark.parametrize("status", [9999, "x" * 50, None])
def test_a_status_that_is_none_is_other(status: object) -> None:
    metrics = made()
    metrics.finished(turn(status=status))
    assert any(name == "hermes_requests_total" and labels[-1] == "other" for name, labels in samples(metrics))


def test_a_new_version_replaces_the_old_one_and_its_names() -> None:
    metrics = made()
    metrics.finished(turn())
    metrics.configure(Version(4, "0" * 64), models=["slow"], routes=[], tools=[], backends=[])
    metrics.finished(turn())
    found = samples(metrics)
    assert [labels for name, labels in found if name == "hermes_config_info"] == [("4", "4-000000000000")]
    assert found["hermes_requests_total", ("/v1/chat/completions", "other", "other", "200")] == 1


def test_counts_kept_elsewhere_are_read_when_somebody_looks() -> None:
    metrics = made()
    counts = {"traces": 1, "reloads": 2}
    metrics.count_traces_dropped(lambda: counts["traces"])
    metrics.count_reload_failures(lambda: counts["reloads"])
    counts["traces"] = 5
    found = samples(metrics)
    assert found["hermes_traces_dropped_total", ()] == 5
    assert found["hermes_reload_failures_total", ()] == 2


def test_two_gateways_in_one_process_count_apart() -> None:
    first, second = made(), made()
    first.finished(turn())
    assert samples(second)["hermes_turn_rounds_count", ()] == 0


def test_the_page_names_no_time_of_creation() -> None:
    metrics = made()
    metrics.finished(turn())
    assert b"_created" not in metrics.render()


@pytest.mark.bench
def test_counting_a_turn_costs_microseconds() -> None:
    metrics = made()
    trace = turn()
    best = float("inf")
    for _ in range(10):
        started = time.process_time()
        for _ in range(500):
            metrics.finished(trace)
        best = min(best, (time.process_time() - started) / 500)
    assert best < 40e-6


def test_traces_of_one_shape_are_counted_by_their_own_names() -> None:
    metrics = made()
    metrics.finished(turn())
    metrics.finished(turn(model="strong", route="other", prompt_tokens=5))
    found = samples(metrics)
    assert found["hermes_tokens_total", ("prompt", "fast")] == 30
    assert found["hermes_tokens_total", ("prompt", "strong")] == 5
    assert found["hermes_decisions_total", ("orders", "semantic")] == 2


def test_traces_of_any_number_of_shapes_are_counted_and_not_all_remembered() -> None:
    metrics = made()
    for rounds in range(1000):
        trace = Recorder("a" * 32, "app", HandClock())
        trace.emit("request.received", endpoint="/v1/chat/completions")
        for _ in range(rounds):
            trace.emit("round.answered", backend="small")
        trace.emit("turn.finished", status=200, model="fast", route="orders", seconds=0.1, rounds=rounds)
        metrics.finished(trace)
    found = samples(metrics)
    assert found["hermes_attempts_total", ("small", "answered")] == sum(range(1000))
    assert found["hermes_requests_total", ("/v1/chat/completions", "fast", "orders", "200")] == 1000
    assert all(len(names) <= 64 for names in metrics._shapes)
    assert len(metrics._shapes) <= 256


def plain(**last: Any) -> Recorder:
    """A turn that was answered in one round."""
    trace = Recorder("a" * 32, "app", HandClock())
    trace.emit("request.received", endpoint="/v1/chat/completions")
    trace.emit("decision.made", route="orders", strategy="semantic", cached=False)
    trace.emit("round.answered", backend="small")
    said = {
        "status": 200,
        "model": "fast",
        "route": "orders",
        "stream": True,
        "seconds": 1.0,
        "upstream_s": 0.75,
        "tool_s": 0.0,
        "first_token_s": 0.5,
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "rounds": 1,
    }
    trace.emit("turn.finished", **(said | last))
    return trace


def test_plain_turns_are_counted_as_if_one_by_one() -> None:
    together, apart = made(), made()
    turns = [
        plain(),
        plain(seconds=2.0, prompt_tokens=7),
        plain(model="strong", stream=False, first_token_s=None),
        plain(stream=False, first_token_s=0.1),
        plain(seconds=0.5, completion_tokens=None),
        plain(upstream_s=None, tool_s=None, rounds=None),
        plain(seconds=None),
    ]
    for trace in turns * 3:
        together.finished(trace)
        apart.finished(trace)
        apart.render()
    found = samples(together)
    assert found == pytest.approx(samples(apart))
    assert found["hermes_requests_total", ("/v1/chat/completions", "fast", "orders", "200")] == 18
    assert found["hermes_tokens_total", ("prompt", "fast")] == 3 * (5 * 30 + 7)
    assert found["hermes_first_token_seconds_sum", ("fast",)] == pytest.approx(3 * 5 * 0.5)
    assert found["hermes_first_token_seconds_count", ("strong",)] == 0
    assert found["hermes_overhead_seconds_count", ()] == 3 * 6
    assert found["hermes_overhead_seconds_sum", ()] == pytest.approx(3 * (0.25 + 1.25 + 0.25 + 0.25 + 0.0 + 1.0))
    assert found["hermes_attempts_total", ("small", "answered")] == 21
    assert found["hermes_route_cache_total", ("miss",)] == 21


def test_plain_turns_of_which_less_is_said_are_counted_all_the_same() -> None:
    metrics = made()
    for _ in range(200):
        trace = Recorder("a" * 32, "app", HandClock())
        trace.emit("request.received")
        trace.emit("decision.made", route="orders")
        trace.emit("round.answered")
        trace.emit("turn.finished", status=200, seconds=0.5)
        metrics.finished(trace)
    assert max(len(each.measured) for each in metrics._alike.values()) < 64
    found = samples(metrics)
    assert found["hermes_requests_total", ("-", "-", "-", "200")] == 200
    assert found["hermes_decisions_total", ("orders", "-")] == 200
    assert found["hermes_overhead_seconds_sum", ()] == pytest.approx(100)


def test_turns_are_counted_by_the_names_they_ended_under() -> None:
    metrics = made()
    metrics.finished(plain())
    metrics.configure(Version(4, "0" * 64), models=["slow"], routes=[], tools=[], backends=[])
    assert samples(metrics)["hermes_requests_total", ("/v1/chat/completions", "fast", "orders", "200")] == 1


def test_what_nobody_reads_does_not_pile_up() -> None:
    metrics = made()
    for trace in (turn(), plain()):
        for _ in range(5000):
            metrics.finished(trace)
    assert max(len(each.measured) for each in metrics._alike.values()) < 64
    for number in range(10_000):
        metrics.finished(plain(model=f"m{number}"))
    assert len(metrics._alike) <= 4096
    assert samples(metrics)["hermes_turn_rounds_count", ()] == 20_000
