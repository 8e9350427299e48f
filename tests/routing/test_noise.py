from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.blocks import Message, Text
from gateway.routing.following import follows
from gateway.routing.noise import without_noise
from gateway.routing.text import routing_text, routing_texts


def user(*texts: str) -> Message:
    return Message("user", tuple(Text(text) for text in texts))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<system-reminder>order status of the todo list</system-reminder>fix the bug", "fix the bug"),
        ("fix it\n<environment_details>\n# Visible files\nrefund.py\n</environment_details>", "fix it"),
        ('<context source="kb">order status</context> what is this?', "what is this?"),
        ("<SYSTEM-REMINDER>İ</System-Reminder> ok", "ok"),
        ("<task>\nwrite a poem\n</task>", "write a poem"),
        ("a <context>b</context> c <context>d</context> e", "a c e"),
        ("<context>never closed", "<context>never closed"),
        ("is a < b and b > c?", "is a < b and b > c?"),
        ("<contexts>mine</contexts>", "<contexts>mine</contexts>"),
        ("<html><body>mine</body></html>", "<html><body>mine</body></html>"),
    ],
)
def test_what_programs_add_is_not_routed_on(text: str, left: str) -> None:
    cleaned = without_noise(text)
    assert " ".join(cleaned.split()) == left
    assert len(cleaned) == len(text)


@given(
    st.lists(st.sampled_from(["<context>", "</context>", "<task>", "word ", "İ", "<", "</system-reminder>", "\ud800"]))
)
def test_positions_stay_true(pieces: list[str]) -> None:
    text = "".join(pieces)
    cleaned = without_noise(text)
    assert len(cleaned) == len(text)
    assert all(new in {old, " "} for old, new in zip(text, cleaned, strict=True))


@pytest.mark.timeout(20)
def test_many_unclosed_tags_take_no_time() -> None:
    text = "<context><system-reminder>" * 200_000
    assert without_noise(text) == text


def test_a_message_of_nothing_but_noise_is_passed_over() -> None:
    noise = user("<system-reminder>todo</system-reminder>")
    assert routing_text([user("where is my parcel"), noise]) == "where is my parcel"
    assert routing_texts([user("first"), user("second"), noise, user("third")]) == ("third", "second")
    assert routing_texts([user("only")]) == ("only", "")
    assert routing_texts([]) == ("", "")
    # A picture without words is a question of its own, not noise.
    assert routing_text([user("where is my parcel"), user("")]) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("and the week before?", True),
        ("what about berlin", True),
        ("why?", True),
        ("那上周呢?", True),
        ("还有昨天的", True),
        ("why is the sky blue", False),
        ("thanks", False),
        ("tell me a joke", False),
        ("android phones", False),
        ("呢子大衣多少钱", False),
        ("and " + "so on " * 20, False),
        ("", False),
    ],
)
def test_short_questions_that_lean_on_the_turn_before(text: str, expected: bool) -> None:
    assert follows(text) is expected
