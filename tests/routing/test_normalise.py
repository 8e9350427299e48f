from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.normalise import Positions, normalise

# Any code point, halves of surrogate pairs too, with a bias towards what composes, folds, vanishes or is white space.
ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]))
TRICKY = st.text(
    st.sampled_from(
        "iİIıſßẞΣςé\u0301\u0307\u0323\u0345\u3099か゛ｶﾞ가각\u1100\u1161\u11a8 \u200b\u200d\ufeff\xa0\u3000\n\t¨查订单๑กＡ"
    )
)

# Every code point that some step changes, in any company; among plain letters, and in long runs.
CHANGING = [
    char
    for char in map(chr, [*range(0x20000), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE0200)])
    if normalise(f"x{char}x") != f"x{char}x" or unicodedata.category(char)[0] in "MC"
]
CHANGED = st.text(st.sampled_from(CHANGING) | st.sampled_from("aiか订ß "), max_size=40)
RUNS = st.builds(
    lambda start, marks, times, end: start + "".join(marks) * times + end,
    TRICKY,
    st.lists(
        st.sampled_from([char for char in CHANGING if unicodedata.category(char)[0] == "M"]), min_size=1, max_size=4
    ),
    st.integers(1, 40),
    TRICKY,
)
SOME_TEXT = ANY_TEXT | TRICKY | CHANGED | RUNS


@settings(max_examples=400)
@given(SOME_TEXT)
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


@given(SOME_TEXT)
def test_no_text_keeps_outer_doubled_or_odd_white_space(text: str) -> None:
    assert " ".join(normalise(text).split()) == normalise(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_quick_way_for_ascii_equals_splitting_and_joining(text: str) -> None:
    assert normalise(text) == " ".join(text.lower().split())


def test_every_single_code_point_is_idempotent_and_encodable() -> None:
    # Beyond these planes nothing is assigned.
    for code in [*range(0x20000), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE0200)]:
        once = normalise("x" + chr(code) + "か")
        assert normalise(once) == once, hex(code)
        once.encode()


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("cafe\u0301", "café"),
        ("ｃａｆé", "café"),
        ("CAFÉ", "café"),
        ("hel\u200blo", "hello"),
        ("\ufeffhello", "hello"),
        ("İSTANBUL", "istanbul"),
        ("ISTANBUL", "istanbul"),
        ("查 订\u3000单", "查订单"),
        ("ＷＥＡＴＨＥＲ　ｆｏｒｅｃａｓｔ", "weather forecast"),
        ("Weather \t\n  Forecast", "weather forecast"),
        ("weather\u00a0forecast", "weather forecast"),
        ("　天气　怎么样", "天气怎么样"),
        ("STRASSE", "straße"),
        ("ﬁle", "file"),
        ("안녕", "\u110b\u1161\u11ab\u1102\u1167\u11bc"),
        ("ｶﾞ", "ガ"),
        ("don’t say “no” — e‑mail", 'don\'t say "no" - e-mail'),
    ],
)
def test_spellings_that_look_the_same_are_one(text: str, same: str) -> None:
    """B002, B008."""
    assert normalise(text) == normalise(same)


@pytest.mark.parametrize(
    ("text", "other"),
    [("cafe", "café"), ("안녕 하세요", "안녕하세요"), ("查 iPhone", "查iPhone"), ("no table", "notable")],
)
def test_spellings_that_differ_stay_apart(text: str, other: str) -> None:
    assert normalise(text) != normalise(other)


def test_half_of_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert normalise("a\ud83db") == "a\ufffdb"


@given(SOME_TEXT)
def test_positions_stay_inside_the_text_and_in_order(text: str) -> None:
    whole = normalise(text)
    positions = Positions(text)
    last = 0
    for place in range(len(whole)):
        start, end = positions.span(place, place + 1)
        assert 0 <= start < end <= len(text)
        if positions.exact:
            assert start >= last
            last = start


@given(TRICKY)
def test_positions_are_exact_for_what_people_type(text: str) -> None:
    assert Positions(text).exact


@pytest.mark.parametrize(
    ("text", "keyword", "original"),
    [
        ("please  查 订 单 now", "查订单", "查 订 单"),
        ("a ＷＥＡＴＨＥＲ　 ｆｏｒｅｃａｓｔ b", "weather forecast", "ＷＥＡＴＨＥＲ　 ｆｏｒｅｃａｓｔ"),
        ("the cafe\u0301 there", "café", "cafe\u0301"),
        ("\ufeffhel\u200blo you", "hello", "hel\u200blo"),
        ("in İSTANBUL", "istanbul", "İSTANBUL"),
        ("ﬁles", "files", "ﬁles"),
    ],
)
def test_a_match_is_led_back_to_the_text_as_sent(text: str, keyword: str, original: str) -> None:
    found = re.search(re.escape(normalise(keyword)), normalise(text))
    assert found is not None
    start, end = Positions(text).span(found.start(), found.end())
    assert text[start:end].lstrip("\ufeff") == original
