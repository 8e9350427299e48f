"""An OpenAPI file as plain values, with lines, and with no reference that leads out of it.

Knows YAML, JSON and references within the document. Reads nothing but the bytes it is given: no other file, no address.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from gateway.config.yaml import Mapping, Node, Scalar, Sequence, YamlError, compose, plain_value
from gateway.errors import ConfigError, Problem

Path = tuple[str, ...]

# Longer than any chain that anybody writes; a chain that bites its own tail ends here.
_MOST_STEPS = 64
_MOST_PROBLEMS = 20
# What stands under these is somebody's data, where `$ref` is a word like any other.
_DATA = frozenset({"example", "examples", "default", "enum", "const"})


class BrokenReference(Exception):
    """A reference that leads nowhere."""


@dataclass(slots=True)
class OpenApiDocument:
    """One document.

    Attributes:
        file: the name to show.
        value: mappings, lists and scalars.
        is_30: whether its schemas are of OpenAPI 3.0, which are not quite JSON Schema.
        lines: the line of mapping keys, where the file is YAML.
    """

    file: str
    value: dict[str, Any]
    is_30: bool
    lines: dict[Path, int] = field(default_factory=dict)

    def origin(self, path: Path) -> str:
        """`file:line` of a place, or of the nearest place above it."""
        for end in range(len(path), 0, -1):
            if (line := self.lines.get(path[:end])) is not None:
                return f"{self.file}:{line}"
        return self.file

    def problem(self, path: Path, text: str) -> Problem:
        """A problem at a place, which the message names."""
        _, _, line = self.origin(path).rpartition(":")
        return Problem(self.file, int(line) if line.isdigit() else 0, f"`{'.'.join(path)}`: {text}")

    def at(self, reference: str) -> Any:
        """What a reference within the document leads to.

        Raises:
            BrokenReference: it leads nowhere.
        """
        here: Any = self.value
        for part in unquote(reference[1:]).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(here, MappingType) and key in here:
                here = here[key]
            elif isinstance(here, list) and key.isdigit() and int(key) < len(here):
                here = here[int(key)]
            else:
                raise BrokenReference(f"{reference!r} leads nowhere in this document")
        return here

    def followed(self, value: Any) -> Any:
        """The value itself, or what its `$ref` leads to in the end.

        Raises:
            BrokenReference: it leads nowhere, or in a circle.
        """
        for _ in range(_MOST_STEPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = self.at(value["$ref"])
        raise BrokenReference(f"a chain of more than {_MOST_STEPS} references")


def read_openapi(file: str, content: bytes) -> OpenApiDocument:
    """Read and prove a document; nothing but `content` is looked at.

    Raises:
        ConfigError: it is no OpenAPI 3.0 or 3.1 document, or has references that lead out of it, each of them named.
    """
    lines: dict[Path, int] = {}
    value = _parsed(file, content, lines)
    if not isinstance(value, dict):
        raise ConfigError((Problem(file, 0, "an OpenAPI document is a mapping with `openapi`, `paths`"),))
    version = str(value.get("openapi", ""))
    if not version.startswith(("3.0", "3.1")):
        found = f"`openapi: {version}`" if version else "`swagger: 2.0`" if "swagger" in value else "no `openapi`"
        raise ConfigError((Problem(file, 1, f"only OpenAPI 3.0 and 3.1 are read; this document says {found}"),))
    document = OpenApiDocument(file, value, version.startswith("3.0"), lines)
    problems = [
        document.problem(path, f"the reference {target[:200]!r} leads out of this document, and nothing else is read")
        for path, target in _references(value)
        if not (target == "#" or target.startswith("#/"))
    ]
    if problems:
        raise ConfigError(tuple(problems[:_MOST_PROBLEMS]))
    return document


def _parsed(file: str, content: bytes, lines: dict[Path, int]) -> Any:
    if content.lstrip()[:1] == b"{":
        # Much quicker, and JSON may be indented by tabs, which YAML forbids.
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            # It may still be YAML's kind of JSON: that reader knows the line of a mistake.
            lines.clear()
    problems: list[Problem] = []
    try:
        node = compose(content.decode("utf-8-sig"), lambda line, text: problems.append(Problem(file, line, text)))
    except UnicodeDecodeError as error:
        raise ConfigError((Problem(file, 0, "the file is not UTF-8 text"),)) from error
    except YamlError as error:
        raise ConfigError((Problem(file, error.line, error.message),)) from error
    if problems:
        raise ConfigError(tuple(problems[:_MOST_PROBLEMS]))
    return None if node is None else _plain(node, (), lines)


def _plain(node: Node, path: Path, lines: dict[Path, int]) -> Any:
    if isinstance(node, Scalar):
        return plain_value(node.text) if node.plain else node.text
    if isinstance(node, Sequence):
        return [_plain(item, (*path, str(index)), lines) for index, item in enumerate(node.items)]
    assert isinstance(node, Mapping)
    for key, line in node.key_lines.items():
        lines[*path, key] = line
    return {key: _plain(item, (*path, key), lines) for key, item in node.items.items()}


def _references(value: Any) -> list[tuple[Path, str]]:
    """Every `$ref` of the document and where it stands, those in examples and the like left out."""
    found: list[tuple[Path, str]] = []
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting:
        path, here = waiting.pop()
        if isinstance(here, list):
            waiting.extend(((*path, str(index)), item) for index, item in enumerate(here))
        elif isinstance(here, dict):
            named = path[-1:] == ("properties",)
            for key, item in here.items():
                if key in {"$ref", "$dynamicRef", "$recursiveRef"} and isinstance(item, str):
                    found.append(((*path, key), item))
                elif named or not (key in _DATA or key.startswith("x-")):
                    waiting.append(((*path, key), item))
    return sorted(found)
