from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import json
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tools.result import Unencodable, failure, success, to_json_value

TEXT = st.text(max_size=40) | st.text(alphabet='😀👩\u200d💻é\\"\n\ud800中', max_size=60)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=20), inner, max_size=8),
    max_leaves=40,
)


@given(VALUES, st.integers(256, 1024))
@settings(max_examples=100, deadline=None)
def test_content_is_valid_json_within_the_limit_whatever_the_result(value: Any, limit: int) -> None:
    shown = success(to_json_value(value), limit)
    content, whole = shown.content, shown.whole
    assert len(content.encode()) <= limit
    read = json.loads(content)
    assert read["ok"] is True
    assert ("left_out" in read) == (whole is not None)
    if whole is None and isinstance(value, list):
        assert len(read["result"]) == len(value)


@given(TEXT, st.integers(256, 300))
def test_an_error_is_valid_json_within_the_limit(text: str, limit: int) -> None:
    content = failure(text * 10, limit)
    assert len(content.encode()) <= limit
    assert json.loads(content)["error"]


def test_b042_a_large_result_keeps_its_shape_and_says_what_is_missing() -> None:
    result = {"total": 500, "items": [{"id": number, "note": "😀 note " * 40} for number in range(500)]}
    shown = success(result, 8192)
    content, whole = shown.content, shown.whole
    read = json.loads(content)
    assert 4096 < len(content.encode()) <= 8192
    assert read["result"]["total"] == 500
    kept = read["result"]["items"]
    assert kept == result["items"][: len(kept)]  # type: ignore[index]
    assert kept
    assert read["left_out"] == {"items": f"{500 - len(kept)} of 500 items"}
    assert whole is not None
    assert json.loads(whole)["result"] == result


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: {"page": text, "status": 200}])
def test_b042_a_long_text_is_cut_between_characters_and_says_so(wrap: Any) -> None:
    text = "数据😀" * 30_000
    read = json.loads(success(wrap(text), 8192).content)
    short = read["result"] if isinstance(read["result"], str) else read["result"]["page"]
    assert short.endswith("…")
    assert text.startswith(short[:-1])
    (place,) = read["left_out"].values()
    assert place == f"{len(text) - len(short) + 1} of {len(text)} characters"


def test_a_joined_emoji_is_not_cut_in_two() -> None:
    text = "👩\u200d💻" * 500
    for limit in range(300, 330):
        short = json.loads(success(text, limit).content)["result"][:-1]
        assert len(short) % 3 == 0


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    day: dt.date


@dataclasses.dataclass
class Data:
    price: decimal.Decimal


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Colour.RED, "red"),
        (Point(1), {"x": 1}),
        ([Point(2)], [{"x": 2}]),
        (Model(day=dt.date(2024, 3, 18)), {"day": "2024-03-18"}),
        (Data(decimal.Decimal("1.10")), {"price": "1.10"}),
        ((1, 2), [1, 2]),
        ({"n": float("nan"), "i": [float("-inf")]}, {"n": "NaN", "i": ["-Infinity"]}),
        (b"text", "text"),
        ("\ud83d\ude00 \ud800", "😀 \ufffd"),
        (10**30, 10**30),
        ([10**5000], ["a whole number of 16610 bits"]),
        (None, None),
        ("", ""),
        ({1: 2}, {"1": 2}),
    ],
)
def test_values_with_a_json_form_take_it(value: Any, expected: Any) -> None:
    assert json.loads(success(to_json_value(value), 8192).content)["result"] == expected


def test_values_without_a_json_form_are_a_clear_error() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    # A generator may never end, and would hold up everybody.
    endless = itertools.count()
    for value in (object(), b"\xff", circle, deep, {"f": len}, (item for item in endless), {"a": [map(str, endless)]}):
        with pytest.raises(Unencodable, match="the tool returned"):
            to_json_value(value)


@pytest.mark.parametrize("large", [{}, {"log": "x" * 50_000}], ids=["many", "many and a large one"])
def test_of_many_small_members_the_first_stay_and_the_rest_can_be_read_on(large: dict[str, str]) -> None:
    value = {**large, **{f"SKU-{number:04}": {"price": number, "stock": "in Oslo"} for number in range(2000)}}
    read = json.loads(success(value, 8192, lambda _: "res_1").content)
    assert len(json.dumps(read["result"])) > 4096
    names = [name for name in value if name in read["result"]]
    if not large:
        assert read["result"] == {name: value[name] for name in list(value)[: len(names)]}
        assert read["left_out"] == {"result": f"{len(value) - len(names)} of {len(value)} fields"}
        assert read["read_on"] == {"handle": "res_1", "path": "result", "offset": len(names)}


def test_a_large_member_takes_nothing_from_small_ones() -> None:
    value = {"log": "x" * 50_000, **{f"k{number}": number for number in range(300)}}
    read = json.loads(success(value, 4096).content)["result"]
    assert {name: item for name, item in read.items() if name != "log"} == {f"k{n}": n for n in range(300)}
    assert read["log"].endswith("x…")
