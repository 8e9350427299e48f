from __future__ import annotations

from gateway.chat.blocks import Message, Text
from gateway.turn.sticky import places


def said(*texts: str) -> list[Message]:
    """User and assistant in turn."""
    return [Message(("user", "assistant")[number % 2], (Text(text),)) for number, text in enumerate(texts)]


def test_a_conversation_is_found_where_its_last_request_left_it() -> None:
    first, second = places("a", None, said("hi")), places("a", None, said("hi", "hello", "and now?"))
    assert not first.earlier
    assert second.earlier == (first.here,)
    third = places("a", None, said("hi", "hello", "and now?", "so", "more"))
    assert third.earlier == (second.here, first.here)


def test_another_answer_is_the_same_conversation_and_another_question_is_not() -> None:
    first = places("a", None, said("hi"))
    assert places("a", None, said("hi", "something else", "and now?")).earlier == (first.here,)
    assert places("a", None, said("ho", "hello", "and now?")).earlier != (first.here,)


def test_a_session_is_one_place_whatever_is_said_in_it() -> None:
    one = places("a", "s1", said("hi"))
    assert one.earlier == (one.here,)
    assert places("a", "s1", said("other")) == one
    assert places("a", "s2", said("hi")) != one


def test_no_two_owners_share_a_place() -> None:
    assert places("a", "s1", said("hi")).here != places("b", "s1", said("hi")).here
    assert places("a", None, said("hi")).here != places("b", None, said("hi")).here
    # A session's name cannot be written so that it reads as another owner's.
    assert places("a", "b\0s", said("hi")).here != places("a\0b", "s", said("hi")).here
    assert places("a", "1\0b\0s", said("hi")).here != places("a\x001\0b", "s", said("hi")).here


def test_only_the_latest_few_requests_of_a_long_conversation_are_looked_for() -> None:
    assert len(places("a", None, said(*map(str, range(401)))).earlier) == 8
