"""The right to decide, by one's own clock."""

from __future__ import annotations

import pytest

from gateway.config.standing import Standing
from gateway.errors import ConfigStale
from tests.clocks import HandClock


def standing(on_loss: str = "refuse") -> tuple[Standing, HandClock]:
    clock = HandClock()
    it = Standing(clock, alone=False)
    it.on_loss = on_loss  # type: ignore[assignment]
    return it, clock


def test_who_is_alone_always_decides() -> None:
    it = Standing(HandClock(), alone=True)
    it.refuse()
    assert (it.stale, it.reason) == (False, None)


@pytest.mark.parametrize("on_loss", ["serve", "refuse"])
def test_before_the_first_lease_nothing_is_decided(on_loss: str) -> None:
    it, _ = standing(on_loss)
    it.troubled("the store is away")
    with pytest.raises(ConfigStale, match="the store is away"):
        it.refuse()
    assert it.stale


def test_a_lease_counts_from_when_it_was_asked_for_and_ends_early() -> None:
    it, clock = standing()
    asked_at = clock.monotonic()
    clock.at += 3  # the answer took its time
    it.granted(asked_at, 10)
    clock.at = asked_at + 8.9
    it.refuse()
    clock.at = asked_at + 9.01
    assert it.stale
    with pytest.raises(ConfigStale):
        it.refuse()


def test_a_lease_that_ran_out_is_told_and_served_on_where_that_is_wanted() -> None:
    it, clock = standing("serve")
    it.granted(clock.monotonic(), 10)
    told = [it.reason]
    clock.at += 10
    it.refuse()
    told.append(it.reason)
    assert told == [None, "the lease ran out"]


def test_a_lease_that_was_given_up_is_lost_at_once_and_may_be_granted_again() -> None:
    it, clock = standing()
    it.granted(clock.monotonic(), 10)
    it.lost("it cannot be proved")
    with pytest.raises(ConfigStale, match="it cannot be proved"):
        it.refuse()
    it.granted(clock.monotonic(), 10)
    it.refuse()


def test_a_shorter_grant_does_not_end_a_longer_one() -> None:
    it, clock = standing()
    it.granted(clock.monotonic(), 100)
    it.granted(clock.monotonic(), 1)
    clock.at += 50
    it.refuse()
