"""Requirements and tests are tied both ways: see `tests/requirements.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.requirements import REQUIREMENTS, Requirement

TESTS = Path(__file__).resolve().parent
KNOWN = {requirement.id: requirement for requirement in REQUIREMENTS}
# A number in a test's name or docstring, or an id in its docstring.
_IN_NAME = re.compile(r"(?:_|^)[Bb](\d{3})(?=_|$)")
_IN_DOCSTRING = re.compile(r"\b(?:B\d{3}|R(?:-[a-z0-9]+)+)\b")
_FORMS = re.compile(r"B\d{3}|R(-[a-z0-9]+)+")


@cache
def found_tests() -> dict[str, frozenset[str]]:
    """Every test that runs, `file::name` from `tests/` on, and the requirements it names itself."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "node_modules" not in path.parts:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in _functions(tree.body):
                found[f"{path.relative_to(TESTS).as_posix()}::{node.name}"] = frozenset(_named_by(node))
    return found


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            marks = [ast.unparse(mark).split("(")[0] for mark in node.decorator_list]
            # One that is always skipped holds nothing.
            if not any(mark.endswith("mark.skip") for mark in marks):
                yield node


def _named_by(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield from (f"B{number}" for number in _IN_NAME.findall(node.name))
    yield from _IN_DOCSTRING.findall(ast.get_docstring(node) or "")


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.id)
def test_every_requirement_has_a_test(requirement: Requirement) -> None:
    missing = [test for test in requirement.tests if test not in found_tests()]
    assert missing == [], "these tests are not there, or are always skipped"
    naming = [test for test, named in found_tests().items() if requirement.id in named]
    assert naming or requirement.tests, f"no test holds: {requirement.sentence}"


def test_no_test_names_a_requirement_that_is_not_there() -> None:
    assert {test: unknown for test, named in found_tests().items() if (unknown := named - KNOWN.keys())} == {}


def test_requirements_are_told_apart_and_say_where_they_come_from() -> None:
    assert len(KNOWN) == len(REQUIREMENTS)
    assert len({requirement.sentence for requirement in REQUIREMENTS}) == len(REQUIREMENTS)
    sources = {requirement.source for requirement in REQUIREMENTS}
    assert {re.sub(r" \d$", "", source) for source in sources} == {
        "OpenAI API",
        "blueprint invariant",
        "contract",
        "field case",
    }
    assert sources >= {f"blueprint invariant {number}" for number in range(1, 10)}
    assert all(_FORMS.fullmatch(requirement.id) for requirement in REQUIREMENTS)


def test_tests_that_are_named_are_collected(request: pytest.FixtureRequest) -> None:
    """What pytest has collected in this run, of the files it was asked for."""
    options = request.config.option
    if (
        options.keyword
        or options.markexpr
        or getattr(options, "lf", False)
        or any("::" in argument for argument in request.config.args)
    ):
        pytest.skip("a part of the suite was asked for")
    collected: dict[str, set[str]] = {}
    for item in request.session.items:
        if item.path.is_relative_to(TESTS):
            name = item.nodeid.split("[")[0].split("::")[-1]
            collected.setdefault(item.path.relative_to(TESTS).as_posix(), set()).add(name)
    named = [test.split("::") for requirement in REQUIREMENTS for test in requirement.tests]
    assert [f"{file}::{name}" for file, name in named if name not in collected.get(file, {name})] == []
