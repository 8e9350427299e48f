"""Whatever a text holds and however it is cut: masked and unmasked it is what it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import decode_message
from gateway.security.masking.detector import Detector
from gateway.security.masking.masking import Masking
from gateway.security.masking.messages import Conversation
from gateway.security.masking.placeholders import LONGEST, PLACEHOLDER, Mint
from gateway.security.masking.unmasking import Unmasker, unmask

KINDS = ("phone", "id_number", "bank_card", "iban", "email")
DETECTOR = Detector(KINDS, {"badge": r'B"[0-9]+'})
FORGED = Mint(b"another owner's").placeholder("13812345678", "phone")

PIECES = st.one_of(
    st.sampled_from(
        [
            "13812345678",
            "138-1234-5678",
            "sam@example.org",
            "4111 1111 1111 1111",
            "+49 30 123456",
            "11010519491231002X",
            'B"77',
            FORGED,
            "[[",
            "[",
            "]]",
            "[[phone:",
            FORGED[:-1],
            "call ",
            "电话",
            "\\",
            '"',
            "\u200b",
            "\U0001f469",
            "\ud800",
        ]
    ),
    st.text(max_size=8),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def masking() -> Masking:
    return Masking(DETECTOR, Mint(b"mine"))


def masked(private: Masking, text: str) -> str:
    private.learn(text)
    return private.masked(text)


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(TEXTS, st.lists(st.integers(0, 9), max_size=40))
@settings(max_examples=400, deadline=None)
def test_masked_and_unmasked_a_text_is_what_it_was_however_it_is_cut(text: str, sizes: list[int]) -> None:
    private = masking()
    hidden = masked(private, text)
    assert private.unmasked(hidden) == text
    reader = Unmasker(private.values)
    out = ""
    for piece in cut(hidden, sizes):
        out += reader.feed(piece)
        assert len(reader.held) <= LONGEST
        assert reader.held == "" or reader.held.startswith("[")
    assert out + reader.end() == text


@given(TEXTS, st.lists(st.integers(0, 9), max_size=40))
@settings(max_examples=200, deadline=None)
def test_the_same_holds_for_arguments_in_json(text: str, sizes: list[int]) -> None:
    text = text.replace("\ud800", "")
    private = masking()
    arguments = json.dumps({"to": masked(private, text)})
    reader = Unmasker(private.values, in_json=True)
    out = "".join([*map(reader.feed, cut(arguments, sizes)), reader.end()])
    assert json.loads(out) == {"to": text}
    by_number = arguments.replace("[", "\\u005b").replace("]", "\\u005D")
    if PLACEHOLDER.search(arguments) and FORGED not in arguments:
        assert json.loads(unmask(by_number, private.values, in_json=True)) == {"to": text}


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_nothing_private_is_left_in_a_masked_text(text: str) -> None:
    private = masking()
    hidden = masked(private, text)
    for value in private.values.values():
        if len(value) >= 8:
            assert value not in PLACEHOLDER.sub("", hidden)
    # What is left is no value either.
    left = [hidden[one.start : one.end] for one in DETECTOR.find(hidden)]
    assert [value for value in left if not PLACEHOLDER.search(value)] == []


def test_a_placeholder_of_another_owners_stays_what_it_is() -> None:
    private = masking()
    hidden = masked(private, f"tell me what {FORGED} is, and 13812345678")
    assert FORGED not in hidden
    assert private.unmasked(hidden) == f"tell me what {FORGED} is, and 13812345678"
    # And one that a model makes up is nobody's.
    assert private.unmasked(FORGED) == FORGED


def test_the_same_value_has_one_placeholder_and_an_owner_of_ones_own() -> None:
    first, second = masked(masking(), "13812345678"), masked(masking(), "call 13812345678").removeprefix("call ")
    assert first == second
    assert PLACEHOLDER.fullmatch(first)
    assert len(first) <= LONGEST
    other = Masking(DETECTOR, Mint(b"other"))
    assert masked(other, "13812345678") != first


def test_what_was_found_once_is_replaced_wherever_it_stands() -> None:
    conversation = Conversation(masking())
    messages = tuple(
        decode_message(json.dumps(message).encode())
        for message in (
            {"role": "user", "content": "order number 13812345678, please"},
            {"role": "user", "content": "call 13812345678"},
            {"role": "user", "content": "x13812345678y and 913812345678"},
        )
    )
    assert conversation.learn(messages, {})
    assert "13812345678" not in wires(conversation.masked(messages))


def wires(messages: Sequence[Message]) -> str:
    return "".join((message.wire or b"").decode() for message in messages)


def test_messages_without_anything_private_are_the_same_objects() -> None:
    conversation = Conversation(masking())
    messages = (decode_message(b'{"role":"user","content":"hello 2026"}'),)
    plain = Conversation(Masking(Detector(KINDS, {}), Mint(b"x")))
    assert not plain.learn(messages, {})
    assert conversation.masked(messages)[0] is messages[0]


def test_two_values_that_get_the_same_letters_are_told_apart() -> None:
    class Same(Mint):
        def placeholder(self, value: str, kind: str, attempt: int = 0) -> str:
            return f"[[phone:bcdfghjklm{'np'[attempt]}]]"

    private = Masking(DETECTOR, Same(b"k"))
    hidden = masked(private, "13812345678 and 13912345678")
    assert private.unmasked(hidden) == "13812345678 and 13912345678"


def test_short_values_of_declared_fields_are_not_looked_for_within_words() -> None:
    private: Any = masking()
    private.know("Ann", "name")
    assert private.unmasked(private.masked("Ann saw Anna")) == "Ann saw Anna"
    assert "Anna" in private.masked("Ann saw Anna")


def test_a_placeholder_is_recognised_however_a_model_copies_it() -> None:
    private = masking()
    hidden = masked(private, "13812345678")
    inner = hidden.strip("[]")
    for said, meant in (
        (hidden.upper(), "13812345678"),
        (hidden.title(), "13812345678"),
        (f"[{inner}](tel)", "13812345678(tel)"),
        (f"[{hidden}]", "[13812345678]"),
        (f"[{inner}", f"[{inner}"),
        (FORGED.upper(), FORGED.upper()),
    ):
        assert unmask(said, private.values) == meant
        reader = Unmasker(private.values)
        assert "".join([*map(reader.feed, said), reader.end()]) == meant
    # What a client writes like that is nobody's placeholder, and comes back as it was written.
    own = f"{hidden.upper()} [{inner}] [{hidden}] 13812345678"
    assert unmask(masked(private, own), private.values) == own


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_values_are_written_as_they_stand_in_json_within_json(size: int) -> None:
    hidden = "[[badge:bcdfghjklmn]]"
    value = 'B"7\n\\7'
    said = {
        "once": hidden,
        "quoted": f'he said "hi" [to] {hidden}',
        "in": json.dumps({"a": hidden, "b": json.dumps([{"c": f"x {hidden}"}])}),
        "again": hidden,
    }
    arguments = json.dumps(said)
    reader = Unmasker({hidden: value}, in_json=True)
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    out = "".join([*map(reader.feed, pieces), reader.end()])
    assert out == unmask(arguments, {hidden: value}, in_json=True)
    made = json.loads(out)
    assert made["once"] == made["again"] == value
    assert made["quoted"] == f'he said "hi" [to] {value}'
    assert json.loads(made["in"])["a"] == value
    assert json.loads(json.loads(made["in"])["b"]) == [{"c": f"x {value}"}]
