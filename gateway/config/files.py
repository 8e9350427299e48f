"""Reading the files as one consistent set.

Knows which files belong to the configuration and that they may change while they are read. Does not know what is in them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config.yaml import MAX_BYTES
from gateway.errors import Problem

CALIBRATION: Final = "calibration.json"
GATE: Final = "eval.jsonl"
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Files:
    """What was read, by the name to show.

    Attributes:
        gateway: the gateway's own file; None where it could not be read.
        routes: the route files, in the order of their names.
        calibration: the routes' calibration, or None where there is none.
        folder: the folder of the routes, as it begins their names.
        gate: the labelled lines that every version has to send right, or None where there are none.
    """

    gateway_name: str
    gateway: bytes | None
    routes: dict[str, bytes]
    calibration: bytes | None
    folder: str = ""
    gate: bytes | None = None

    @property
    def calibration_name(self) -> str:
        """The calibration's name to show."""
        return f"{self.folder}/{CALIBRATION}"

    @property
    def gate_name(self) -> str:
        """The name to show of the labelled lines."""
        return f"{self.folder}/{GATE}"

    def within(self, name: str) -> str:
        """A route file's name inside of the folder: the same wherever the folder lies."""
        return name.removeprefix(f"{self.folder}/")


def display(path: Path) -> str:
    """The path relative to the working directory where it lies beneath it."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def read_files(config_path: Path, routes_path: Path | None, problems: list[Problem]) -> Files:
    """Read everything; anything that changed meanwhile is read again, so that no half-written set is taken for whole."""
    attempt = 0
    while True:
        attempt += 1
        found: list[Problem] = []
        before = stamps(config_path, routes_path)
        files = _read_once(config_path, routes_path, found)
        if stamps(config_path, routes_path) == before:
            problems += found
            return files
        if attempt == _ATTEMPTS:
            problems.append(Problem(display(config_path), 0, "the files keep changing while they are read; try again"))
            return files


def _read_once(config_path: Path, routes_path: Path | None, problems: list[Problem]) -> Files:
    gateway = _content(config_path, problems)
    routes: dict[str, bytes] = {}
    calibration = gate = None
    if routes_path is not None:
        if not routes_path.is_dir():
            problems.append(Problem(display(routes_path), 0, "there is no such folder; it holds the routes"))
        for path in _route_files(routes_path, problems) if routes_path.is_dir() else ():
            if path.suffix != ".yaml":
                problems.append(Problem(display(path), 0, "route files end in `.yaml`; rename it, or it is not read"))
            elif (content := _content(path, problems)) is not None:
                routes[display(path)] = content
        # A link that leads nowhere, or a folder of that name, is there: it must not pass for a file that was never meant.
        if os.path.lexists(routes_path / CALIBRATION):
            calibration = _content(routes_path / CALIBRATION, problems)
        if os.path.lexists(routes_path / GATE):
            gate = _content(routes_path / GATE, problems)
    folder = display(routes_path) if routes_path is not None else ""
    return Files(display(config_path), gateway, routes, calibration, folder, gate)


def _route_files(folder: Path, problems: list[Problem]) -> list[Path]:
    return sorted(_walk(folder, problems))


def _walk(folder: Path, problems: list[Problem]) -> Iterator[Path]:
    """Every file that is or looks like a route's. Links to folders are followed, each folder is entered once."""

    def unreadable(error: OSError) -> None:
        # What is not told here would be routes that are gone.
        problems.append(Problem(display(Path(error.filename)), 0, f"cannot be read: {error.strerror}"))

    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        # A link may lead back to where it stands.
        try:
            found = Path(root).stat()
        except OSError as error:
            unreadable(error)
            continue
        if (found.st_dev, found.st_ino) in entered:
            folders.clear()
            continue
        entered.add((found.st_dev, found.st_ino))
        # Hidden names are editors' swap files and the bookkeeping of mounted folders.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.lower().endswith((".yaml", ".yml")) and not name.startswith("."):
                yield Path(root, name)


def _content(path: Path, problems: list[Problem]) -> bytes | None:
    try:
        # Opening a pipe waits for somebody who writes to it.
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            problems.append(Problem(display(path), 0, "cannot be read: it is no regular file"))
            return None
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (
            "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        )
        problems.append(Problem(display(path), 0, reason))
        return None
    if len(content) > MAX_BYTES:
        problems.append(Problem(display(path), 0, f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB"))
        return None
    return content


def stamps(config_path: Path, routes_path: Path | None) -> dict[str, tuple[int, int, int] | None]:
    """What tells a file that changed from one that did not, by path; None for one that is not there."""
    paths = [config_path]
    if routes_path is not None:
        paths += [routes_path / CALIBRATION, routes_path / GATE, *_route_files(routes_path, [])]
    return {str(path): stamp(path) for path in paths}


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of one file; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
