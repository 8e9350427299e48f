"""Texts that attackers, phones and far-away keyboards send: what matches, and how long reading them takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from gateway.chat.blocks import Message, Text
from gateway.routing.facts import Facts
from gateway.routing.negation import negates
from gateway.routing.noise import without_noise
from gateway.routing.normalise import Positions, normalise
from gateway.routing.rules import RuleTable
from gateway.routing.scripts import language
from gateway.routing.text import both_ends, routing_texts
from tests.routing.tables import route


def found(keyword: str, text: str) -> bool:
    table = RuleTable([route("r", keyword)])
    assert not table.problems
    return table.winner(table.scan(normalise(text)), Facts(text)) is not None


SAME = [
    ("👍", "great 👍🏽 job"),
    ("❤", "i \u2764\ufe0f you"),
    ("❤️", "i \u2764 you"),
    ("👩‍👩‍👧", "a family 👩‍👩‍👧 here"),
    ("🇩🇪", "in 🇩🇪 now"),
    ("refund", "re\U000e0066fund me"),
    ("refund", "re\u00adfund"),
    ("refund", "\u202erefund\u202c"),
    ("refund", "ⓡⓔⓕⓤⓝⓓ"),
    ("refund", "𝓻𝓮𝓯𝓾𝓷𝓭"),
    ("office", "the oﬃce"),
    ("ガイド", "ｶﾞｲﾄﾞをください"),
    ("パリ", "ﾊﾟﾘまで"),
    ("don't", "I don’t know"),
    ("don’t", "I don't know"),
    ("don't", "I donʼt know"),
    ('"exact"', "say “exact” please"),
    ("e-mail", "my e‑mail"),
    ("e‐mail", "my e-mail"),
    ("10-20", "10–20 pieces"),
    ("...", "wait…"),
    ("10€", "costs １０€ now"),
    ("天气", "天\u200b气"),
    ("辻", "辻\U000e0100さん"),
    ("สวัสดี", "สวัสดีครับ"),
    ("안녕", "\u110b\u1161\u11ab\u1102\u1167\u11bc하세요"),
    ("كتاب", "\u202bكتاب\u202c"),
    ("كتاب", "ﻛﺘﺎﺏ"),
    ("كتاب", "كتابٌ"),
    ("שלום", "שלום!"),
    ("नमस्ते", "नमस्ते दुनिया"),
    ("தமிழ்", "தமிழ் மொழி"),
    ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ("ß", "SS"),
    ("a b", "a\u2028b"),
    ("ﷺ", "قال ﷺ هنا"),
    ("node.js", "Node.js rocks"),
]
OTHER = [
    ("refund", "rеfund"),  # a Cyrillic letter is another letter
    ("हिन्दी", "हिन्दीभाषा"),
    ("हिन्द", "हिन्दी"),
    ("क", "कि"),
    ("e", "e\u0331"),
    ("cafe", "cafe\u0331"),
    ("$5", "only $50"),
    ("#1", "#10"),
    ("a.b", "axb"),
    ("case", "snake_case"),
    ("天气", "天。气"),
    ("天氣", "天气"),
    ("a b", "a\x00b"),
    ("istanbul", "ıstanbul"),
]


@pytest.mark.parametrize(("keyword", "text"), SAME)
def test_what_people_take_for_the_same_word_is_found(keyword: str, text: str) -> None:
    """B001, B002, B008."""
    assert found(keyword, text)


@pytest.mark.parametrize(("keyword", "text"), OTHER)
def test_what_is_another_word_is_not_found(keyword: str, text: str) -> None:
    """B001, B008."""
    assert not found(keyword, text)


@pytest.mark.parametrize("marks", ["\u0301", "\u0301\u0323\u0345\u05b0", "\u0f73\u0301", "ﾞ\u0301", "\U0001e136\u0323"])
def test_no_more_marks_are_kept_than_any_language_stacks(marks: str) -> None:
    few, many = normalise("a" + marks * 7), normalise("a" + marks * 5000)
    assert len(normalise(many)) <= 61
    assert normalise(many) == many
    assert normalise(few) == few
    assert found("hello", f"hello x{marks * 5000} there")


BOMBS = {
    "marks that sort": "a" + "\u0301\u0323\u0345\u05b0" * 25_000,
    "voiced marks that sort": "か" + "ﾞ\u0301" * 50_000,
    "sentences in one character": "\ufdfa" * 100_000,
    "dotted": "i" + "\u0307" * 100_000,
    "ignorable": "\u200b" * 100_000,
    "spaces": " " * 100_000,
    "gaps": "か " * 50_000,
    "jamo": "\u1100\u1160" * 50_000,
    "negated": "不" * 100_000,
    "either": "开不" * 50_000,
    "x": "x" * 100_000 + "y",
    "digits": "1 " * 50_000,
    "opening tags": "<context>" * 11_000,
    "brackets": "<" * 100_000,
    "megabytes of brackets": "<" * 5_000_000,
    "megabytes of tags": "</task><context x" * 300_000,
}
HOSTILE = [r"(x|xx)+$", r"([0-9]+\s*)*$", r"(a*)*b", r"(.*)(.*)(.*)(.*)z", r"(?:(?:か)*)*!"]


@pytest.mark.parametrize("name", BOMBS)
def test_no_text_takes_long_to_read(name: str) -> None:
    """B084."""
    text = BOMBS[name]
    table = RuleTable([route("r", "nowhere", patterns=HOSTILE, all_of=["neither"])])
    read: list[tuple[str, Callable[[], object]]] = [
        ("noise", lambda: without_noise(text)),
        ("normalise", lambda: normalise(both_ends(text))),
    ]
    short = normalise(both_ends(text))
    read += [
        ("rules", lambda: table.winner(table.scan(short), Facts(short))),
        ("patterns", lambda: [pattern.search(short) for _, pattern in table.rules[0].patterns]),
        ("language", lambda: language(short)),
        ("negation", lambda: negates(short)),
    ]
    for what, call in read:
        begun = time.process_time()
        call()
        # Tens of milliseconds on a quiet machine; what is quadratic takes ten seconds and more.
        assert time.process_time() - begun < 2, what


def test_explaining_a_text_of_marks_takes_no_longer_either() -> None:
    begun = time.process_time()
    assert Positions(BOMBS["marks that sort"]).exact
    assert time.process_time() - begun < 3


def test_a_message_of_thousands_of_parts_is_read_in_order() -> None:
    """B003."""
    parts = tuple(Text(f"part{number}") for number in range(20_000))
    begun = time.process_time()
    text, before = routing_texts([Message("user", (Text("first"),)), Message("assistant", ()), Message("user", parts)])
    assert (text.count("\n"), before) == (19_999, "first")
    assert text.startswith("part0\npart1\n")
    assert time.process_time() - begun < 2


def test_markup_of_megabytes_is_cleaned_at_its_ends_and_keeps_its_length() -> None:
    middle = "<p>x</p>" * 40_000
    text = f"<context>secret</context>where is my parcel {middle} thanks<system-reminder>no</system-reminder>"
    clean = without_noise(text)
    assert len(clean) == len(text)
    assert "secret" not in clean
    assert "reminder" not in clean
    assert clean.split()[:4] == ["where", "is", "my", "parcel"]
    assert clean.strip().endswith("thanks")
