from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.scanner import TextScanner


def came(text: Any, *, end: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": end, "x": 1}
    return json.dumps({"choices": [choice]}).encode()


def made(text: str) -> bytes:
    return json.dumps({"id": "a", "choices": [{"delta": {"content": text}}], "created": 5}).encode()


def scanner() -> TextScanner:
    found = TextScanner()
    found.learn(came("first"), made("first"))
    return found


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_text_is_read_and_put_into_the_known_form(text: str) -> None:
    found = scanner().scan(came(text))
    assert found is not None
    assert found[0] == text
    assert json.loads(found[1]) == json.loads(made(text))


OTHERS = {
    "nothing said": came(""),
    "null": came(None),
    "parts": came(["x"]),
    "an end": came("x", end="stop"),
    "another choice": came("x", index=1),
    "another value of the same length behind it": came("x").replace(b'"x": 1', b'"x": 2'),
    "two strings": came("x").replace(b'"x"}', b'"x","y":"z"}'),
    "cut": came("x")[:-5],
    "half a character": came("x").replace(b'"x"}', b'"\\ud83d"}'),
    "shorter than the form": came("x")[:20],
}


@pytest.mark.parametrize("other", OTHERS)
def test_anything_else_is_left_to_the_decoder(other: str) -> None:
    assert scanner().scan(OTHERS[other]) is None


def test_form_with_the_name_twice_is_not_learned() -> None:
    found = TextScanner()
    found.learn(came("x").replace(b'"x": 1', b'"content":"y"'), made("x"))
    assert found.scan(came("x")) is None
