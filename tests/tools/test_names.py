from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.tools.names import MAX_CHARS, callable_name, original_name
from gateway.tools.spec import TOOL_NAME_PATTERN

NAMES = st.text(max_size=90) | st.from_regex(r"[a-z_.]{0,4}(_x[0-9a-f]{0,3}_){0,4}[a-z.]{0,60}", fullmatch=True)


@given(NAMES)
@example("")
@example("a" * 65)
@example("a" * 50 + "_h" + "0" * 12)
@example("_x_x41__")
@example("订单/查询")
@example("\ud800")
def test_b028_every_name_becomes_one_that_models_may_call_and_back(name: str) -> None:
    made = callable_name(name)
    assert TOOL_NAME_PATTERN.fullmatch(made)
    assert original_name(made) in {name, None}
    if len(name) * 10 <= MAX_CHARS:
        assert original_name(made) == name


@given(NAMES, NAMES)
@example("a.b", "a_x2e_b")
@example("a" * 80, "a" * 81)
def test_b028_no_two_names_become_one(one: str, other: str) -> None:
    assert (callable_name(one) == callable_name(other)) == (one == other)


@pytest.mark.parametrize("name", ["get_customer", "GET-customers_1", "x", "a__b", "_xyz_"])
def test_a_name_that_may_stay_stays(name: str) -> None:
    assert callable_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a_x110000_", "_x0041_", "_xffffffffff_"])
def test_what_is_no_mapped_name_has_no_original(name: str) -> None:
    assert original_name(name) is None
