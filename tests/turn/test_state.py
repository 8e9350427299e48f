from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.turn.state import WAYS, IllegalStep, Machine, State


def test_every_state_has_its_ways() -> None:
    assert set(WAYS) == set(State)


@pytest.mark.parametrize("start", State)
def test_no_state_is_a_trap(start: State) -> None:
    reached = {start}
    while new := {after for state in reached for after in WAYS[state]} - reached:
        reached |= new
    assert State.TERMINATED in reached
    assert start is State.TERMINATED or State.TERMINATED in WAYS[start], "whatever fails, a turn can end from here"


@pytest.mark.parametrize("start", State)
def test_every_state_is_reached_from_the_beginning(start: State) -> None:
    reached = {State.IDLE}
    while new := {after for state in reached for after in WAYS[state]} - reached:
        reached |= new
    assert start in reached


@given(st.lists(st.sampled_from(State), max_size=12))
def test_machine_takes_legal_steps_only_and_counts_its_rounds(steps: list[State]) -> None:
    machine = Machine()
    rounds = 0
    for step in steps:
        before = machine.state
        if step in WAYS[before]:
            assert machine.to(step) is before
            rounds += step is State.PLANNING
        else:
            with pytest.raises(IllegalStep, match=before.value):
                machine.to(step)
            assert machine.state is before
        assert machine.rounds == rounds
        assert machine.over is (machine.state is State.TERMINATED)
