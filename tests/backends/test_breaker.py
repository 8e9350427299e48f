"""When a breaker opens and closes, and what it does not count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.breaker import Breaker


def failing(breaker: Breaker, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        breaker.failed(breaker.enter(), now)


def test_five_faults_in_a_row_open_it_and_an_answer_starts_the_count_anew() -> None:
    breaker = Breaker()
    failing(breaker, 4)
    breaker.answered(breaker.enter(), 0)
    failing(breaker, 4)
    assert (breaker.state(0), breaker.admits(0)) == ("closed", True)
    failing(breaker, 1)
    assert (breaker.state(0), breaker.admits(0), breaker.opens_in(0.5)) == ("open", False, 1.5)


def test_many_faults_at_once_among_many_answers_are_an_accident() -> None:
    breaker = Breaker()
    for _ in range(50):
        breaker.answered(breaker.enter(), 0)
    failing(breaker, 40, now=4)
    assert breaker.state(4) == "closed"
    failing(breaker, 10, now=4)
    assert breaker.state(4) == "open"


def test_seldom_calls_that_all_fail_open_it_too() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker.answered(breaker.enter(), 0)
    for minute in range(1, 6):
        failing(breaker, 1, now=60.0 * minute)
    assert not breaker.admits(300)


def test_one_probe_is_let_through_and_its_answer_closes_the_breaker() -> None:
    breaker = Breaker()
    failing(breaker, 5)
    assert (breaker.state(10), breaker.admits(10)) == ("half_open", True)
    probe = breaker.enter()
    assert not breaker.admits(10), "one probe at a time"
    breaker.answered(probe, 10)
    assert (breaker.state(10), breaker.admits(10)) == ("closed", True)


def test_first_content_of_a_probe_is_proof_enough() -> None:
    breaker = Breaker()
    failing(breaker, 5)
    probe = breaker.enter()
    breaker.began(probe)
    assert breaker.admits(10)
    breaker.failed(probe, 11)
    assert breaker.state(11) == "closed", "its ticket is of the time before"


def test_failed_probe_opens_for_twice_as_long_up_to_a_minute() -> None:
    breaker, now, waits = Breaker(), 0.0, []
    failing(breaker, 5)
    for _ in range(7):
        waits.append(breaker.opens_in(now))
        now += waits[-1]
        breaker.failed(breaker.enter(), now)
    assert waits == [2, 4, 8, 16, 32, 60, 60]


def test_probe_that_says_nothing_makes_room_for_the_next() -> None:
    breaker = Breaker()
    failing(breaker, 5)
    breaker.left(breaker.enter())
    assert (breaker.admits(10), breaker.state(10)) == (True, "half_open")


def test_calls_from_before_it_opened_say_nothing() -> None:
    breaker = Breaker()
    old = [breaker.enter() for _ in range(3)]
    failing(breaker, 5)
    breaker.answered(old[0], 1)
    assert breaker.state(1) == "open"
    probe = breaker.enter()
    breaker.failed(old[1], 10)
    breaker.left(old[2])
    assert not breaker.admits(10), "the probe is still under way"
    breaker.answered(probe, 10)
    assert breaker.state(10) == "closed"


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "answered", "failed", "left", "began"]), st.integers(0, 9)), max_size=200
    )
)
def test_it_never_stays_shut_for_ever(steps: list[tuple[str, int]]) -> None:
    breaker, tickets, now = Breaker(), list[int](), 0.0
    for what, number in steps:
        now += number
        if what == "enter":
            if breaker.admits(now):
                tickets.append(breaker.enter())
        elif tickets:
            ticket = tickets.pop(number % len(tickets))
            if what in {"failed", "answered"}:
                getattr(breaker, what)(ticket, now)
            else:
                getattr(breaker, what)(ticket)
                breaker.answered(ticket, now)
    for ticket in tickets:
        breaker.left(ticket)
    assert breaker.admits(now + 60)
