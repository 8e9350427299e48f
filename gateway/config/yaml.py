"""YAML 1.2 core, with the line of every value.

Knows syntax: what a plain word means (`off`, `no` and `12:30` are text), duplicates, tags, aliases within a budget.
Does not know which keys a file may have, nor variables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

# The same events from libyaml, ten times faster, where the wheel has it.
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

MAX_BYTES: Final = 8 * 1024 * 1024
# Aliases count each time they are used: a page of nested aliases stops here, after some 100 ms and a few MB.
MAX_NODES: Final = 200_000
MAX_DEPTH: Final = 60

_CORE: Final = "tag:yaml.org,2002:"
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INT: Final = re.compile(r"[-+]?[0-9]{1,300}\Z|0o[0-7]{1,300}\Z|0x[0-9a-fA-F]{1,300}\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


class YamlError(Exception):
    """The text is not what YAML 1.2 core allows. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True, slots=True)
class Scalar:
    """A word or a text. `plain` means written without quotes, so that it may mean a number, a truth value or null."""

    line: int
    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys, always as the text they were written as, and values; `key_lines` are where the keys stand."""

    line: int
    items: dict[str, Node]
    key_lines: dict[str, int]


Node = Scalar | Sequence | Mapping
Report = Callable[[int, str], None]


def compose(text: str, report: Report) -> Node | None:
    """The document's tree, or None where it is empty.

    What can be read past, such as a duplicate key, goes to `report(line, message)`.

    Raises:
        YamlError: the text cannot be read further.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(1, f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB")
    try:
        return _Composer(yaml.parse(text, Loader=_Loader), report).document()
    except yaml.MarkedYAMLError as error:
        # Where a key lacks its colon, the parser notices on the line after.
        mark = error.context_mark if "expected ':'" in (error.problem or "") else error.problem_mark
        line = mark.line if mark else 0
        raise YamlError(line + 1, _readable(error, text, line)) from error
    except yaml.reader.ReaderError as error:
        raise YamlError(
            text.count("\n", 0, error.position) + 1,
            f"the character U+{ord(error.character) if isinstance(error.character, str) else error.character:04X} may not stand in YAML",
        ) from error


def plain_value(text: str) -> Any:
    """What an unquoted word means by YAML 1.2's core schema."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] in "+-.0123456789":
        if _INT.match(text):
            return int(text[2:], 8 if text[1] == "o" else 16) if text[:2] in {"0o", "0x"} else int(text)
        if _FLOAT.match(text):
            number = float(text)
            # Beyond what a float can hold it is no number anybody meant.
            return number if math.isfinite(number) else text
        if _INFINITE.match(text):
            return float(text.replace(".", "", 1))
    return text


def _readable(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    lines = text.splitlines()
    shown = lines[line] if line < len(lines) else ""
    indent = shown[: len(shown) - len(shown.lstrip())]
    if "\t" in indent:
        return "a tab stands in the indentation; YAML allows spaces only"
    if "undefined alias" in (error.problem or ""):
        return f"{error.problem}: there is no such anchor above this line"
    if "mapping values are not allowed" in (error.problem or ""):
        return "a colon is in the wrong place here: put text that contains `: ` in quotes, and check the indentation"
    if "expected ':'" in (error.problem or ""):
        return "a `:` is missing after the key"
    return f"not valid YAML: {error.problem or 'cannot be read'}" + (f" ({error.context})" if error.context else "")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Composer:
    """Builds the tree out of the parser's events, counting every node, each use of an alias anew."""

    def __init__(self, events: Iterator[Any], report: Report) -> None:
        self._events = events
        self._report = report
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._open: set[str] = set()
        self._nodes = 0
        self._depth = 0

    def document(self) -> Node | None:
        found: Node | None = None
        seen = False
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if seen:
                    raise YamlError(_line(event), "a second document starts here; one file holds one")
                seen = True
                found = self._node(next(self._events))
        return None if isinstance(found, Scalar) and found.plain and found.text in _NULL else found

    def _node(self, event: Any) -> Node:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line)
        self._count(1, line)
        before = self._nodes
        anchor = event.anchor
        if anchor is not None:
            self._open.add(anchor)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(line, f"nested more than {MAX_DEPTH} levels deep")
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event.tag, ("seq",), line)
            node = self._sequence(line)
        else:
            self._check_tag(event.tag, ("map",), line)
            node = self._mapping(line)
        self._depth -= 1
        if anchor is not None:
            self._open.discard(anchor)
            self._anchors[anchor] = (node, self._nodes - before + 1)
        return node

    def _alias(self, anchor: str, line: int) -> Node:
        if anchor in self._open:
            raise YamlError(line, f"the alias `*{anchor}` stands inside of what it names")
        if anchor not in self._anchors:
            raise YamlError(line, f"the alias `*{anchor}` names no anchor above it")
        node, size = self._anchors[anchor]
        self._count(size, line)
        return node

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise YamlError(line, f"the file holds more than {MAX_NODES} values, each use of an alias counted")

    def _scalar(self, event: Any, line: int) -> Scalar:
        self._check_tag(event.tag, ("str", "int", "float", "bool", "null"), line)
        tag = event.tag.removeprefix(_CORE) if event.tag and event.tag.startswith(_CORE) else None
        return Scalar(
            line, event.value, (event.implicit[0] and event.tag != "!") or tag in {"int", "float", "bool", "null"}
        )

    def _sequence(self, line: int) -> Sequence:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event))
        return Sequence(line, tuple(items))

    def _mapping(self, line: int) -> Mapping:
        items: dict[str, Node] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event)
            key_line = _line(event)
            value = self._node(next(self._events))
            if not isinstance(key, Scalar):
                self._report(key_line, "a key must be one word or text, not a list or a mapping")
            elif key.plain and key.text == "<<":
                self._report(key_line, "merge keys (`<<`) are not part of YAML 1.2; write the keys out")
            elif key.text in items:
                self._report(
                    key_line, f"the key `{key.text}` stands here a second time; first on line {lines[key.text]}"
                )
            else:
                items[key.text] = value
                lines[key.text] = key_line
        return Mapping(line, items, lines)

    def _check_tag(self, tag: str | None, allowed: tuple[str, ...], line: int) -> None:
        if tag is None or tag == "!" or (tag.startswith(_CORE) and tag.removeprefix(_CORE) in allowed):
            return
        shown = tag.replace(_CORE, "!!")
        self._report(line, f"the tag `{shown}` is not allowed; only YAML's own text, numbers, lists and mappings are")
