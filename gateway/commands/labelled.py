"""Files of labelled lines that a command is given."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import ConfigError, Problem
from gateway.turn.labelled import Labelled, read_labelled
from gateway.turn.snapshot import Snapshot


def labelled_in(path: Path, snapshot: Snapshot) -> list[Labelled]:
    """The labelled lines of a file. Blocks on it. Raises `ConfigError` with every mistake."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError((Problem(str(path), 0, f"cannot be read: {error.strerror}"),)) from error
    return read_labelled(str(path), content, snapshot)
