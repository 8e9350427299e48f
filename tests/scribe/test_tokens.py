"""Estimates of tokens: high rather than low, never an exception, and never less for more."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.blocks import Audio, Block, Image, Message, Text, ToolCall, ToolResult, Unknown
from gateway.chat.codecs.chat_completions import decode_message, encode_message
from gateway.scribe.tokens import at_most, conversation_tokens, message_tokens, text_tokens

# Texts, and what o200k counts for them.
COUNTED = [
    (
        "The quarterly report shows that sales in East China rose by twelve percent compared with the previous week. "
        * 20,
        381,
    ),
    ("请准备上周华东地区的销售报告，并与前一周进行比较。" * 20, 360),
    ("Пожалуйста, подготовьте отчет о продажах за прошлую неделю. " * 20, 301),
    (
        json.dumps([{"shop": f"S{i * 37 % 9999}", "sold": i * 91 % 9999, "plan": i * 13 % 9999} for i in range(60)]),
        1222,
    ),
]


def test_estimates_are_high_rather_than_low() -> None:
    for text, counted in COUNTED:
        assert 0.98 * counted <= text_tokens(text) <= 2 * counted, text[:20]
    digits = "".join(random.Random(1).choices("0123456789", k=3000))
    assert text_tokens(digits) >= 1000, "three digits a token at most"


BLOCKS: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, st.text()),
    st.builds(ToolResult, st.just("c"), st.text()),
    st.builds(ToolCall, st.just("c"), st.just("f"), st.text()),
    st.builds(Image, st.text(), st.sampled_from([None, "low"])),
    st.builds(Audio, st.text(), st.just("wav")),
    st.builds(Unknown, st.just("file"), st.dictionaries(st.text(), st.text())),
)


@given(st.lists(BLOCKS))
def test_more_is_never_less(blocks: list[Block]) -> None:
    messages = [Message("user", (block,)) for block in blocks]
    for index in range(len(messages)):
        assert conversation_tokens(messages[: index + 1]) > conversation_tokens(messages[:index])
        assert message_tokens(messages[index]) > 0


@given(st.lists(st.text(), min_size=1))
def test_the_bound_that_needs_no_reading_holds(texts: list[str]) -> None:
    messages = [decode_message(json.dumps({"role": "user", "content": text}).encode()) for text in texts]
    bound = at_most(messages)
    assert bound is not None
    assert bound >= conversation_tokens(messages)
    bare = [Message("user", (Text(text),)) for text in texts]
    assert (at_most(bare) or 0) >= conversation_tokens(bare)
    assert all(encode_message(message) for message in bare)


def test_pictures_are_counted_by_what_is_asked_of_them_B057() -> None:
    whole, low = (message_tokens(Message("user", (Image("https://x.test/a.png", each),))) for each in (None, "low"))
    assert whole > 500
    assert 50 < low < 200
