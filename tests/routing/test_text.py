from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.blocks import Image, Message, Text, ToolCall, ToolResult, Unknown
from gateway.routing.text import as_sent, both_ends, estimate_tokens, routing_text


def user(*blocks: object) -> Message:
    return Message("user", tuple(blocks))  # type: ignore[arg-type]


def test_the_last_user_message_is_routed_on() -> None:
    messages = [
        Message("system", (Text("be kind"),)),
        user(Text("first")),
        Message("assistant", (Text("answer"),)),
        user(Text("second")),
        Message("assistant", (ToolCall("1", "t", "{}"),)),
        Message("tool", (ToolResult("1", "result"),)),
    ]
    assert routing_text(messages) == "second"


def test_text_parts_are_joined_and_pictures_left_out() -> None:
    """B003."""
    picture = Image("data:image/png;base64,iVBORw0KGgo=")
    assert routing_text([user(Text("translate to"), picture, Text("French"))]) == "translate to\nFrench"
    assert routing_text([user(picture)]) == ""
    assert routing_text([user()]) == ""
    assert routing_text([]) == ""


def test_prose_is_estimated_within_a_factor_of_two() -> None:
    english = "The quick brown fox jumps over the lazy dog. " * 100
    assert 500 <= estimate_tokens([user(Text(english))]) <= 2000
    chinese = "我的订单到哪里了请帮我查一下" * 100
    assert 700 <= estimate_tokens([user(Text(chinese))]) <= 2800


def test_pictures_and_calls_count() -> None:
    assert estimate_tokens([user(Image("https://e.test/x.png"))]) > 500
    call = Message("assistant", (ToolCall("1", "t", "x" * 400),))
    assert estimate_tokens([call]) > 100
    assert estimate_tokens([user(Unknown("later", {}))]) >= 0


@given(st.text(st.characters() | st.characters(categories=["Cs"])), st.text())
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert estimate_tokens([user(Text(text))]) <= estimate_tokens([user(Text(text + more))])


@pytest.mark.parametrize("length", [0, 99_999, 100_000, 100_001, 250_000])
def test_of_a_very_long_text_both_ends_are_read_and_positions_led_back(length: int) -> None:
    text = "".join(chr(0x4E00 + number % 20_000) for number in range(length))
    cut = both_ends(text)
    assert len(cut) <= 100_001
    for position in (0, 10, 49_999, 50_001, 50_002, len(cut) - 1):
        if 0 <= position < len(cut):
            assert text[as_sent(position, length)] == cut[position]
