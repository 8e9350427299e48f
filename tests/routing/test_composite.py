from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.config.models import RouteConfig
from gateway.errors import ConfigError
from gateway.routing.composite import CompositeRouter
from gateway.routing.decision import Decision
from gateway.routing.encoders.auto import AutoEncoder
from gateway.routing.encoders.minilm_onnx import MiniLMEncoder
from gateway.routing.facts import Facts
from gateway.routing.normalise import normalise
from tests.routing.hashing_encoder import HashingEncoder
from tests.routing.tables import HandClock, route, router

ORDERS = route(
    "orders", "order status", utterances=["where is my parcel", "where is my package now", "parcel not here"]
)
MUSIC = route("music", "play music", utterances=["put on some jazz", "start a jazz song", "some jazz song"])


async def prepared(
    encoder: Any = None, routes: list[RouteConfig] | None = None, **semantic: Any
) -> tuple[CompositeRouter, HashingEncoder]:
    encoder = encoder or HashingEncoder()
    made = router(routes or [ORDERS, MUSIC], encoder, **semantic)
    await made.prepare()
    return made, encoder


def same(one: Decision, other: Decision) -> bool:
    """Equal but for `cached` and what explaining adds."""
    return replace(one, cached=False, candidates=(), matched=(), calibration="") == replace(
        other, cached=False, candidates=(), matched=(), calibration=""
    )


async def test_a_rule_decides_before_meaning_and_without_an_encoder() -> None:
    made, encoder = await prepared()
    encoded = len(encoder.encoded)
    decision = await made.decide(Facts("my ORDER  status?"))
    assert (decision.route, decision.model, decision.strategy) == ("orders", "m", "rule")
    assert decision.version == "1-test"
    assert decision.score is None
    assert "order status" in decision.reason
    assert len(encoder.encoded) == encoded


async def test_meaning_decides_where_no_rule_does() -> None:
    made, _ = await prepared()
    assert made.ready
    decision = await made.decide(Facts("where is my parcel please"))
    assert (decision.route, decision.strategy) == ("orders", "semantic")
    assert decision.score is not None
    assert decision.margin is not None
    assert decision.score >= decision.margin > 0


async def test_what_is_like_nothing_goes_to_the_default() -> None:
    made, _ = await prepared()
    decision = await made.decide(Facts("completely unrelated philosophy"))
    assert (decision.route, decision.model, decision.strategy) == (None, "fallback", "default")
    assert decision.reason == "below_threshold"


@pytest.mark.parametrize("text", ["", "  \n", "\u200b"])
async def test_no_text_goes_to_the_default_or_to_a_route_by_conditions(text: str) -> None:
    """B003."""
    made, _ = await prepared()
    assert (await made.decide(Facts(text))).reason == "no_text"
    pictures = route("pictures", match="when", when={"has_image": True})
    made, _ = await prepared(routes=[ORDERS, pictures])
    assert (await made.decide(Facts(text, has_image=True))).route == "pictures"
    assert (await made.decide(Facts(text, has_image=False))).route is None


async def test_without_encoder_or_when_switched_off_meaning_is_not_asked() -> None:
    assert (await router([ORDERS]).decide(Facts("where is my parcel"))).reason == "semantic_disabled"
    encoder = HashingEncoder()
    made, _ = await prepared(encoder, enabled=False)
    assert made.ready
    assert (await made.decide(Facts("where is my parcel"))).reason == "semantic_disabled"
    assert encoder.loads == 0


async def test_while_the_encoder_loads_decisions_fall_through_and_are_not_kept() -> None:
    encoder = HashingEncoder()
    encoder.gate.clear()
    made = router([ORDERS, MUSIC], encoder)
    preparing = asyncio.create_task(made.prepare())
    await asyncio.sleep(0)
    facts = Facts("where is my parcel")
    ready_before = made.ready
    assert (await made.decide(facts)).reason == "encoder_loading"
    assert (await made.decide(Facts("order status"))).route == "orders"
    encoder.gate.set()
    await asyncio.wait_for(preparing, 5)
    assert (ready_before, made.ready) == (False, True)
    decision = await made.decide(facts)
    assert (decision.route, decision.cached) == ("orders", False)


async def test_an_encoder_that_cannot_load_leaves_rules_and_default_working() -> None:
    encoder = HashingEncoder()
    encoder.failing = RuntimeError("no weights")
    made, _ = await prepared(encoder)
    assert made.ready
    assert made.failure is not None
    assert "no weights" in made.failure
    assert (await made.decide(Facts("where is my parcel"))).reason == "encoder_failed"
    assert (await made.decide(Facts("order status"))).route == "orders"


RUBBISH = [
    np.full((1, 64), np.nan, np.float32),
    np.full((1, 64), np.inf, np.float32),
    np.zeros((1, 64), np.float32),
    np.ones((1, 63), np.float32),
    np.ones((2, 64), np.float32),
    np.ones(64, np.float32),
]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=["nan", "inf", "zero", "short", "two", "flat"])
async def test_vectors_that_cannot_be_compared_mean_falling_through(rubbish: Any) -> None:
    """B004."""
    made, encoder = await prepared()
    encoder.rubbish = rubbish
    facts = Facts("where is my parcel")
    assert (await made.decide(facts)).reason == "encoder_failed"
    encoder.rubbish = None
    decision = await made.decide(facts)
    assert (decision.route, decision.cached) == ("orders", False)
    encoder.rubbish = rubbish
    broken, _ = await prepared(encoder)
    assert (await broken.decide(facts)).reason == "encoder_failed"


async def test_an_encoder_that_raises_anything_means_falling_through() -> None:
    """B004."""
    made, encoder = await prepared()
    for error in (ValueError("input too long"), KeyError("x"), MemoryError()):
        encoder.failing = error
        assert (await made.decide(Facts("where is my parcel"))).reason == "encoder_failed"
    encoder.failing = None
    assert (await made.decide(Facts("where is my parcel"))).route == "orders"


async def test_an_encoder_that_is_slow_is_not_waited_for_and_serves_the_next_request() -> None:
    """B004."""
    made, encoder = await prepared(timeout_ms=20)
    encoder.gate.clear()
    facts = Facts("where is my parcel")
    decision = await asyncio.wait_for(made.decide(facts), 5)
    assert decision.reason == "encoder_timeout"
    encoder.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    encoder.gate.clear()
    late = await made.decide(facts)
    assert (late.route, late.cached) == ("orders", False)
    await made.close()


async def test_texts_beyond_what_an_encoder_can_hold_are_refused_at_once() -> None:
    made, encoder = await prepared(timeout_ms=60_000)
    encoder.gate.clear()
    waiting = [asyncio.create_task(made.decide(Facts(f"text number {number}"))) for number in range(256)]
    await asyncio.sleep(0)
    decision = await asyncio.wait_for(made.decide(Facts("one more")), 5)
    assert decision.reason == "encoder_timeout"
    encoder.gate.set()
    reasons = {decision.reason for decision in await asyncio.wait_for(asyncio.gather(*waiting), 10)}
    assert "encoder_timeout" not in reasons


async def test_equal_questions_asked_at_once_are_computed_once() -> None:
    made, encoder = await prepared(timeout_ms=5000)
    encoder.gate.clear()
    texts = ["Where is my parcel", "where  is my PARCEL", "where is my\u200b parcel"] * 5
    asked = [asyncio.create_task(made.decide(Facts(text))) for text in texts]
    await asyncio.sleep(0)
    encoder.gate.set()
    decisions = await asyncio.wait_for(asyncio.gather(*asked), 5)
    assert {decision.route for decision in decisions} == {"orders"}
    assert encoder.encoded.count("where is my parcel") == 2  # once as an utterance, once as a question


async def test_a_caller_that_goes_away_does_not_take_the_computation_from_others() -> None:
    made, encoder = await prepared(timeout_ms=5000)
    encoder.gate.clear()
    first = asyncio.create_task(made.decide(Facts("where is my parcel")))
    second = asyncio.create_task(made.decide(Facts("where is my parcel")))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    encoder.gate.set()
    assert (await asyncio.wait_for(second, 5)).route == "orders"


async def test_closing_stops_what_computes_and_leaves_the_encoder_open() -> None:
    made, encoder = await prepared(timeout_ms=60_000)
    encoder.gate.clear()
    asked = asyncio.create_task(made.decide(Facts("where is my parcel")))
    await asyncio.sleep(0)
    await asyncio.wait_for(made.close(), 5)
    assert (await asyncio.wait_for(asked, 5)).reason == "encoder_failed"
    assert encoder.closes == 0


async def test_the_second_time_the_cache_answers_until_the_entry_is_too_old() -> None:
    clock = HandClock()
    encoder = HashingEncoder()
    made = router([ORDERS, MUSIC], encoder, clock=clock, cache_ttl_s=300)
    await made.prepare()
    first = await made.decide(Facts("where is my parcel"))
    second = await made.decide(Facts("Where is  my PARCEL"))
    assert (first.cached, second.cached) == (False, True)
    assert same(first, second)
    assert (made.cache.hits, made.cache.misses) == (1, 1)
    clock.time += 301
    assert not (await made.decide(Facts("where is my parcel"))).cached
    default = await made.decide(Facts("completely unrelated philosophy"))
    assert (await made.decide(Facts("completely unrelated philosophy"))).cached
    assert default.strategy == "default"


async def test_facts_that_conditions_ask_for_keep_decisions_apart() -> None:
    vip = route("orders", utterances=list(ORDERS.utterances), when={"tags": ["vip"]})
    made, _ = await prepared(routes=[vip, MUSIC])
    text = "where is my parcel"
    assert (await made.decide(Facts(text))).route is None
    assert (await made.decide(Facts(text, tags=frozenset({"vip"})))).route == "orders"
    assert (await made.decide(Facts(text))).route is None
    assert (await made.decide(Facts(text, tags=frozenset({"vip"}), allowed_routes=frozenset({"music"})))).route is None


async def test_conditions_and_none_of_bar_meaning_too() -> None:
    barred = route("orders", "zzz", utterances=list(ORDERS.utterances), none_of=["jazz"], when={"has_tools": False})
    made, _ = await prepared(routes=[barred, MUSIC])
    assert (await made.decide(Facts("where is my parcel"))).route == "orders"
    assert (await made.decide(Facts("where is my parcel jazz"))).route != "orders"
    assert (await made.decide(Facts("where is my parcel", has_tools=True))).route is None


async def test_only_routes_that_may_not_be_used_is_no_match() -> None:
    made, _ = await prepared()
    decision = await made.decide(Facts("where is my parcel", allowed_models=frozenset({"fallback"})))
    assert (decision.route, decision.reason) == (None, "no_match")


async def test_two_routes_that_are_alike_are_ambiguous() -> None:
    twin = route("twin", "zzz", utterances=list(ORDERS.utterances))
    made, _ = await prepared(routes=[ORDERS, twin, MUSIC])
    assert (await made.decide(Facts("where is my parcel"))).reason == "ambiguous"
    made, _ = await prepared(routes=[ORDERS, twin, MUSIC], margin=0)
    assert (await made.decide(Facts("where is my parcel"))).route == "orders"


async def test_a_number_in_the_configuration_replaces_the_threshold() -> None:
    text = "where is my parcel please hurry up"
    assert (await (await prepared(threshold=0.99))[0].decide(Facts(text))).reason == "below_threshold"
    assert (await (await prepared(threshold=-1.0, margin=0))[0].decide(Facts("philosophy"))).strategy == "semantic"


async def test_a_route_s_own_threshold_counts_for_its_encoder_and_is_refused_for_another() -> None:
    """B007."""
    strict = route("orders", "zzz", utterances=list(ORDERS.utterances), threshold={"value": 0.99, "encoder": "hashing"})
    made, _ = await prepared(routes=[strict, MUSIC])
    assert (await made.decide(Facts("where is my parcel please"))).reason == "below_threshold"
    with pytest.raises(ConfigError) as refused:
        router([strict, MUSIC], HashingEncoder("other"))
    assert "'hashing'" in str(refused.value)
    assert "'other'" in str(refused.value)


async def test_nothing_of_one_encoder_meets_another_after_a_change() -> None:
    """B007."""
    first, _ = await prepared()
    await first.decide(Facts("where is my parcel"))
    second = router([ORDERS, MUSIC], HashingEncoder("wide", 128), version="2-test")
    await second.prepare()
    decision = await second.decide(Facts("where is my parcel"))
    assert (decision.route, decision.cached, decision.version) == ("orders", False, "2-test")


async def test_a_text_is_compared_in_the_space_that_reads_it() -> None:
    latin, rest = HashingEncoder("latin", 16, "latin"), HashingEncoder("rest", 64)
    both = route("orders", "zzz", utterances=["where is my parcel", "my parcel please", "parcel now", "包裹 parcel"])
    made, _ = await prepared(AutoEncoder([latin, rest]), [both])
    assert (await made.decide(Facts("where is my parcel"))).route == "orders"
    assert latin.encoded[-1] == "where is my parcel"
    assert (await made.decide(Facts("包裹 parcel"))).route == "orders"
    assert rest.encoded[-1] == "包裹 parcel"
    assert "包裹 parcel" not in latin.encoded


async def test_a_space_in_which_a_route_has_nothing_to_be_found_by_is_not_used() -> None:
    latin, rest = HashingEncoder("latin", 16, "latin"), HashingEncoder("rest", 64)
    chinese = route("music", "zzz", utterances=["包裹 jazz song", "播放 jazz song", "音乐 jazz song"])
    made, _ = await prepared(AutoEncoder([latin, rest]), [ORDERS, chinese])
    assert (await made.decide(Facts("jazz song"))).route == "music"
    assert rest.encoded[-1] == "jazz song"


async def test_a_script_that_no_encoder_reads_is_said() -> None:
    made, _ = await prepared(HashingEncoder(scripts="latin"))
    assert (await made.decide(Facts("где посылка"))).reason == "unreadable"


async def test_one_broken_space_leaves_the_other_working() -> None:
    latin, rest = HashingEncoder("latin", 64, "latin"), HashingEncoder("rest", 64)
    rest.failing = OSError("no file")
    made, _ = await prepared(AutoEncoder([latin, rest]))
    assert made.ready
    assert (await made.decide(Facts("where is my parcel"))).route == "orders"
    assert (await made.decide(Facts("包裹 parcel"))).reason == "encoder_failed"


def test_models_that_do_not_exist_are_refused_together() -> None:
    with pytest.raises(ConfigError) as refused:
        router([route("a", "x", model="ghost"), route("b", "x", model="m")], models=["m"])
    assert [str(problem) for problem in refused.value.problems] == [
        "routes/a.yaml:0: model 'ghost' does not exist",
        "gateway.yaml:0: `router.default`: model 'fallback' does not exist",
    ]


TEXTS = [
    "order status",
    "play music and order status",
    "where is my parcel",
    "some jazz",
    "jazz parcel",
    "philosophy",
    "包 裹",
    "",
    "\ud800",
]


@pytest.mark.parametrize("text", TEXTS)
async def test_explaining_changes_no_decision(text: str) -> None:
    """B006."""
    cold, _ = await prepared()
    explained_cold = await cold.decide(Facts(text), explain=True)
    live = await cold.decide(Facts(text))
    explained_warm = await cold.decide(Facts(text), explain=True)
    assert same(explained_cold, live)
    assert same(explained_warm, live)
    assert [candidate.route for candidate in explained_warm.candidates]
    assert explained_cold.candidates == explained_warm.candidates
    chosen = [each.route for each in explained_warm.candidates if each.verdict == "chosen"]
    assert chosen == ([live.route] if live.route else [])


@pytest.mark.parametrize("place", ["start", "middle", "end"])
async def test_long_texts_are_explained_as_they_are_decided(place: str) -> None:
    """B006."""
    prose = "the quiet river went on between the low hills " * 390
    half = len(prose) // 2
    text = {"start": f"refund my invoice {prose}", "middle": f"{prose[:half]} refund my invoice {prose[half:]}"}.get(
        place, f"{prose} refund my invoice"
    )
    billing = route("billing", "zzz", utterances=["refund my invoice", "I want my money back", "this bill is wrong"])
    encoder = MiniLMEncoder()
    made, _ = await prepared(encoder, [billing, MUSIC], timeout_ms=20_000)
    decisions = [
        await made.decide(Facts(text), explain=True),
        await made.decide(Facts(text)),
        await made.decide(Facts(text), explain=True),
    ]
    assert all(same(decisions[0], decision) for decision in decisions)
    assert decisions[1].reason != "encoder_failed"
    await encoder.close()


async def test_an_explanation_shows_what_spoke_for_each_route() -> None:
    made, _ = await prepared(
        routes=[ORDERS, MUSIC, route("late", "status", priority=-1), route("off", "status", none_of=["my"])]
    )
    decision = await made.decide(Facts("  My  ORDER status"), explain=True)
    verdicts = {candidate.route: candidate.verdict for candidate in decision.candidates}
    assert verdicts == {"orders": "chosen", "late": "lower_priority", "off": "barred", "music": "no_match"}
    assert decision.candidates[0].route == "orders"
    assert [(match.kind, match.start, match.end) for match in decision.matched] == [("keyword", 6, 18)]
    by_meaning = await made.decide(Facts("where is my parcel"), explain=True)
    best = by_meaning.candidates[0]
    assert (best.route, best.verdict, best.nearest) == ("orders", "chosen", "where is my parcel")
    assert best.score == by_meaning.score
    assert best.threshold is not None
    assert {candidate.route for candidate in by_meaning.candidates if candidate.score is not None} == {
        "orders",
        "music",
    }


@pytest.mark.parametrize("place", ["start", "end"])
async def test_both_ends_of_a_very_long_text_are_read_with_true_positions(place: str) -> None:
    """B004."""
    filler = "词 and so on " * 60_000
    text = f"order status {filler}" if place == "start" else f"{filler} order  STATUS"
    made, _ = await prepared()
    decision = await made.decide(Facts(text), explain=True)
    assert decision.route == "orders"
    (match,) = decision.matched
    assert normalise(text[match.start : match.end]) == "order status"


async def test_a_short_question_leans_on_the_turn_before_it() -> None:
    made, _ = await prepared()
    alone = await made.decide(Facts("and the week before?"))
    assert (alone.route, alone.reason) == (None, "below_threshold")
    follow = Facts("And the week before?", before="where is my parcel")
    live = await made.decide(follow)
    assert (live.route, live.strategy, live.cached) == ("orders", "semantic", False)
    assert (await made.decide(follow)).cached
    explained = await made.decide(follow, explain=True)
    assert same(explained, live)
    assert explained.candidates[0].score == live.score
    # The turn before says nothing where the question stands for itself, where it decides alone, or where it helps nothing.
    assert (await made.decide(Facts("tell me a joke", before="where is my parcel"))).route is None
    assert (await made.decide(Facts("and some jazz song", before="where is my parcel"))).route == "music"
    assert (await made.decide(Facts("and the week before?", before="deep philosophy"))).route is None


async def test_a_barred_route_stays_barred_for_a_question_that_leans_on_another() -> None:
    orders = route("orders", "zzz", utterances=list(ORDERS.utterances), none_of=["week"])
    made, _ = await prepared(routes=[orders, MUSIC])
    assert (await made.decide(Facts("and now", before="where is my parcel week"))).route == "orders"
    assert (await made.decide(Facts("and week now", before="where is my parcel"))).route is None
    assert (await made.decide(Facts("and now", before="where is my parcel week"))).route == "orders"


PHRASES = ["where is my parcel", "put on some jazz", "refund now", "parcel jazz", "what a day", "open the door"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(PHRASES), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(PHRASES) | st.text(max_size=20),
    st.randoms(use_true_random=False),
)
async def test_order_of_routes_and_utterances_does_not_matter(
    utterances: list[list[str]], text: str, shuffle: random.Random
) -> None:
    routes = [route(f"r{number}", utterances=each) for number, each in enumerate(utterances)]
    first, _ = await prepared(routes=routes, timeout_ms=5000)
    shuffled = [
        each.model_copy(update={"utterances": tuple(shuffle.sample(each.utterances, len(each.utterances)))})
        for each in routes
    ]
    shuffle.shuffle(shuffled)
    second, _ = await prepared(routes=shuffled, timeout_ms=5000)
    assert await first.decide(Facts(text)) == await second.decide(Facts(text))


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=60))
async def test_no_text_makes_the_router_raise(text: str) -> None:
    made, _ = await prepared(timeout_ms=5000)
    assert same(await made.decide(Facts(text)), await made.decide(Facts(text), explain=True))


async def test_an_explanation_does_not_tell_of_routes_that_the_key_may_not_use() -> None:
    made, _ = await prepared(routes=[ORDERS, MUSIC, route("off", "status", utterances=["how does it stand"])])
    facts = Facts("my order status", allowed_routes=frozenset({"orders"}))
    decision = await made.decide(facts, explain=True)
    assert [candidate.route for candidate in decision.candidates] == ["orders"]
