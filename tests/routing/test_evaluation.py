"""The figures of `hermes-gateway eval`, against figures counted by hand and by definition."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.decision import Candidate, Decision, Strategy
from gateway.routing.evaluation import Line, evaluate, report


def decided(route: str | None, scores: dict[str, float] | None = None, strategy: Strategy = "semantic") -> Decision:
    candidates = tuple(
        Candidate(name, score, nearest=f"like {name}", verdict="chosen" if name == route else "below_threshold")
        for name, score in (scores or {}).items()
    )
    kind: Strategy = "default" if route is None else strategy
    return Decision(route, "m", kind, "3-abc", reason="because", candidates=candidates)


def test_figures_are_those_counted_by_hand() -> None:
    lines = [Line("one", "a"), Line("two", "a"), Line("three", "b"), Line("four", None), Line("five", None)]
    decisions = [
        decided("a", {"a": 0.9, "b": 0.1}),
        decided(None, {"a": 0.4, "b": 0.3}),
        decided("a", {"a": 0.8, "b": 0.7}),
        decided(None, {"a": 0.2, "b": 0.1}),
        decided("b", {"a": 0.1, "b": 0.6}),
    ]
    figures = evaluate(lines, decisions)
    assert (figures.n, figures.version) == (5, "3-abc")
    assert figures.all == pytest.approx(2 / 5)
    assert figures.in_scope == pytest.approx(1 / 3)
    assert figures.top1 == pytest.approx(2 / 3), "with the threshold off, the second line goes to `a` too"
    assert figures.oos_recall == pytest.approx(1 / 2)
    assert figures.oos_f1 == pytest.approx(1 / 2)
    assert figures.auroc == pytest.approx(5 / 6)
    assert (figures.routes["a"].n, figures.routes["a"].precision, figures.routes["a"].recall) == (2, 0.5, 0.5)
    assert (figures.routes["b"].n, figures.routes["b"].precision, figures.routes["b"].recall) == (1, 0.0, 0.0)
    assert figures.confusions == [(None, "b", 1), ("a", None, 1), ("b", "a", 1)]


def test_figures_of_kinds_that_a_file_lacks_are_none() -> None:
    figures = evaluate([Line("one", "a")], [decided("a", strategy="rule")])
    assert (figures.all, figures.in_scope, figures.top1) == (1.0, 1.0, 1.0)
    assert (figures.oos_recall, figures.oos_f1, figures.auroc) == (None, None, None)


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        evaluate([], [])


scores = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=6)


@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_the_right_order(inside: list[float], outside: list[float]) -> None:
    lines = [Line("in", "a")] * len(inside) + [Line("out", None)] * len(outside)
    figures = evaluate(lines, [decided(None, {"a": score}) for score in inside + outside])
    pairs = [1.0 if x > y else 0.5 if x == y else 0.0 for x, y in product(inside, outside)]
    assert figures.auroc == pytest.approx(sum(pairs) / len(pairs))


def test_report_shows_each_mistake_with_its_nearest_utterances() -> None:
    lines = [Line("a | b\nc", "a"), Line("fine", "b")]
    decisions = [decided("b", {"b": 0.9, "a": 0.8}), decided("b", {"b": 0.9})]
    text = report(evaluate(lines, decisions), lines, decisions)
    assert "a \\| b c: expected a, got b" in text
    assert "b: 0.900, nearest “like b”" in text
    assert "fine:" not in text
