"""YAML 1.2 core: what words mean, what is refused and where."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.document import read_document
from gateway.config.variables import Variables
from gateway.config.yaml import MAX_NODES, plain_value
from gateway.errors import Problem


def read(text: str | bytes, **variables: str) -> tuple[Any, list[Problem]]:
    problems: list[Problem] = []
    content = text.encode() if isinstance(text, str) else text
    document = read_document("x.yaml", content, Variables(variables), problems)
    return (document.value if document else None), problems


def only(text: str | bytes, **variables: str) -> Problem:
    _, problems = read(text, **variables)
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("off", "off"),
        ("no", "no"),
        ("On", "On"),
        ("yes", "yes"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("2024-03-18", "2024-03-18"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("08", 8),
        ("-7", -7),
        ("+7", 7),
        ("0o17", 15),
        ("0xfF", 255),
        ("-0xff", "-0xff"),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5E-2", -0.005),
        (".", "."),
        ("-", "-"),
        ("1.2.3", "1.2.3"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("null", None),
        ("~", None),
        ("", None),
        ("9" * 400, "9" * 400),
        ("1e999", "1e999"),
        ("٣", "٣"),
        ("1\n", "1\n"),
    ],
)
def test_a_plain_word_means_what_the_core_schema_says(word: str, meaning: Any) -> None:
    found = plain_value(word)
    assert found == meaning
    assert type(found) is type(meaning)


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(plain_value(".nan"))


def test_quotes_and_blocks_make_text_of_anything() -> None:
    value, problems = read("a: '08'\nb: \"true\"\nc: |\n  12\nd: ! 5\ne: !!str 5\n")
    assert value == {"a": "08", "b": "true", "c": "12\n", "d": "5", "e": "5"}
    assert problems == []


def test_keys_are_the_text_they_were_written_as() -> None:
    assert read("on: 1\n08: 2\nnull: 3\n")[0] == {"on": 1, "08": 2, "null": 3}


def test_a_second_equal_key_is_refused_with_both_lines() -> None:
    found = only("model: a\ntools: []\nmodel: b\n")
    assert (found.line, found.message) == (3, "the key `model` stands here a second time; first on line 1")


def test_a_second_equal_key_deep_inside_is_refused_too() -> None:
    assert only("a:\n  - b: {c: 1, 'c': 2}\n").line == 2


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!ruby/object", "!!binary", "!<tag:x,2000:y>", "!!set"]
)
def test_no_tag_makes_an_object(tag: str) -> None:
    found = only(f"a: 1\nb: {tag} [x]\n")
    assert found.line == 2
    assert "is not allowed" in found.message


def test_a_tag_on_a_mapping_key_is_refused() -> None:
    assert "not allowed" in only("!!python/name:os.system a: 1\n").message


def test_merge_keys_are_refused_and_not_taken_for_a_key() -> None:
    found = only("a: &a {x: 1}\nb:\n  <<: *a\n")
    assert found.line == 3
    assert "merge keys" in found.message


def test_a_tab_in_the_indentation_is_named() -> None:
    found = only("a:\n\tb: 1\n")
    assert (found.line, "tab" in found.message) == (2, True)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: b: c\n", 1, "colon"),
        ("a: 1\nb\nc: 2\n", 2, "`:` is missing"),
        ("a: [1, 2\nb: 1\n", 2, "not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: *b\n", 1, "names no anchor"),
        ("a: &b [*b]\n", 1, "inside of what it names"),
        ("- a\n- b\n", 1, "a mapping is expected"),
        ("[a]: 1\n", 1, "a key must be one word"),
        ("just text", 1, "a mapping is expected"),
        ("", 0, "empty"),
        ("# nothing\n", 0, "empty"),
        ("---\n", 0, "empty"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, line: int, words: str) -> None:
    found = only(text)
    assert found.line == line
    assert words in found.message


def test_text_that_is_not_utf_8_is_named_with_its_line() -> None:
    found = only(b"a: 1\nb: \xff\xfe\n")
    assert (found.line, found.message) == (2, "the file is not UTF-8 text")


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert read(b"\xef\xbb\xbfa: 1\n")[0] == {"a": 1}


def test_aliases_are_served() -> None:
    assert read("a: &x [1, {b: 2}]\nc: *x\n")[0] == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}


def test_nested_aliases_are_refused_within_a_second_and_50_mb() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 11)]
    tracemalloc.start()
    started = time.process_time()
    found = only("\n".join(lines))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"more than {MAX_NODES} values" in found.message
    assert time.process_time() - started < 1
    assert peak < 50_000_000


def test_the_values_under_the_budget_are_built_within_50_mb() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 4)]
    tracemalloc.start()
    _, problems = read("\n".join(lines))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problems == []
    assert peak < 50_000_000


@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "{a: " * 500, "- " * 3000])
def test_deep_nesting_is_refused_and_not_a_crash(text: str) -> None:
    _, problems = read(text)
    assert len(problems) == 1


@given(st.text(max_size=200))
def test_no_text_is_a_crash(text: str) -> None:
    read(text.encode("utf-8", "surrogatepass"))


_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
_trees = st.dictionaries(
    st.text(max_size=10),
    st.recursive(
        _scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=10,
    ),
    min_size=1,
    max_size=5,
)


@given(_trees)
def test_json_reads_as_yaml_1_2_promises(tree: dict[str, Any]) -> None:
    text = json.dumps(tree, ensure_ascii=True).replace("\x7f", "\\u007f")
    if "<<" in text or "${" in text or "\\ud" in text:
        return
    value, problems = read(text)
    assert problems == []
    assert value == tree


@pytest.mark.parametrize("loader", [yaml.BaseLoader, yaml.CBaseLoader])
def test_both_parsers_give_the_same_tree(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.yaml._Loader", loader)
    value, problems = read("a: 08\nb: [on, 'x', {c: ~}]\nd: !!int 7\na: 3\n")
    assert value == {"a": 8, "b": ["on", "x", {"c": None}], "d": 7}
    assert [problem.line for problem in problems] == [4]
