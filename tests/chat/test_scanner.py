from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.chunk import Delta, decode_chunk
from gateway.chat.scanner import RunScanner
from gateway.chat.sse import SseParser


def came(text: Any, *, end: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": end, "x": 1}
    return json.dumps({"choices": [choice]}).encode()


def made(text: str) -> bytes:
    return json.dumps({"id": "a", "choices": [{"delta": {"content": text}}], "created": 5}).encode()


def scanner() -> RunScanner:
    found = RunScanner(blank=False)
    found.learn_as(came("first"), decode_chunk(made("first")))
    return found


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_text_is_read_and_put_into_the_known_form(text: str) -> None:
    found = scanner().scan([came(text)], 0)
    assert found is not None
    chunk, end = found
    assert (end, chunk.choices[0].delta) == (1, Delta(content=text))
    assert json.loads(chunk.data) == json.loads(made(text))
    assert [json.loads(each) for each in chunk.payloads] == [json.loads(made(text))]


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
    assert scanner().scan([OTHERS[other]], 0) is None


def test_form_with_the_name_twice_is_not_learned() -> None:
    found = RunScanner()
    found.learn_as(came("x").replace(b'"x": 1', b'"content":"y"'), decode_chunk(made("x")))
    assert found.scan([came("x")], 0) is None


def streamed(text: str, **beside: Any) -> bytes:
    """A chunk as servers write it, that says this."""
    choice = {"index": 0, "delta": {"content": text, **beside}, "finish_reason": None}
    return json.dumps({"id": "a", "created": 5, "model": "m", "choices": [choice]}, ensure_ascii=False).encode()


def runs(*, blank: bool = True) -> RunScanner:
    found = RunScanner(blank=blank)
    assert found.learn(decode_chunk(streamed("first")))
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
    # Together they are two texts: `a",` and `b`.
    "two halves of texts": [streamed("").replace(b'""', b'"a\\"'), streamed("").replace(b'""', b'",","b"')],
}


@pytest.mark.parametrize("other", NO_RUNS)
def test_what_is_no_run_is_left_to_the_decoder(other: str) -> None:
    payloads = NO_RUNS[other]
    found = runs().scan(payloads, 0)
    whole = [] if found is None else payloads[: found[1]]
    assert whole == ([] if found is None else found[0].payloads)
    assert {*whole} <= {streamed("a"), streamed("b")}


def test_empty_text_ends_a_run_where_it_has_to_be_left_out() -> None:
    payloads = [streamed("a"), streamed(""), streamed("b")]
    found, left_out = runs().scan(payloads, 0), runs(blank=False).scan(payloads, 0)
    assert found is not None
    assert found[1] == 3
    assert left_out is not None
    assert (left_out[0].payloads, left_out[1]) == (payloads[:1], 1)
    assert runs(blank=False).scan([streamed("")], 0) is None


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("between", [streamed(""), streamed("b").replace(b'"index": 0', b'"index": 1')])
def test_looking_at_many_with_others_between_takes_no_longer_for_each(between: bytes, every: int) -> None:
    payloads = [streamed(f"word {at} ") for at in range(40_000)]
    payloads[20_001:-1:every] = [between] * len(payloads[20_001:-1:every])
    scanner = runs(blank=False)
    began, at, read = time.process_time(), 0, 0
    while at < len(payloads):
        found = scanner.scan(payloads, at)
        at, read = (at + 1, read) if found is None else (found[1], read + found[1] - at)
    assert read == sum(payload is not between for payload in payloads)
    # Half a minute, where each look goes through all that follow.
    assert time.process_time() - began < 4


def test_long_run_is_read_in_ever_larger_pieces_and_keeps_every_byte() -> None:
    payloads = [streamed(f"word {at} ") for at in range(2000)]
    scanner, at, found = runs(), 0, []
    while at < len(payloads):
        run = scanner.scan(payloads, at)
        assert run is not None
        found.append(run[0])
        at = run[1]
    assert [payload for chunk in found for payload in chunk.payloads] == payloads
    assert [len(chunk.payloads) for chunk in found] == [128, 256, 512, 1024, 80]


@pytest.mark.parametrize("beside", [{"role": "assistant"}, {"tool_calls": []}, {"reasoning": "x"}])
def test_form_is_not_learned_from_what_says_more_than_text(beside: dict[str, Any]) -> None:
    found = RunScanner()
    assert not found.learn(decode_chunk(streamed("x", **beside)))


def padded(text: str, padding: str) -> bytes:
    """A chunk as OpenAI pads them."""
    return streamed(text).replace(b'"choices"', b'"x": 1, "choices"')[:-1] + f', "obfuscation": "{padding}"}}'.encode()


def padded_runs() -> RunScanner:
    found = RunScanner()
    found.learn(decode_chunk(padded("first", "aB3")))
    return found


@given(st.lists(st.tuples(st.text(), st.text("aZ09", max_size=16)), min_size=1, max_size=20))
def test_run_of_padded_texts_keeps_every_byte(said: list[tuple[str, str]]) -> None:
    payloads = [padded(text, padding) for text, padding in said]
    found = padded_runs().scan(payloads, 0)
    assert found is not None
    chunk, end = found
    assert end == len(said)
    assert chunk.choices[0].delta == decode_chunk(chunk.data).choices[0].delta == Delta(content="".join(texts_of(said)))
    assert chunk.payloads == payloads
    run = padded_runs().read(events(*payloads))
    assert run is not None
    assert run.text == "".join(texts_of(said))


def texts_of(said: list[tuple[str, str]]) -> list[str]:
    return [text for text, _ in said]


NO_PADDING = {
    "none": streamed("a"),
    "null": padded("a", "").replace(b'"obfuscation": ""', b'"obfuscation": null'),
    "other characters": padded("a", "a-b"),
    "a quotation mark": padded("a", '\\"'),
    "another field behind it": padded("a", 'x", "y": "z'),
    "another name": padded("a", "x").replace(b"obfuscation", b"obfuscatiom"),
    "an end": padded("a", "x").replace(b"null", b'"stop"'),
    "half a text": padded("", "x").replace(b'""', b'"a\\"'),
    "two texts": padded("", "x").replace(b'""', b'"a","b"'),
    "a text that holds what stands behind it": padded("", "x").replace(
        b'""', b'"' + padded("", "x")[padded("", "x").index(b'"}') :].replace(b'"', b'\\"') + b'"'
    ),
}


@pytest.mark.parametrize("other", NO_PADDING)
def test_what_is_padded_otherwise_is_left_to_the_decoder(other: str) -> None:
    payloads = [padded("a", "x"), NO_PADDING[other], padded("b", "y")]
    assert padded_runs().read(events(*payloads)) is None or other.startswith("a text")
    found = padded_runs().scan(payloads, 0)
    assert found is not None
    assert found[0].run is not None
    assert found[0].payloads == payloads[: found[1]]
    assert [one.data for one in found[0].singles] == payloads[: found[1]]
    assert (
        "".join(str(one.choices[0].delta and one.choices[0].delta.content) for one in found[0].singles)
        == found[0].run.text
    )


def events(*payloads: bytes) -> bytes:
    return b"".join(b"data: %b\n\n" % payload for payload in payloads)


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_events_are_read_without_looking_for_each(said: list[str]) -> None:
    payloads = [*map(streamed, said)]
    found = runs().read(events(*payloads))
    assert found is not None
    assert found.text == "".join(said)
    form = found.form
    assert [form.before + spelled + form.after for spelled in found.spelled] == payloads


NO_EVENTS = {
    **{name: events(*payloads) for name, payloads in NO_RUNS.items()},
    "nothing": b"",
    "no event": streamed("a"),
    "half an event": events(streamed("a"))[:-1],
    "the second half": events(streamed("a"))[1:],
    "a comment first": b": x\n\n" + events(streamed("a")),
    "a comment between": events(streamed("a")) + b": x\n\n" + events(streamed("b")),
    "a comment behind": events(streamed("a")) + b": x\n\n",
    "an event in two lines": events(streamed("a").replace(b", ", b",\ndata: ", 1)),
    "an event of another kind": b"event: error\n" + events(streamed("a")),
    "an end": events(streamed("a")) + b"data: [DONE]\n\n",
    "an end between": events(streamed("a"), b"[DONE]", streamed("b")),
    "a line break in a text": events(streamed("a")).replace(b'"a"', b'"a\n"'),
    "a line break beside a text": events(streamed("a")).replace(b'"a"', b'\r"a"'),
}


@pytest.mark.parametrize("other", NO_EVENTS)
def test_bytes_that_are_more_or_less_than_events_of_the_form_are_none(other: str) -> None:
    assert runs().read(NO_EVENTS[other]) is None


@given(
    st.lists(st.sampled_from([*(streamed(each) for each in ("a", "", "\u00e9", '"', "\\")), b"[DONE]", b"{}"])),
    st.data(),
)
def test_wherever_bytes_were_cut_what_is_read_is_what_a_parser_reads(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = events(*payloads)
    begin = data.draw(st.integers(0, len(whole)))
    piece = whole[begin : data.draw(st.integers(begin, len(whole)))]
    found = runs().read(piece)
    if found is not None:
        parser = SseParser()
        form = found.form
        assert parser.feed(piece) == [form.before + spelled + form.after for spelled in found.spelled]
        assert parser.between
