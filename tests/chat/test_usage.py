from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.usage import Usage, WireUsage

counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, st.booleans(), counts, counts, counts, counts, counts)


def read(wire: str) -> Usage:
    return msgspec.json.decode(wire, type=WireUsage).usage()


def test_counts_are_read_from_whatever_upstreams_send() -> None:
    assert read("{}") == Usage()
    assert read('{"prompt_tokens":null,"completion_tokens":3.0}') == Usage(0, 3)
    assert read('{"prompt_tokens":-4,"prompt_tokens_details":null}') == Usage()
    details = '{"prompt_tokens":9,"completion_tokens":8,"total_tokens":99,"prompt_tokens_details":{"cached_tokens":5},'
    assert read(details + '"completion_tokens_details":{"reasoning_tokens":2}}') == Usage(9, 8, 5, 2)


def test_details_nobody_acts_upon_are_summed_and_shown_all_the_same() -> None:
    said = {
        "prompt_tokens": 9,
        "completion_tokens": 8,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 2, "cache_write_tokens": 3},
        "completion_tokens_details": {
            "reasoning_tokens": 1,
            "audio_tokens": 2,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 4,
        },
    }
    usage = read(msgspec.json.encode(said).decode())
    assert usage.as_openai() == said
    doubled = (usage + usage).as_openai()
    assert doubled["prompt_tokens_details"] == {"cached_tokens": 2, "audio_tokens": 4, "cache_write_tokens": 6}
    assert doubled["completion_tokens_details"]["rejected_prediction_tokens"] == 8


def test_rounds_add_up_field_by_field_B078() -> None:
    rounds = [Usage(100, 10, 50, 1), Usage(200, 20, 60, 2), Usage(300, 30, 70, 3)]
    total = rounds[0] + rounds[1] + rounds[2]
    assert total == Usage(600, 60, 180, 6)
    shown = total.as_openai()
    assert (shown["prompt_tokens"], shown["completion_tokens"], shown["total_tokens"]) == (600, 60, 660)
    assert shown["prompt_tokens_details"]["cached_tokens"] == 180
    assert shown["completion_tokens_details"]["reasoning_tokens"] == 6


@given(usages, usages, usages)
def test_order_of_rounds_does_not_matter(a: Usage, b: Usage, c: Usage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert (a + b).estimated is (a.estimated or b.estimated)


def test_counts_that_no_database_could_hold_are_cut() -> None:
    for told in ("1e300", "1e19", "99999999999999999999999"):
        usage = read(f'{{"prompt_tokens":{told}}}')
        assert 0 < (usage + usage).total_tokens < 2**63


def test_what_counts_nothing_is_no_count() -> None:
    for wire in ("{}", '{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}', '{"input_tokens":null}'):
        assert msgspec.json.decode(wire, type=WireUsage).blank
    assert not msgspec.json.decode('{"completion_tokens":1}', type=WireUsage).blank


def test_counts_beside_details_are_read_one_by_one_where_one_is_odd() -> None:
    odd = '{"prompt_tokens":9,"completion_tokens":8.0,"cached_tokens":4,"completion_tokens_details":{"audio_tokens":-2,'
    assert read(odd + '"reasoning_tokens":null,"accepted_prediction_tokens":3}}') == Usage(
        9, 8, 4, accepted_prediction_tokens=3
    )
    assert read('{"prompt_tokens":1,"completion_tokens":99999999999999999}').completion_tokens == 2**40
    assert read('{"prompt_tokens":-1,"completion_tokens":2}') == Usage(0, 2)
