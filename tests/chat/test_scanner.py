from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.chunk import Delta, decode_chunk
from gateway.chat.scanner import RunScanner, TextScanner


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


def streamed(text: str, **beside: Any) -> bytes:
    """A chunk as servers write it, that says this."""
    choice = {"index": 0, "delta": {"content": text, **beside}, "finish_reason": None}
    return json.dumps({"id": "a", "created": 5, "model": "m", "choices": [choice]}, ensure_ascii=False).encode()


def runs() -> RunScanner:
    found = RunScanner()
    found.learn(decode_chunk(streamed("first")))
    assert found.settled
    return found


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_run_of_texts_is_read_as_one_and_keeps_every_byte(said: list[str]) -> None:
    payloads = [b"{}", *map(streamed, said), came("x")]
    found = runs().scan(payloads, 1)
    assert found is not None
    chunk, end = found
    assert end == len(said) + 1
    assert chunk.choices[0].delta == Delta(content="".join(said))
    assert chunk.payloads == payloads[1:end]
    assert [one.data for one in chunk.singles] == payloads[1:end]
    assert (chunk.fields.id, chunk.fields.model, chunk.fields.created) == ("a", "m", 5)


NO_RUNS = {
    "one of another form first": [streamed("a", role="assistant"), streamed("b")],
    "one of another form between": [streamed("a"), streamed("b", refusal="no"), streamed("c")],
    "one alone with a line break": [streamed("b").replace(b'"b"', b'"b"\n')],
    "a line break in one": [streamed("a"), streamed("b").replace(b'"b"', b'"b"\n')],
    "no string in one": [streamed("a"), streamed("b").replace(b'"b"', b"null")],
    "two strings in one": [streamed("a"), streamed("b").replace(b'"b"', b'"b","c"')],
    "half a character": [streamed("a"), streamed("b").replace(b'"b"', b'"\\ud83d"')],
    "shorter than the form": [streamed("a"), streamed("")[:30] + streamed("")[-20:], streamed("c")],
}


@pytest.mark.parametrize("other", NO_RUNS)
def test_what_is_no_run_is_left_to_the_decoder(other: str) -> None:
    assert runs().scan(NO_RUNS[other], 0) is None


def test_empty_text_ends_a_run_where_it_has_to_be_left_out() -> None:
    payloads = [streamed("a"), streamed(""), streamed("b")]
    assert runs().scan(payloads, 0) is not None
    assert runs().scan(payloads, 0, blank=False) is None
    assert runs().scan([streamed("")], 0, blank=False) is None


@pytest.mark.parametrize("beside", [{"role": "assistant"}, {"tool_calls": []}, {"reasoning": "x"}])
def test_form_is_not_learned_from_what_says_more_than_text(beside: dict[str, Any]) -> None:
    found = RunScanner()
    found.learn(decode_chunk(streamed("x", **beside)))
    assert not found.settled
