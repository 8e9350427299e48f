"""Variables in the files: where values come from, and that they stay values."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.document import read_document
from gateway.config.variables import UnknownVariable, Variables
from gateway.errors import Problem


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${A}", "one"),
        ("x ${A} y ${A}", "x one y one"),
        ("${B:-two}", "two"),
        ("${B:-}", ""),
        ("${EMPTY:-two}", "two"),
        ("${A:-two}", "one"),
        ("$A $ {A} 5$", "$A $ {A} 5$"),
        ("$${A}", "${A}"),
        ("${B:-http://host:80/a?b=c}", "http://host:80/a?b=c"),
    ],
)
def test_a_variable_becomes_its_value(text: str, expanded: str) -> None:
    assert Variables({"A": "one", "EMPTY": ""}).expand(text) == expanded


def test_a_value_is_not_expanded_again() -> None:
    assert Variables({"A": "${B}", "B": "two"}).expand("${A}") == "${B}"


@pytest.mark.parametrize("text", ["${B}", "${EMPTY}"])
def test_an_unset_name_without_default_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(UnknownVariable, match=text[2:-1]):
        Variables({"EMPTY": ""}).expand(text)


@pytest.mark.parametrize("text", ["${", "${}", "${1}", "${A", "${A-b}", "${A B}", "${A:-${B}}"])
def test_what_is_no_variable_is_an_error_and_never_sent_as_it_stands(text: str) -> None:
    with pytest.raises(UnknownVariable, match="write"):
        Variables({"A": "one", "B": "two"}).expand(text)


def test_a_file_may_hold_the_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    assert Variables({"KEY_FILE": str(tmp_path / "secret")}).expand("${KEY}") == "s3cret"


def test_the_value_itself_wins_over_its_file(tmp_path: Path) -> None:
    assert Variables({"KEY": "here", "KEY_FILE": str(tmp_path / "none")}).expand("${KEY}") == "here"


def test_a_file_that_is_not_there_is_an_error_even_with_a_default(tmp_path: Path) -> None:
    with pytest.raises(UnknownVariable, match="KEY_FILE"):
        Variables({"KEY_FILE": str(tmp_path / "none")}).expand("${KEY:-default}")


def test_an_empty_file_counts_as_unset(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(UnknownVariable, match="KEY is not set"):
        Variables({"KEY_FILE": str(tmp_path / "secret")}).expand("${KEY}")


def _value(text: str, **variables: str) -> object:
    problems: list[Problem] = []
    document = read_document("x.yaml", text.encode(), Variables(variables), problems)
    assert problems == []
    assert document is not None
    return document.value["a"]


def test_a_plain_word_is_typed_after_it_was_expanded() -> None:
    assert _value("a: ${PORT:-8080}") == 8080
    assert _value('a: "${PORT:-8080}"') == "8080"


def test_a_value_never_becomes_structure() -> None:
    assert _value("a: ${X}", X="1\nb: 2") == "1\nb: 2"
    assert _value("a: ${X}", X="{b: 2}") == "{b: 2}"


def test_an_empty_value_is_the_empty_text_and_not_null() -> None:
    assert _value("a: ${X:-}") == ""
