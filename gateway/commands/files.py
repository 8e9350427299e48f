"""Where the files of a command are, and how its mistakes are told."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from gateway.config.defaults import DEFAULT_CONFIG, DEFAULT_ROUTES
from gateway.config.models import LogConfig
from gateway.errors import ConfigError, Problem
from gateway.observe.logging import configure_logging
from gateway.observe.redaction import Redactor
from gateway.settings import Settings, read_settings


def settings_of() -> Settings:
    """The environment. Raises `ConfigError`."""
    return read_settings()


def paths_of(arguments: argparse.Namespace, settings: Settings) -> tuple[Path, Path]:
    """The gateway's file and the routes' folder: argument, else environment, else default."""
    config = arguments.config or settings.gateway_config or DEFAULT_CONFIG
    routes = arguments.routes or settings.gateway_routes or DEFAULT_ROUTES
    return config, routes


def quiet_log(level: Literal["warning", "nothing"] = "warning") -> None:
    """Send the log to standard error, warnings and worse alone, or nothing: what a command prints is its answer."""
    configure_logging(LogConfig(level="warning"), Redactor())
    if level == "nothing":
        # The handlers, not the loggers: libraries' have levels of their own.
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.CRITICAL + 1)


def tell(error: ConfigError) -> int:
    """Print every problem to standard error; the exit code."""
    print_problems(error.problems)
    return 1


def print_problems(problems: Iterable[Problem]) -> None:
    """One line each, on standard error."""
    for problem in problems:
        warned = "" if problem.severity == "error" else f"{problem.severity}: "
        print(f"{problem.file}:{problem.line}: {warned}{problem.message}", file=sys.stderr)
