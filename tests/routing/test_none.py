"""Utterances that belong to no route: `router.semantic.none`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.routing.evaluation import Line, evaluate
from gateway.routing.facts import Facts
from gateway.routing.head import Head
from gateway.routing.index import Index
from gateway.routing.scoring import _evened
from gateway.routing.strays import strays
from tests.routing.hashing_encoder import HashingEncoder
from tests.routing.tables import route, router
from tests.routing.test_index import clouds, unit

ROUTES = [
    route("orders", utterances=["where is my parcel", "has my parcel been sent", "when does my parcel come"]),
    route("refunds", utterances=["i want my money back", "how do i get a refund", "please refund my money"]),
]
JOKE = "tell me a joke about my parcel"


async def test_a_text_like_one_of_none_falls_to_the_default_and_says_why() -> None:
    plain, told = router(ROUTES, HashingEncoder()), router(ROUTES, HashingEncoder(), none=[JOKE, "sing a song"])
    for each in (plain, told):
        await each.prepare()
    assert (await plain.decide(Facts("a joke about my parcel"))).route == "orders"
    decision = await told.decide(Facts("a joke about my parcel"), explain=True)
    assert (decision.route, decision.model, decision.strategy, decision.reason) == (
        None,
        "fallback",
        "default",
        "like_none",
    )
    first = decision.candidates[0]
    assert (first.route, first.verdict, first.nearest, first.threshold) == ("-", "chosen", JOKE, None)
    assert {candidate.route for candidate in decision.candidates} == {"-", "orders", "refunds"}
    again = await told.decide(Facts("a joke about my parcel"))
    assert (again.cached, again.reason) == (True, "like_none")


async def test_what_a_route_s_own_utterances_say_still_goes_there() -> None:
    told = router(ROUTES, HashingEncoder(), none=[JOKE])
    await told.prepare()
    decision = await told.decide(Facts("where is my parcel"), explain=True)
    assert decision.route == "orders"
    assert next(c for c in decision.candidates if c.route == "-").verdict == "lower_score"


async def test_one_that_is_an_utterance_too_is_the_route_s() -> None:
    told = router(ROUTES, HashingEncoder(), none=["Where is my parcel"])
    await told.prepare()
    assert (await told.decide(Facts("where is my parcel"))).route == "orders"


async def test_rules_come_before_it_and_nothing_is_left_when_every_route_is_barred() -> None:
    rules = [*ROUTES, route("jokes", "joke")]
    told = router(rules, HashingEncoder(), none=[JOKE])
    await told.prepare()
    assert (await told.decide(Facts(JOKE))).route == "jokes"
    nobody = await told.decide(Facts("sing a song", allowed_routes=frozenset({"jokes"})))
    assert nobody.reason == "no_match"


async def test_it_is_no_route_to_the_figures_of_an_evaluation() -> None:
    told = router(ROUTES, HashingEncoder(), none=[JOKE])
    await told.prepare()
    lines = [Line("a joke about my parcel", "orders"), Line("where is my parcel", "orders")]
    figures = evaluate(lines, [await told.decide(Facts(line.text), explain=True) for line in lines])
    assert (figures.all, figures.top1) == (0.5, 1.0)
    assert figures.confusions == [("orders", None, 1)]


def test_a_long_list_takes_little_from_the_routes_and_shuts_out_what_is_like_it() -> None:
    names, vectors = clouds(0.6, routes=4, each=6)
    random = np.random.default_rng(3)
    # Strangers that lean towards the first route's utterances.
    towards = vectors[:6].mean(axis=0)
    strange = unit(*(random.normal(size=(90, vectors.shape[1])) * 0.17 + towards).tolist())
    plain = Index(names, vectors)
    none = [("-", f"n{number}") for number in range(40)]
    told = Index([*names, *none], np.concatenate([vectors, strange[:40]]))
    own = [told.judge(text, vector).route for (_, text), vector in zip(names, vectors, strict=True)]
    assert sum(route == name for route, (name, _) in zip(own, names, strict=True)) >= 0.9 * len(names)
    before = sum(plain.judge("q", vector).route is not None for vector in strange[40:])
    after = sum(told.judge("q", vector).route is not None for vector in strange[40:])
    assert before >= 20
    assert after <= before / 2
    assert "-" not in told.calibration.thresholds


def test_utterances_that_would_go_elsewhere_are_found() -> None:
    names, vectors = clouds(0.3)
    assert strays(Index(names, vectors)) == []
    names[0], names[1] = ("r4", "u0"), ("-", "u1")
    found = strays(Index(names, vectors))
    assert [(stray.route, stray.utterance, stray.other) for stray in found] == [("r4", "u0", "r0")]
    assert found[0].nearest in {f"u{number}" for number in range(2, 10)}
    assert found[0].other_score > found[0].own_score


def test_a_list_longer_than_a_route_loses_the_head_start_of_its_length() -> None:
    head = Head(np.zeros((3, 3), np.float32))
    long, short = _evened(head, np.asarray([50, 4, 6]), 0), _evened(head, np.asarray([3, 4, 6]), 0)
    assert long.weights[-1].tolist() == pytest.approx([-math.log(10), 0, 0], abs=1e-6)
    assert not short.weights.any()
