"""`hermes-gateway check`: every problem and warning of config, routes and tools, as `file:line: message`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gateway.building import prove
from gateway.commands.files import paths_of, quiet_log, settings_of
from gateway.errors import ConfigError, Problem
from gateway.settings import ENVIRONMENT


def run(arguments: argparse.Namespace) -> int:
    """Check; 1 where there are problems, with `--strict` also where there are warnings."""
    found: Sequence[Problem]
    try:
        settings = settings_of()
        with _quiet():
            found = asyncio.run(prove(*paths_of(arguments, settings), settings, offline=arguments.offline))
    except ConfigError as error:
        found = error.problems
    problems = sorted(dict.fromkeys(found), key=lambda problem: (problem.file, problem.line))
    _print(problems, arguments.format)
    bad = [problem for problem in problems if problem.severity == "error" or arguments.strict]
    return 1 if bad else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """What is logged of an encoder or a tool server that is away is told here as a problem, once."""
    root = logging.getLogger()
    before = root.level
    quiet_log("nothing")
    try:
        yield
    finally:
        root.setLevel(before)


def _print(problems: Sequence[Problem], form: str) -> None:
    if form == "json":
        print(msgspec.json.encode([msgspec.to_builtins(problem) for problem in problems]).decode())
    elif form == "github":
        for problem in problems:
            print(_annotation(problem))
    else:
        for problem in problems:
            severity = "" if problem.severity == "error" else f"{problem.severity}: "
            print(f"{problem.file}:{problem.line}: {severity}{problem.message}", file=sys.stderr)
        print(_summary(problems))


def _annotation(problem: Problem) -> str:
    """One line of a GitHub workflow: https://docs.github.com/actions/reference/workflow-commands-for-github-actions."""
    place = "" if problem.file == ENVIRONMENT else f" file={_escaped(problem.file)},line={max(problem.line, 1)}"
    text = problem.message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{problem.severity}{place}::{text}"


def _escaped(text: str) -> str:
    for char, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(char, code)
    return text


def _summary(problems: Sequence[Problem]) -> str:
    counts = Counter(problem.severity for problem in problems)
    said = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for word, count in (("problem", counts["error"]), ("warning", counts["warning"]))
        if count
    ]
    return f"{', '.join(said) or 'No problems'}."
