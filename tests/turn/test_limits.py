from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.turn.limits import Enough, ToolLimits

Call = tuple[str, str, bool, str]


def well(name: str = "f", arguments: str = "{}", content: str = "r") -> Call:
    return name, arguments, True, content


def badly(name: str = "f", arguments: str = "{}", content: str = "e") -> Call:
    return name, arguments, False, content


def ended(*rounds: list[Call], max_rounds: int = 100) -> list[str | None]:
    limits = ToolLimits(max_rounds)
    found = [limits.round_ended(calls) for calls in rounds]
    assert all(each.last_round for each in found if each is not None)
    return [each.reason if each is not None else None for each in found]


def test_rounds_are_limited() -> None:
    assert ended([well("a")], [well("b")], max_rounds=2) == [None, "the limit of 2 tool rounds is reached"]


def test_same_call_with_the_same_result_three_times_is_enough() -> None:
    first, second, third = ended(
        [well(arguments='{"a":1,"b":2}')], [well(arguments='{"b": 2, "a":1}')], [well(arguments='{"a":1,"b":2}')]
    )
    assert (first, second) == (None, None)
    assert third == "`f` was called 3 times with the same arguments and the same result"


def test_same_call_with_another_result_is_progress() -> None:
    assert ended(*([well(content=str(number))] for number in range(9))) == [None] * 9


def test_three_failures_in_a_row_of_one_tool_are_enough() -> None:
    calls = [[badly(arguments=str(number), content=str(number))] for number in range(3)]
    assert ended(*calls) == [None, None, "`f` failed 3 times in a row"]


def test_success_begins_the_count_anew() -> None:
    bad = [[badly(arguments=str(number), content=str(number))] for number in range(4)]
    assert ended(bad[0], bad[1], [well()], bad[2], bad[3]) == [None] * 5


def test_failures_of_two_tools_are_counted_apart() -> None:
    rounds = [[badly(name, str(number), str(number))] for number in range(2) for name in ("f", "g")]
    assert ended(*rounds) == [None] * 4


def test_parallel_failures_are_one_attempt() -> None:
    assert ended([badly(arguments=str(n), content=str(n)) for n in range(5)]) == [None]
    assert ended([well()] * 5) == [None]


def test_one_success_among_parallel_calls_is_a_success() -> None:
    rounds = [[badly(arguments=f"{n}", content=f"{n}"), well(arguments=f"x{n}")] for n in range(4)]
    assert ended(*rounds) == [None] * 4


def test_arguments_that_are_no_json_are_compared_as_text() -> None:
    assert ended(*([well(arguments="{'a'")] for _ in range(3)))[2] is not None


def test_tokens_that_leave_room_for_one_more_prompt_leave_it_to_the_answer() -> None:
    limits = ToolLimits(5, 1000)
    assert limits.spent(500, 200) is None
    assert limits.spent(600, 200) == Enough("the limit of 1000 tokens is reached")
    assert limits.spent(900, 200) == Enough("the limit of 1000 tokens is reached", last_round=False)
    assert ToolLimits(5).spent(10**9, 10**9) is None


def test_the_last_of_the_time_is_the_answer_s() -> None:
    limits = ToolLimits(5, time_limit_s=300)
    assert limits.waited(30.5) is None
    assert limits.waited(30) == Enough("the time limit of 300 s is reached")
    assert ToolLimits(5, time_limit_s=10).waited(2.5) is None
    assert ToolLimits(5, time_limit_s=10).waited(2) is not None


@given(st.integers(1, 10**6), st.lists(st.integers(1, 10**5), min_size=1, max_size=50))
def test_no_prompt_is_sent_that_takes_a_turn_past_its_tokens(limit: int, prompts: list[int]) -> None:
    """The estimate being right, the limit is passed by no more than what the first round and one answer took."""
    limits, spent = ToolLimits(100, limit), prompts[0]
    for prompt in prompts[1:]:
        enough = limits.spent(spent, prompt)
        if enough is None or enough.last_round:
            spent += prompt
            assert spent <= limit
        if enough is not None:
            return
