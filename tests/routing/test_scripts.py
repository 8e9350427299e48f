from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.scripts import LANGUAGES, bounds_words, is_latin, language


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("where is my parcel", "en"),
        ("où est mon colis", "en"),
        ("我的包裹到哪了", "zh"),
        ("我的 iPhone 订单到哪了", "zh"),
        ("注文の状況を教えて", "ja"),
        ("カメラ", "ja"),
        ("주문 상태", "ko"),
        ("где моя посылка", "ru"),
        ("أين طلبي", "ar"),
        ("สั่งซื้อ", "th"),
        ("πού είναι", "el"),
        ("איפה החבילה", "he"),
        ("मेरा ऑर्डर", "hi"),
        ("123 + 4 = ?", ""),
        ("", ""),
        ("👍", ""),
    ],
)
def test_the_main_script_stands_for_a_language(text: str, expected: str) -> None:
    assert language(text) == expected


@given(st.text())
def test_any_text_has_a_known_language_or_none(text: str) -> None:
    assert language(text) in {"", *LANGUAGES}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", True),
        ("café — naïve “x” 5 € 👍", True),
        ("查 order", False),
        ("привет", False),
        ("α", False),
        ("…？！", True),
    ],
)
def test_latin_text_has_no_other_letters(text: str, expected: bool) -> None:
    assert is_latin(text) is expected


@pytest.mark.parametrize(
    ("char", "expected"),
    [
        ("a", True),
        ("é", True),
        ("ж", True),
        ("5", True),
        ("_", True),
        ("+", False),
        ("单", False),
        ("か", False),
        ("한", False),
        ("ก", False),
    ],
)
def test_words_are_bounded_where_scripts_use_spaces(char: str, expected: bool) -> None:
    assert bounds_words(char) is expected
