from __future__ import annotations

from gateway.tools.guards.breakers import OPEN_S, Breakers
from tests.clocks import HandClock
from tests.tools.recording_provider import spec

ONE, TWO = spec("one", provider="http:shop"), spec("two", provider="http:shop")
ELSE = spec("else", provider="http:other")


def test_failures_in_a_row_open_the_tool_s_and_the_server_s_breaker() -> None:
    breakers = Breakers(HandClock())
    assert [breakers.failed(ONE, "v", 3, server=True) for _ in range(3)] == [False, False, True]
    assert breakers.open_s(ONE, "v") == breakers.open_s(TWO, "v") == OPEN_S
    assert breakers.open_s(ELSE, "v") == 0


def test_who_does_not_answer_in_time_keeps_its_server_open() -> None:
    breakers = Breakers(HandClock())
    breakers.failed(ONE, "v", 1, server=False)
    assert breakers.open_s(ONE, "v") > 0
    assert breakers.open_s(TWO, "v") == 0


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    breakers = Breakers(HandClock())
    breakers.failed(ONE, "v", 2, server=True)
    breakers.answered(TWO, "v")
    breakers.failed(ONE, "v", 3, server=True)
    assert breakers.open_s(TWO, "v") == 0, "the server's count began anew"
    breakers.answered(ONE, "v")
    assert breakers.failed(ONE, "v", 2, server=True) is False


def test_one_call_is_let_through_after_a_while_and_decides() -> None:
    clock = HandClock()
    breakers = Breakers(clock)
    breakers.failed(ONE, "v", 1, server=True)
    clock.at += OPEN_S
    assert breakers.enter(ONE, "v") == 0
    assert breakers.enter(ONE, "v") > 0, "one at a time"
    assert breakers.enter(TWO, "v") > 0, "one at a time for the server"
    assert breakers.failed(ONE, "v", 5, server=True), "one failure is enough for what was open"
    assert breakers.open_s(ONE, "v") == OPEN_S
    clock.at += OPEN_S
    assert breakers.enter(ONE, "v") == 0
    breakers.left(ONE, "v")
    assert breakers.enter(TWO, "v") == 0, "who gave up has proved nothing"
    breakers.answered(TWO, "v")
    assert breakers.enter(TWO, "v") == 0


def test_another_version_begins_anew() -> None:
    breakers = Breakers(HandClock())
    breakers.failed(ONE, "v", 1, server=True)
    assert breakers.open_s(TWO, "w") == 0


def test_plugins_share_no_server() -> None:
    breakers = Breakers(HandClock())
    breakers.failed(spec("a", provider="python"), "v", 1, server=True)
    assert breakers.open_s(spec("b", provider="python"), "v") == 0
