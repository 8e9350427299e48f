from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.centres import Centres, unit
from gateway.routing.head import fit_head, log_shares
from gateway.routing.index import Index, Vectors
from gateway.routing.pieces import WIDTH, Pieces
from gateway.routing.scoring import Scorer

WORDS = "parcel order where late refund money back jazz play song loud stop 订单 退款 音乐 播放".split()


def cloud(routes: int, each: int, spread: float = 0.8, seed: int = 7) -> tuple[list[str], Vectors, list[int]]:
    """Texts of random words and vectors scattered around one direction a route."""
    random_ = np.random.default_rng(seed)
    owner = [number // each for number in range(routes * each)]
    centres = np.repeat(random_.normal(size=(routes, 32)), each, axis=0)
    vectors = unit((centres + spread * random_.normal(size=centres.shape)).astype(np.float32))
    texts = [" ".join(random_.choice(WORDS, 4)) + f" {number}" for number in range(len(owner))]
    return texts, vectors, owner


@pytest.mark.parametrize(("routes", "each"), [(3, 3), (6, 10), (30, 12)])
def test_many_texts_are_scored_as_each_one_alone(routes: int, each: int) -> None:
    texts, vectors, owner = cloud(routes, each)
    scorer = Scorer(texts, vectors, np.asarray(owner), routes)
    together = scorer.scores(texts, vectors)
    alone = np.stack([scorer.score(text, vector, every=True)[0] for text, vector in zip(texts, vectors, strict=True)])
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(("routes", "each"), [(1, 3), (3, 2), (6, 10), (30, 12)])
def test_what_is_not_looked_into_could_not_have_come_first_or_second(routes: int, each: int) -> None:
    texts, vectors, owner = cloud(routes, each)
    scorer = Scorer(texts, vectors, np.asarray(owner), routes)
    skipped = 0
    for text, vector in zip(texts, cloud(routes, each, seed=9)[1], strict=True):
        for asked in (vector, vectors[len(text) % len(vectors)]):
            for barred in ([], [0], list(range(routes - 1))):
                every, places = scorer.score(text, asked, barred, every=True)
                some, nearest = scorer.score(text, asked, barred)
                seen = np.isfinite(some)
                skipped += int((~seen).sum()) - len(set(barred))
                assert (some[seen] == every[seen]).all()
                assert (nearest[seen] == places[seen]).all()
                assert np.sort(some)[-2:] == pytest.approx(np.sort(every)[-2:], abs=0)
                assert not np.isfinite(every[barred]).any()
    # Thirty routes are not read to tell two.
    assert skipped > 0 or routes < 30


@pytest.mark.parametrize("each", [2, 5])
def test_likeness_without_an_utterance_is_as_if_it_never_stood_there(each: int) -> None:
    _, vectors, owner = cloud(4, each)
    every = Centres(vectors, np.asarray(owner), 4)
    judged = every.without_themselves(np.arange(len(owner)))
    for place in range(len(owner)):
        rest = [other for other in range(len(owner)) if other != place]
        numbers = np.asarray(owner)[rest]
        # The share of the nearest follows the number of utterances, one less here: set it as it was.
        without = Centres(vectors[rest], numbers, 4)
        without._nearest_share = every._nearest_share
        assert judged[place] == pytest.approx(
            [without.likeness(vectors[place], without.central(vectors[place])[0], route)[0] for route in range(4)],
            abs=1e-5,
        )


def test_no_utterance_is_judged_by_a_head_that_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, vectors, owner = cloud(4, 10)
    scorer = Scorer(texts, vectors, np.asarray(owner), 4)
    learnt: list[set[int]] = []
    fitted = scorer._fitted

    def record(places: np.ndarray) -> object:
        learnt.append(set(places.tolist()))
        return fitted(places)

    monkeypatch.setattr(scorer, "_fitted", record)
    judged = scorer.cross_validated()
    assert len(judged.owner) == len(texts)
    left_out = [set(range(len(texts))) - places for places in learnt]
    assert sorted(place for places in left_out for place in places) == list(range(len(texts)))


def test_a_stranger_s_score_does_not_profit_from_its_own_route() -> None:
    texts, vectors, owner = cloud(5, 8)
    judged = Scorer(texts, vectors, np.asarray(owner), 5).cross_validated()
    assert judged.strange.shape == (40,)
    assert np.median(judged.strange) < np.median(judged.scores.max(axis=1)) - 0.2


def test_the_head_finds_what_separates_the_routes() -> None:
    random_ = np.random.default_rng(3)
    features = random_.normal(size=(90, 6)).astype(np.float32)
    owner = features[:, 2:5].argmax(axis=1)
    head = fit_head(features, owner, 3, 0.1)
    assert (head.logits(features).argmax(axis=1) == owner).mean() > 0.95
    assert np.exp(log_shares(head.logits(features))).sum(axis=1) == pytest.approx(np.ones(90), abs=1e-5)
    # The more the weights are held back, the less sure the head is.
    shy = fit_head(features, owner, 3, 100)
    assert log_shares(shy.logits(features)).max() < log_shares(head.logits(features)).max()


def test_the_head_rests_where_the_loss_cannot_fall() -> None:
    random_ = np.random.default_rng(4)
    features = random_.normal(size=(60, 5)).astype(np.float32)
    owner = random_.integers(0, 3, 60)
    weights = fit_head(features, owner, 3, 1.0).weights.astype(np.float64)

    def loss(at: np.ndarray) -> float:
        logits = features @ at[:-1] + at[-1]
        shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return float(-shares[np.arange(60), owner].sum() + (at[:-1] ** 2).sum() / 2 + 0.005 * (at[-1] ** 2).sum())

    least = loss(weights)
    for _ in range(50):
        assert loss(weights + 0.1 * random_.normal(size=weights.shape)) > least - 0.01


def test_rare_pieces_count_more_and_unknown_ones_too() -> None:
    pieces = Pieces(["the red parcel", "the blue parcel", "the parcel", "the xylophone"])
    row = pieces.row
    assert row("the xylophone is lost") @ row("a xylophone") > row("the parcel") @ row("the drum")
    assert np.linalg.norm(row("zzz")) == pytest.approx(1, abs=1e-5)
    assert pieces.rows(["a", "b"]).shape == (2, WIDTH)


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=900))
def test_pieces_of_any_text_are_finite(text: str) -> None:
    row = Pieces(["order", "退款"]).row(text)
    assert np.isfinite(row).all()
    assert float(np.linalg.norm(row)) <= 1.001


@pytest.mark.parametrize(("routes", "each"), [(3, 4), (8, 10)])
def test_equal_utterances_in_any_order_give_equal_numbers(routes: int, each: int) -> None:
    texts, vectors, owner = cloud(routes, each)
    pairs = [(f"r{number}", text) for number, text in zip(owner, texts, strict=True)]
    first = Index(pairs, vectors)
    query = vectors[5]
    for seed in range(3):
        order = list(range(len(pairs)))
        random.Random(seed).shuffle(order)
        second = Index([pairs[place] for place in order], vectors[order])
        assert second.calibration == first.calibration
        assert second.judge("parcel", query, views=True) == first.judge("parcel", query, views=True)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(0, 5),
)
def test_no_set_of_utterances_gives_numbers_that_are_none(pairs: list[tuple[int, int]], asked: int) -> None:
    """Equal vectors, opposite vectors, routes of one utterance: nothing divides by zero."""
    basis = np.concatenate([np.eye(3), -np.eye(3)]).astype(np.float32)
    index = Index([(f"r{route}", f"text {way}") for route, way in pairs], basis[[way for _, way in pairs]])
    outcome = index.judge("text", basis[asked], views=True)
    assert np.isfinite(index.thresholds).all()
    assert np.isfinite(index.margin)
    for view in outcome.views:
        assert np.isfinite(view.score)
        assert -1 <= view.score <= 1
