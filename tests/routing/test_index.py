from __future__ import annotations

import numpy as np
import pytest

from gateway.routing.index import Index, Vectors
from gateway.routing.negation import negates


def unit(*rows: list[float]) -> Vectors:
    vectors = np.asarray(rows, dtype=np.float32)
    normal: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normal


def clouds(
    spread: float, routes: int = 6, each: int = 10, dimensions: int = 48
) -> tuple[list[tuple[str, str]], Vectors]:
    """Utterances scattered around one direction a route."""
    random = np.random.default_rng(7)
    centres = np.repeat(random.normal(size=(routes, dimensions)), each, axis=0)
    vectors = centres + spread * random.normal(size=centres.shape)
    return [(f"r{number // each}", f"u{number}") for number in range(routes * each)], unit(*vectors.tolist())


def test_the_score_is_between_centre_and_nearest() -> None:
    vectors = unit([1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1])
    names = [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "5")]
    index = Index(names, vectors, threshold=-1, margin=0)
    query = unit([1, 0.2, 0])[0]
    outcome = index.judge("q", query, views=True)
    centre = vectors[:4].sum(axis=0)
    # Two and a half utterances a route, where three would make both parts count the same.
    near = 2.5 / 5.5
    expected = (1 - near) * centre @ query / np.linalg.norm(centre) + near * (vectors[:4] @ query).max()
    assert outcome.route == "a"
    assert outcome.score == pytest.approx(expected, abs=1e-5)
    other = next(view for view in outcome.views if view.route == "b")
    assert other.score == pytest.approx(vectors[4] @ query, abs=2e-5)
    assert outcome.margin == pytest.approx(expected - vectors[4] @ query, abs=2e-5)


@pytest.mark.parametrize("spread", [0.3, 0.8])
def test_the_threshold_keeps_most_of_the_routes_own_examples_and_few_others(spread: float) -> None:
    names, vectors = clouds(spread)
    index = Index(names[::1], vectors)
    own = [index.judge("q", vector).route for vector in vectors]
    assert sum(route == name for route, (name, _) in zip(own, names, strict=True)) >= 0.9 * len(names)
    random = np.random.default_rng(8)
    strangers = unit(*random.normal(size=(200, vectors.shape[1])).tolist())
    assert sum(index.judge("q", vector).route is None for vector in strangers) >= 180


def test_the_threshold_follows_the_encoder_s_scores() -> None:
    """B007."""
    names, vectors = clouds(0.8)
    # An encoder whose vectors all lean one way: every score is higher.
    leaning = unit(*(vectors + np.float32(0.25)).tolist())
    assert min(Index(names, leaning).thresholds) > max(Index(names, vectors).thresholds) + 0.05


@pytest.mark.parametrize("each", [1, 2, 3])
def test_tiny_sets_do_not_reject_everything(each: int) -> None:
    names, vectors = clouds(0.6, routes=3, each=each)
    index = Index(names, vectors)
    assert all(0.2 <= threshold <= 0.75 for threshold in index.thresholds)
    assert all(index.judge("q", vector).route is not None for vector in vectors)


def test_scoring_in_small_steps_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    names, vectors = clouds(0.8)
    at_once = Index(names, vectors)
    monkeypatch.setattr("gateway.routing.centres._BLOCK", 7 * len(names))
    in_steps = Index(names, vectors)
    assert in_steps.thresholds == pytest.approx(at_once.thresholds, abs=1e-4)


def test_duplicates_alone_do_not_demand_identity() -> None:
    vectors = unit(*([[1.0, 0.0, 0.0]] * 4 + [[0.0, 1.0, 0.0]] * 4))
    index = Index([("a", str(n)) for n in range(4)] + [("b", str(n)) for n in range(4)], vectors)
    assert max(index.thresholds) <= 0.6


def test_one_route_alone_has_no_margin_and_no_tie() -> None:
    index = Index([("a", "1"), ("a", "2")], unit([1, 0], [1, 0.1]))
    outcome = index.judge("q", unit([1, 0.05])[0])
    assert (outcome.route, outcome.margin) == ("a", None)


def test_barred_routes_neither_win_nor_tie() -> None:
    index = Index([("a", "1"), ("b", "2")], unit([1, 0], [1, 0.001]), threshold=0.5)
    query = unit([1, 0])[0]
    assert index.judge("q", query).reason == "ambiguous"
    assert index.judge("q", query, frozenset({"a"})).route == "b"
    assert index.judge("q", query, frozenset({"a", "b"})).reason == "no_match"


def test_a_negated_text_between_opposites_is_ambiguous() -> None:
    """B005."""
    index = Index([("off", "turn it off"), ("on", "turn it on")], unit([1, 0.4], [1, 0]), threshold=0.5)
    query = unit([1, -0.1])[0]
    assert index.judge("please turn it on", query).route == "on"
    assert index.judge("do not turn it on", query).reason == "ambiguous"
    # Routes that are no opposites: people complain in negations, and mean what they are like.
    apart = Index([("door", "door is stuck"), ("on", "turn it on")], unit([0, 1], [1, 0]), threshold=0.5)
    assert apart.judge("it does not turn on", query).route == "on"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i do not want it", True),
        ("don't", True),
        ("don’t do that", True),
        ("it won't start", True),
        ("i cannot", True),
        ("notable nothingness", False),
        ("turn it on", False),
        ("别关闭它", True),
        ("我不想开", True),
        ("没收到", True),
        ("特别好", False),
        ("不错", False),
        ("是不是开了", False),
        ("开不开双重验证", False),
        ("有没有双重验证", False),
        ("这个用不用开，我不开", True),
        ("无需开启双重验证", True),
        ("不要开启双重验证", True),
        ("켜지 마세요", True),
        ("no quiero activarlo", True),
        ("i shouldnt turn it on", True),
        ("i want to turn it on", False),
        ("لا أريد تشغيله", True),
        ("don't " + "x" * 200_000, True),
        ("не надо", True),
    ],
)
def test_negations_are_heard(text: str, expected: bool) -> None:
    assert negates(text) is expected
