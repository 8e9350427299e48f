"""One file as plain values, with the place each came from.

Knows YAML and variables. Does not know which keys a file may have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.config.variables import UnknownVariable, UnsetVariable, Variables
from gateway.config.yaml import Mapping, Node, Scalar, Sequence, YamlError, compose, plain_value
from gateway.errors import Problem

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """A file's content.

    Attributes:
        file: the name to show.
        value: mappings, lists and scalars.
        lines: the line of every value, or of its key.
        texts: how the values that are no text were written, so that a name such as `08` can stay one.
        expanded: the places that hold the value of a variable; never shown.
        unset: the lines that depend on a variable which is unset, where it may be.
        overridden: the places that something outside the file decides -> its name.
    """

    file: str
    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    texts: dict[Path, str] = field(default_factory=dict)
    expanded: set[Path] = field(default_factory=set)
    unset: set[int] = field(default_factory=set)
    overridden: dict[Path, str] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """The line of the nearest value that is there, going up from `path`; 0 where the file holds none of it."""
        for end in range(len(path), -1, -1):
            if (found := self.lines.get(path[:end])) is not None:
                return found
        return 0

    def problem(self, path: Path, message: str, severity: str = "error") -> Problem:
        """A problem at this place, or at the name of what overrides it."""
        for end in range(len(path), 0, -1):
            if (name := self.overridden.get(path[:end])) is not None:
                return Problem("environment", 0, f"{name}: {message}", severity)
        return Problem(self.file, self.line(path), message, severity)

    def override(self, path: Path, value: Any, name: str) -> None:
        """Put `value` at `path`, making the mappings above it, in the name of `name`."""
        target = self.value
        for part in path[:-1]:
            inner = target.get(part)
            if not isinstance(inner, dict):
                inner = target[part] = {}
            target = inner
        target[path[-1]] = value
        for place in (self.lines, self.texts):
            for old in [old for old in place if old[: len(path)] == path]:
                del place[old]
        self.overridden[path] = name


def read_document(
    file: str, content: bytes, variables: Variables, problems: list[Problem], *, lenient: bool = False
) -> Document | None:
    """Read one file. What is wrong goes to `problems`; None where nothing can be told from the file.

    `lenient`: an unset variable is a warning; the value stays as it is written.
    """

    def report(line: int, message: str, severity: str = "error") -> None:
        problems.append(Problem(file, line, message, severity))

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        report(content.count(b"\n", 0, error.start) + 1, "the file is not UTF-8 text")
        return None
    try:
        node = compose(text, report)
    except YamlError as error:
        report(error.line, error.message)
        return None
    if node is None:
        report(0, "the file is empty")
        return None
    if not isinstance(node, Mapping):
        report(node.line, "a mapping is expected here: lines of the form `key: value`")
        return None
    document = Document(file)
    document.value = _Reader(document, variables, report, lenient=lenient).read(node, ())
    return document


class _Reader:
    def __init__(self, document: Document, variables: Variables, report: Callable[..., None], *, lenient: bool) -> None:
        self._lenient = lenient
        self._document = document
        self._variables = variables
        self._report = report

    def read(self, node: Node, path: Path) -> Any:
        self._document.lines.setdefault(path, node.line)
        if isinstance(node, Scalar):
            return self._scalar(node, path)
        if isinstance(node, Sequence):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.items)]
        for key, line in node.key_lines.items():
            self._document.lines[*path, key] = line
        return {key: self.read(item, (*path, key)) for key, item in node.items.items()}

    def _scalar(self, node: Scalar, path: Path) -> Any:
        text = node.text
        if "${" in text:
            try:
                text = self._variables.expand(text)
            except UnsetVariable as error:
                self._report(node.line, str(error), "warning" if self._lenient else "error")
                if self._lenient:
                    # What is wrong with several keys together is told at the line of what they stand in.
                    self._document.unset |= {node.line, self._document.line(path[:-1])}
                return text
            except UnknownVariable as error:
                self._report(node.line, str(error))
                return text
            self._document.expanded.add(path)
            if not text:
                # An empty value is no null: whoever wants "none" leaves the key out, and nothing empty is ever sent.
                return text
        if not node.plain:
            return text
        value = plain_value(text)
        if value is not None and not isinstance(value, str):
            self._document.texts[path] = text
        return value
