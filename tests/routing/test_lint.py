"""What `check` warns of in routes without mistakes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.models import RouteConfig
from gateway.routing.facts import Facts
from gateway.routing.lint import Finding, lint
from gateway.routing.normalise import normalise
from gateway.routing.rules import RuleTable
from tests.routing.tables import route


def said(*routes: RouteConfig, **more: Any) -> list[str]:
    return [f"{finding.route}: {finding.message}" for finding in lint(routes, **more)]


def places(*routes: RouteConfig, **more: Any) -> list[tuple[str | None, tuple[str | int, ...]]]:
    return [(finding.route, finding.path) for finding in lint(routes, **more)]


def test_rules_that_do_not_touch_each_other_are_fine() -> None:
    assert said(route("a", "refund", "return it"), route("b", "refunds", "c++", "turn"), route("c", "订单")) == []


def test_a_keyword_in_two_routes_is_told_at_the_one_that_loses() -> None:
    first, second = route("a", "x", "ＯＲＤＥＲ  status"), route("b", "order status", "y", priority=-1)
    assert lint([second, first]) == [
        Finding(
            "b",
            ("keywords", 0),
            "keyword 'order status' stands in route `a` too, which comes first (priority 0 over -1)",
            ("a", ("keywords", 1)),
        )
    ]
    assert said(first, route("b", "order status", "y"))[0].endswith("which comes first by its name")


def test_a_keyword_that_holds_a_keyword_of_an_earlier_route_can_never_win() -> None:
    found = said(route("all", "order", priority=5), route("late", "my order now", "parcel"))
    assert found == [
        (
            "late: keyword 'my order now' can never win: keyword 'order' of route `all`, which comes first "
            "(priority 5 over 0), is found in every text with it"
        )
    ]
    # Not within a word, and not where the earlier route is the later one.
    assert said(route("all", "order", priority=5), route("late", "reorder")) == []
    assert said(route("all", "order"), route("late", "my order now", priority=5)) == []
    assert len(said(route("all", "订单", priority=5), route("late", "我的订单号"))) == 2


def test_a_rule_whose_every_part_is_taken_can_never_win() -> None:
    found = lint(
        [
            route("one", "order", priority=5, patterns=["so-[0-9]+"]),
            route("two", "parcel", priority=4),
            route("late", "my order", "parcel", patterns=["so-[0-9]+"]),
        ]
    )
    assert [finding.path for finding in found] == [("keywords", 0), ("keywords", 1), ("patterns", 0), ("keywords",)]
    assert found[-1].message == "the rule can never win; what it asks for is taken by `one`, `two`"


def test_a_rule_behind_conditions_that_always_hold_with_its_own_can_never_win() -> None:
    gate = route("gate", match="when", when={"tags": ["vip", "staff"]}, priority=9)
    late = route("late", "order", when={"tags": ["vip"]})
    assert said(gate, late) == [
        (
            "late: the rule can never win: route `gate`, by its conditions alone, takes every text and comes first "
            "(priority 9 over 0)"
        )
    ]
    assert said(gate, route("late", "order", when={"tags": ["vip", "guest"]})) == []
    assert said(gate, route("late", "order")) == []


@pytest.mark.parametrize(
    ("wanted", "given_", "shadowed"),
    [
        ({"has_tools": True}, {"has_tools": True}, True),
        ({"has_tools": True}, {"has_tools": False}, False),
        ({"min_tokens": 10}, {"min_tokens": 20}, True),
        ({"min_tokens": 20}, {"min_tokens": 10}, False),
        ({"max_tokens": 20}, {"max_tokens": 10}, True),
        ({"max_tokens": 20}, {"min_tokens": 10}, False),
        ({"language": ["en", "zh"]}, {"language": "zh", "has_image": True}, True),
        ({"has_image": False}, {"language": "zh"}, False),
    ],
)
def test_conditions_shadow_only_what_is_narrower(wanted: Any, given_: Any, *, shadowed: bool) -> None:
    found = said(route("a", "order", when=wanted, priority=1), route("b", "order", "more", when=given_))
    assert bool(found) == shadowed


def test_what_could_stop_the_earlier_route_stops_the_warning() -> None:
    late = route("late", "my order", "parcel")
    assert said(route("a", "order", none_of=["cancel"], priority=1), late) == []
    assert said(route("a", "order", all_of=["now"], priority=1), late) == []
    assert said(route("a", "order", priority=1), late, keys=[frozenset({"late"})]) == []
    barred_too = route("late", "my order", "parcel", none_of=["cancel"])
    assert len(said(route("a", "order", none_of=["please cancel"], priority=1), barred_too)) == 1
    assert len(said(route("a", "order", all_of=["my"], priority=1), late)) == 1
    assert len(said(route("a", "order", all_of=["now"], priority=1), route("late", "order", all_of=["right now"]))) == 2


def test_keywords_that_their_own_route_bars_or_repeats_are_told() -> None:
    found = said(route("a", "cancel my order", "Order", "ｏrder", "order status", none_of=["cancel"]))
    assert found == [
        "a: keyword 'cancel my order' can never win: `none_of` 'cancel' bars every text with it",
        "a: keyword 'ｏrder' stands here twice",
        "a: keyword 'order status' adds nothing: keyword 'Order' is found in every text with it",
    ]
    assert said(route("a", "x", all_of=["please cancel"], none_of=["cancel"])) == [
        "a: 'please cancel' must stand in the text, and `none_of` 'cancel' bars it: the rule can never win"
    ]


def test_a_condition_on_a_model_that_is_never_routed_is_told() -> None:
    found = lint([route("a", "x", when={"models": ["auto", "gpt-4o"]})])
    assert [(finding.path, finding.route) for finding in found] == [(("when", "models", 1), "a")]
    assert lint([route("a", "x", when={"models": ["gate"]})], router_model="gate") == []


def test_utterances_are_held_against_rules_and_each_other() -> None:
    first = route("a", "parcel", utterances=["where is it", "WHERE is it", "\u200b"], none_of=["refund"])
    second = route("b", utterances=["where is  it", "my parcel, please", "refund it"])
    third = route("c", "zzz", none_of=["no"], utterances=["no, not that"])
    assert said(first, second, third) == [
        "a: utterance 'WHERE is it' stands here twice",
        "a: utterance '\\u200b' holds nothing that can be compared",
        "b: utterance 'where is  it' stands in route `a` too",
        "b: utterance 'my parcel, please' goes to route `a`, by its keyword 'parcel'",
        "c: utterance 'no, not that' is barred by `none_of` of its own route",
    ]


def test_what_belongs_to_no_route_is_held_against_utterances_and_rules() -> None:
    some = route("a", "parcel", utterances=["where is it"])
    none = ["tell me a joke", "Where is it", "a parcel joke", "tell me a JOKE", "\u200b"]
    assert places(some, none=none) == [(None, ("router", "semantic", "none", place)) for place in (1, 2, 3, 4)]
    assert places(route("a", "parcel"), none=["joke"]) == [(None, ("router", "semantic", "none"))]


_words = st.sampled_from(["a", "b", "a b", "b a", "ab", "订", "订单", "单"])


@st.composite
def _table(draw: st.DrawFn) -> list[RouteConfig]:
    return [
        route(
            f"r{number}",
            *draw(st.lists(_words, min_size=1, max_size=3)),
            priority=draw(st.integers(0, 2)),
            all_of=draw(st.lists(_words, max_size=1)),
            none_of=draw(st.lists(_words, max_size=1)),
        )
        for number in range(draw(st.integers(2, 4)))
    ]


@given(_table(), st.lists(st.lists(_words, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=20))
def test_a_rule_that_is_said_never_to_win_wins_no_text(routes: list[RouteConfig], texts: list[str]) -> None:
    dead = {finding.route for finding in lint(routes) if "rule can never win" in finding.message}
    table = RuleTable(routes)
    for text in [*texts, *(word for each in routes for word in each.keywords)]:
        normal = normalise(text)
        winner = table.winner(table.scan(normal), Facts(normal))
        assert winner is None or winner[0].route not in dead


@pytest.mark.bench
def test_ten_thousand_keywords_take_about_a_second_whatever_they_share() -> None:
    words = [f"word{number} and {number % 97}" for number in range(10_000)]
    apart = [route(f"r{number}", *words[number::100], priority=number % 5) for number in range(100)]
    shared = [route(f"s{number:04}", "order", when={"tags": [f"t{number}"]}) for number in range(1000)]
    begun = time.process_time()
    assert lint(apart) == []
    assert lint(shared) == []
    assert time.process_time() - begun < 10
