"""`hermes-gateway check`: every problem of config, routes and tools, as `file:line: message`."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from gateway.building import prove
from gateway.commands.files import paths_of, quiet_log, settings_of
from gateway.errors import ConfigError, Problem


def run(arguments: argparse.Namespace) -> int:
    """Check; 1 where there are problems, with `--strict` also where there are warnings."""
    quiet_log()
    try:
        settings = settings_of()
        problems: tuple[Problem, ...] = asyncio.run(
            prove(*paths_of(arguments, settings), settings, offline=arguments.offline)
        )
    except ConfigError as error:
        problems = error.problems
    _print(problems, arguments.format)
    bad = [problem for problem in problems if problem.severity == "error" or arguments.strict]
    if not problems and arguments.format == "text":
        print("No problems.")
    return 1 if bad else 0


def _print(problems: tuple[Problem, ...], form: str) -> None:
    if form == "json":
        print(msgspec.json.encode([msgspec.to_builtins(problem) for problem in problems]).decode())
        return
    for problem in problems:
        if form == "github":
            text = problem.message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            print(f"::{problem.severity} file={problem.file},line={max(problem.line, 1)}::{text}")
        else:
            print(problem, file=sys.stderr)
