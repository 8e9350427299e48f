from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.models import When
from gateway.routing.conditions import UsedFacts, holds, mistakes
from gateway.routing.facts import Facts


@pytest.mark.parametrize(
    ("when", "facts", "expected"),
    [
        ({}, {}, True),
        ({"tags": ["vip", "beta"]}, {"tags": frozenset({"beta", "x"})}, True),
        ({"tags": "vip"}, {"tags": frozenset({"beta"})}, False),
        ({"has_tools": True}, {"has_tools": True}, True),
        ({"has_tools": False}, {"has_tools": True}, False),
        ({"has_image": True}, {}, False),
        ({"min_tokens": 10}, {"tokens": 10}, True),
        ({"min_tokens": 10}, {"tokens": 9}, False),
        ({"max_tokens": 10}, {"tokens": 10}, True),
        ({"max_tokens": 10}, {"tokens": 11}, False),
        ({"models": ["auto"]}, {"model": "auto"}, True),
        ({"models": ["smart"]}, {"model": "auto"}, False),
        ({"language": ["zh", "ja"]}, {"text": "查订单"}, True),
        ({"language": "en"}, {"text": "查订单"}, False),
        ({"tags": "vip", "has_tools": True}, {"tags": frozenset({"vip"})}, False),
    ],
)
def test_every_key_has_to_hold_and_one_of_its_values(when: Any, facts: Any, expected: bool) -> None:
    given_facts = Facts(**{"text": "hello", **facts})
    assert holds(When.model_validate(when), given_facts, given_facts.text) is expected


def test_a_range_that_never_holds_and_an_unknown_language_are_mistakes() -> None:
    assert not mistakes(None)
    assert not mistakes(When(min_tokens=5, max_tokens=5, language=("zh", "en")))
    assert len(mistakes(When(min_tokens=6, max_tokens=5, language=("xx", "yy")))) == 3


FACTS = st.builds(
    Facts,
    text=st.just("t"),
    model=st.sampled_from(["auto", "smart", "x"]),
    tags=st.frozensets(st.sampled_from(["vip", "beta", "gold"])),
    has_tools=st.booleans(),
    has_image=st.booleans(),
    tokens=st.integers(0, 8),
)
WHENS = st.lists(
    st.builds(
        When,
        tags=st.lists(st.sampled_from(["vip", "beta"]), max_size=2).map(tuple),
        models=st.lists(st.sampled_from(["auto", "smart"]), max_size=1).map(tuple),
        has_tools=st.none() | st.booleans(),
        has_image=st.none() | st.booleans(),
        min_tokens=st.none() | st.integers(0, 8),
        max_tokens=st.none() | st.integers(0, 8),
    ),
    max_size=3,
)


@given(WHENS, FACTS, FACTS)
def test_facts_with_one_key_meet_the_same_conditions(whens: list[When], one: Facts, other: Facts) -> None:
    used = UsedFacts(whens)
    if used.key(one) == used.key(other):
        assert [holds(when, one, "t") for when in whens] == [holds(when, other, "t") for when in whens]


@given(FACTS, FACTS)
def test_facts_that_no_condition_asks_for_share_a_key(one: Facts, other: Facts) -> None:
    assert UsedFacts([None, When()]).key(one) == UsedFacts([None, When()]).key(other)


def test_what_a_key_may_use_is_part_of_the_key() -> None:
    used = UsedFacts([])
    assert used.key(Facts("t")) != used.key(Facts("t", allowed_routes=frozenset({"a"})))
    assert used.key(Facts("t")) != used.key(Facts("t", allowed_models=frozenset({"a"})))
