from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.sse import EventTooLarge, SseParser
from tests.chat.strategies import cuttings
from tests.frames import DONE, FRAMINGS, Frame, Framing, d, f, u

FRAMES = [
    d({"role": "assistant"}),
    d({"content": "你好🌧️é\u2028x"}),
    d({"content": "data: \n\n\r"}),
    f("stop"),
    u(1, 2),
    DONE,
]
PLAIN = [Framing().event(frame)[6:-2] for frame in FRAMES]


def parse(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    return [payload for piece in pieces for payload in parser.feed(piece)] + parser.close()


def framed(framing: Framing, frames: list[Frame]) -> bytes:
    return b"".join(framing.event(frame, first=not index) for index, frame in enumerate(frames))


def joined(payloads: list[bytes], framing: Framing) -> list[bytes]:
    """With several data lines the payload is the same JSON, spaced in another way."""
    if not framing.multi_line:
        return payloads
    return [p if p == b"[DONE]" else json.dumps(json.loads(p), ensure_ascii=False).encode() for p in payloads]


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS.keys())
def test_every_framing_gives_the_same_payloads_whole_and_byte_by_byte_B073(framing: Framing) -> None:
    data = framed(framing, FRAMES)
    assert joined(parse(data), framing) == PLAIN
    assert joined(parse(*(data[i : i + 1] for i in range(len(data)))), framing) == PLAIN


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS.keys())
def test_last_event_needs_no_blank_line(framing: Framing) -> None:
    data = framed(framing, FRAMES)
    for _ in range(2):
        data = data.removesuffix(framing.newline)
        assert joined(parse(data), framing) == PLAIN


def test_comments_pings_and_other_fields_are_no_payloads_B072() -> None:
    noise = b": PROCESSING\n\n" * 3 + b"event: ping\ndata: {}\n\n" + b"id: 7\nretry: 1000\n\n" + b"\n\n\n"
    assert parse(noise + b'data: {"a":1}\n\n' + noise + b"data: [DONE]\n\n") == [b'{"a":1}', b"[DONE]"]


def test_several_data_lines_are_one_payload() -> None:
    assert parse(b'data: {"a":\ndata:1}\n\n') == [b'{"a":\n1}']


def test_line_feed_behind_a_carriage_return_of_the_last_read_belongs_to_it() -> None:
    assert parse(b"data: 1\r", b"\n\r", b"\ndata: 2\r\n", b"\r\n") == [b"1", b"2"]
    assert parse(b"data: 1\r", b"", b"\ndata: 2\r\n\r\n") == [b"1\n2"]
    assert parse(b"data: 1\r", b"\r", b"data: 2\r\r") == [b"1", b"2"]


def test_event_without_end_is_refused_when_it_grows_too_large() -> None:
    parser = SseParser(limit_bytes=100)
    assert parser.feed(b"data: " + b"x" * 90 + b"\n\n") == [b"x" * 90]
    for _ in range(10):
        assert parser.feed(b"x" * 10) == []
    with pytest.raises(EventTooLarge):
        parser.feed(b"x")


payloads = st.lists(
    st.binary(min_size=1, max_size=12).map(lambda raw: raw.translate(None, b"\r\n ") or b"x"), max_size=5
)


@given(st.data(), payloads, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans(), st.booleans())
def test_any_cutting_of_any_events_gives_the_same_payloads(
    data: st.DataObject, events: list[bytes], newline: bytes, space: bool, comments: bool
) -> None:
    field = b"data: " if space else b"data:"
    noise = b": x" + newline + newline if comments else b""
    stream = b"\xef\xbb\xbf" + b"".join(noise + field + event + newline + newline for event in events)
    assert parse(*data.draw(cuttings(stream))) == events
