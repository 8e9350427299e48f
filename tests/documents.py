"""The project's Markdown as tables and code.

Knows Markdown as this project writes it. Does not know what a page has to say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_TABLE = re.compile(r"^\|(.+)\|$\n^\|(?: *-+ *\|)+$\n((?:^\|.*\|$\n?)+)", re.MULTILINE)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
# A `|` inside of code does not part cells.
_CELLS = re.compile(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")


@dataclass(frozen=True, slots=True)
class Example:
    """A piece of code on a page: `language` as the fence says, `line` of its first line."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def pages() -> tuple[Path, ...]:
    """What users read: the README and the guides; neither the blueprint nor the records of decisions."""
    return (ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "design.md"))


def text_of(name: str) -> str:
    """A page of `docs/`."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def rows(text: str, *heads: str) -> list[dict[str, str]]:
    """The rows of every table with these heads, in order."""
    found: list[dict[str, str]] = []
    for head, body in _TABLE.findall(text):
        names = _cells(head)
        if names == list(heads):
            found += [dict(zip(names, _cells(row.strip()[1:-1]), strict=True)) for row in body.splitlines()]
    return found


def said_twice(text: str) -> list[str]:
    """Names that begin two rows of one table, alone in their cell: the second row is what a merge has left."""
    twice: list[str] = []
    for _, body in _TABLE.findall(text):
        named = [cell for row in body.splitlines() if _CODE.fullmatch(cell := _cells(row.strip()[1:-1])[0])]
        twice += [each for each, times in Counter(named).items() if times > 1]
    return twice


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one of its rank or a higher one."""
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading {title!r}"
    return match[2]


def code(text: str) -> list[str]:
    """Everything in backticks."""
    return _CODE.findall(text)


def examples(language: str) -> Iterator[Example]:
    """The code of one language on all pages."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match[2] == language:
                indent = len(match[1])
                body = "".join(line[indent:] for line in match[3].splitlines(keepends=True))
                yield Example(page, text.count("\n", 0, match.start(3)) + 1, language, body)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in _CELLS.split(row)]
