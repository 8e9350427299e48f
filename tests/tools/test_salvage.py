from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tools.salvage import read_arguments, replayable
from gateway.tools.spec import InvalidArguments

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=12) | st.text(alphabet="{}[]\"':,\\ `a1/*#", max_size=12)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(TEXT, VALUES, min_size=1, max_size=4)


@st.composite
def encodings(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """An object, and one of the ways models write it."""
    value = draw(OBJECTS)
    plain = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 2])))
    forms = [plain, f"```json\n{plain}\n```", f"Here you are:\n{plain}\nDone.", repr(value), json.dumps(plain)]
    return value, draw(st.sampled_from(forms))


@given(OBJECTS, st.booleans(), st.data())
@settings(max_examples=100, deadline=None)
def test_an_object_cut_off_anywhere_is_never_executed(
    value: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    raw = text.encode()
    cut = raw[: data.draw(st.integers(1, len(raw) - 1))].decode("utf-8", "ignore")
    for form in (cut, f"```json\n{cut}", f"Calling: {cut}", json.dumps(text)[: len(cut)]):
        if form:
            with pytest.raises(InvalidArguments):
                read_arguments(form)


@given(st.lists(OBJECTS, min_size=1, max_size=3), st.data())
def test_a_list_of_objects_cut_off_anywhere_is_never_executed(values: list[Any], data: st.DataObject) -> None:
    text = json.dumps(values)
    with pytest.raises(InvalidArguments):
        read_arguments(text[: data.draw(st.integers(1, len(text)))])


@given(encodings())
@settings(max_examples=100, deadline=None)
def test_a_complete_object_is_read_however_it_was_wrapped(case: tuple[dict[str, Any], str]) -> None:
    value, text = case
    assert read_arguments(text)[0] == value


@given(st.text(max_size=60) | st.text(alphabet="{}[]\"':,\\`a1 truefalsn-.eE\n", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused_and_never_breaks(text: str) -> None:
    try:
        value, _ = read_arguments(text)
    except InvalidArguments:
        return
    json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("text", ["", "   ", "\n", "null", " null ", None, '""', '"null"'])
def test_b023_nothing_means_no_arguments(text: str | None) -> None:
    assert read_arguments(text)[0] == {}
    assert replayable(text) == "{}"


def test_b022_a_cut_list_is_an_error_and_a_complete_one_in_python_spelling_is_not() -> None:
    with pytest.raises(InvalidArguments, match="cut off"):
        read_arguments('{"commands":["make clean","make all"')
    assert read_arguments("{'commands': ['make all',],}") == ({"commands": ["make all"]}, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a: 1, $b: .5}", None),
        ("{a: 1, $b: 0.5}", {"a": 1, "$b": 0.5}),
        ("{'on': True, 'off': False, 'none': None}", {"on": True, "off": False, "none": None}),
        ("{\"a\": 'it\\'s', // why\n 'b': [1, 2,], /* so */ }", {"a": "it's", "b": [1, 2]}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ("{'e': '\\ud83d\\ude00'}", {"e": "😀"}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": NaN}', None),
        ('{"a": [1e999]}', None),
        ("{'a': Infinity}", None),
        ("{'a': 007}", None),
        ("{'a': undefined}", None),
        ('{"a": 1} {"a": 2}', None),
        ('{"a": 1}}', None),
        ('{"a": 1},', None),
        ('[{"a": 1}]', None),
        ('[{"a": 1}', None),
        ("[{'a': 1}", None),
        ("('act', {'a': 1}", None),
        ("\"{'a': 1}", None),
        ('{"a": "\\ud800"}', None),
        ("{'a': '\\ud800'}", None),
        ('{"a": "say "hi" now"}', None),
        ("5", None),
        ('"text"', None),
        ("call it", None),
        ("{" * 2000, None),
        ('{"a":' + "[" * 100_000, None),
        ('{"a":' + "9" * 5000 + "}", None),
    ],
)
def test_what_is_read_and_what_is_refused(text: str, expected: dict[str, Any] | None) -> None:
    if expected is None:
        with pytest.raises(InvalidArguments):
            read_arguments(text)
        assert json.loads(replayable(text)) == {}
    else:
        assert read_arguments(text)[0] == expected
        assert json.loads(replayable(text)) == expected


def test_arguments_that_are_json_already_are_replayed_letter_by_letter() -> None:
    text = '{ "a" : 1.50,  "b":"\\u00e9" }'
    assert replayable(text) == text
