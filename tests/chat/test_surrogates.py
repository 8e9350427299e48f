from __future__ import annotations

import json

import pytest

from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.surrogates import SurrogateJoiner
from gateway.errors import InvalidRequest


def payload(text: str, index: int = 0) -> bytes:
    return b'{"choices":[{"index":%d,"delta":{"content":"%s"}}]}' % (index, text.encode())


def contents(*texts: str) -> list[str]:
    joiner = SurrogateJoiner()
    return [json.loads(joiner.mend(payload(text)))["choices"][0]["delta"]["content"] for text in texts]


def test_halves_in_two_chunks_are_one_character_B074() -> None:
    assert contents("a\\ud83d", "\\ude00b") == ["a", "😀b"]


def test_half_is_held_over_chunks_of_its_own() -> None:
    assert contents("\\ud83d", "", "\\ude00") == ["", "", "😀"]


def test_whole_pairs_stay_and_lone_halves_are_replaced() -> None:
    assert contents("\\ud83d\\ude00", "x\\ude00", "\\ud83dy") == ["😀", "x\ufffd", "\ufffdy"]


def test_what_comes_out_is_utf_8() -> None:
    for text in ("\\ud83d", "\\ude00", "\\ud83d\\ud83d"):
        SurrogateJoiner().mend(payload(text)).decode()


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        SurrogateJoiner().mend(b'{"x":"\\ud83d",')


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        SurrogateJoiner().mend(b'{"x":"\\ud83d","y":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize(
    ("body", "half"),
    [
        (r'{"model":"m","messages":[{"role":"user","content":"hi\ud83d"}]}', r"\ud83d"),
        (r'{"model":"m","messages":[{"role":"user","content":"hi\ud83d there"}],"seed":1}', r"\ud83d"),
        (r'{"model":"m","messages":[{"role":"user","content":"\uDE00 hi"}]}', r"\uDE00"),
        (r'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00\ud83d"}]}', r"\ud83d"),
        (r'{"model":"m","messages":[{"role":"user","content":"hi"}],"metadata":{"a":"\ud83d"}}', r"\ud83d"),
        (r'{"model":"m","messages":[{"role":"user","content":"hi \ud83d\ude00', None),
        (r'{"model":"m","messages":[{"role":"user","content":"hi \ud83d', None),
        (r'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}],"seed":NaN}', None),
    ],
)
def test_half_a_character_in_a_request_is_told_as_such(body: str, half: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(body.encode())
    assert ("half of a character" in caught.value.message) is (half is not None)
    assert half is None or half in caught.value.message
