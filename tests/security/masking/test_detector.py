"""What is found and what is not: on a labelled set, and on texts nobody wrote."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.privacy import PrivacyConfig, RoutePrivacy
from gateway.security.masking.detector import Detector
from gateway.security.masking.id_numbers import SHAPES
from gateway.security.masking.masking import Masking
from gateway.security.masking.placeholders import Mint
from gateway.security.masking.privacy import Privacy
from gateway.security.masking.secret import fresh_secret
from tests.security.masking.labelled import MARKED, PLAIN, read

KINDS = ("phone", "id_number", "bank_card", "iban", "email")
DETECTOR = Detector(KINDS, {})


def test_precision_and_recall_on_the_labelled_set(record_property: Callable[[str, object], None]) -> None:
    wanted = found = right = 0
    mistakes = []
    for marked in (*MARKED, *PLAIN):
        text, values = read(marked)
        got = DETECTOR.find(text)
        wanted, found, right = wanted + len(values), found + len(got), right + len({*values} & {*got})
        if values != got:
            mistakes.append((text, values, got))
    record_property("precision", f"{right / found:.3f} of {found}")
    record_property("recall", f"{right / wanted:.3f} of {wanted}")
    assert right / found >= 0.98, mistakes
    assert right / wanted >= 0.98, mistakes


@pytest.mark.parametrize("marked", MARKED)
def test_what_is_found_was_suspected_in_whatever_json(marked: str) -> None:
    text, _ = read(marked)
    assert DETECTOR.suspects(json.dumps({"content": text}, ensure_ascii=False).encode())
    assert DETECTOR.suspects(json.dumps({"content": text}).encode())


DIGITS = st.text(alphabet="0123456789 -.()+@abcx１２３电话，:é\u200b", max_size=60)


@given(DIGITS)
@settings(max_examples=300, deadline=None)
def test_nothing_is_found_that_was_not_suspected(text: str) -> None:
    if DETECTOR.find(text):
        assert DETECTOR.suspects(json.dumps(text, ensure_ascii=False).encode())


@given(DIGITS)
@settings(max_examples=200, deadline=None)
def test_what_is_found_lies_apart_and_in_order(text: str) -> None:
    end = 0
    for each in DETECTOR.find(text):
        assert end <= each.start < each.end <= len(text)
        end = each.end


def test_every_identity_number_that_can_be_configured_has_a_shape_and_a_check() -> None:
    names = PrivacyConfig.model_fields["id_numbers"].annotation
    Detector(("id_number",), {}, id_numbers=tuple(SHAPES))
    for name in SHAPES:
        assert PrivacyConfig(id_numbers=(name,)).id_numbers == (name,), names  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("country", "number"),
    [
        ("us.ssn", "536-90-4399"),
        ("br.cpf", "390.533.447-05"),
        ("es.dni", "54362315K"),
        ("it.codicefiscale", "RCCMNL83S18D969H"),
        ("kr.rrn", "971013-1019901"),
        ("fr.nir", "2 95 10 99 126 111 93"),
        ("pl.pesel", "44051401359"),
        ("nl.bsn", "111222333"),
        ("fi.hetu", "131052-308T"),
    ],
)
def test_identity_numbers_of_other_countries_are_found_where_they_are_asked_for(country: str, number: str) -> None:
    text = f"number {number}, please"
    asked = Detector(("id_number",), {}, id_numbers=(country,))
    assert [text[one.start : one.end] for one in asked.find(text)] == [number]
    assert asked.suspects(text.encode())
    assert Detector(("id_number",), {}).find(text) == []


@pytest.mark.parametrize("pattern", [r"(x|xx)+$", r"([0-9]+\s*)*$"])
def test_b084_no_pattern_and_no_text_takes_long(pattern: str) -> None:
    detector = Detector(KINDS, {"own": pattern})
    for text in (
        "x" * 40 + "y",
        " " * 100_000,
        "1" * 100_000,
        "a" * 100_000 + "@",
        "1 " * 50_000,
        "+" * 100_000,
        "@" * 20_000,
    ):
        started = time.process_time()
        detector.find(text)
        # And what was found is looked for in every text of the turn.
        private = Masking(detector, Mint(b"k"))
        private.learn(text)
        private.masked(text)
        assert time.process_time() - started < 2, text[:10]


def test_a_text_of_ordinary_length_takes_no_time_to_speak_of(record_property: Callable[[str, object], None]) -> None:
    words = ["hello", "order", "20240318", "please", "1711111111", "thanks", "the", "订单", "查询", "10:30", "about"]
    dice = random.Random(7)
    text = " ".join(dice.choice(words) for _ in range(400))[:2000].encode()
    best = min(_timed(text) for _ in range(20))
    record_property("seconds", best)
    assert best < 0.001


def _timed(text: bytes) -> float:
    started = time.perf_counter()
    DETECTOR.suspects(text)
    return time.perf_counter() - started


@pytest.mark.parametrize(
    "said",
    [
        "١٣٨١٢٣٤٥٦٧٨",
        "१३८१२३४५६७८",
        "𝟏𝟑𝟖𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖",
        "138\u202d1234\u202c5678",
        "138\u200f12345678",
        "1\ufe0f38\ufe0f12345678",
    ],
)
def test_digits_of_other_scripts_and_signs_that_nobody_sees(said: str) -> None:
    for text in (said, f"手机 {said}, 谢谢", f"it is {said}"):
        assert [text[one.start : one.end] for one in DETECTOR.find(text)] == [said]
        assert DETECTOR.suspects(json.dumps(text, ensure_ascii=False).encode())


def test_what_belongs_to_nobody_is_scrubbed_of_what_any_route_calls_private() -> None:
    config = PrivacyConfig(mode="mask", kinds=("phone",))
    routes = {"mail": RoutePrivacy(kinds=("email",)), "badge": RoutePrivacy(patterns={"badge": "B-[0-9]+"})}
    privacy = Privacy(config, routes, fresh_secret(), lambda of: Detector(of.kinds, of.patterns))
    assert privacy.scrub is not None
    text = "13812345678, sam.roe@example.org, B-1234, order 20240318"
    assert privacy.scrub(text) == "[phone], [email], [badge], order 20240318"
