"""Writes a text that a regular expression accepts: the shortest that is easily found.

Pure. Reads literals, classes, groups, alternatives, quantifiers and anchors. What it does not read (look-around,
back-references) it writes wrongly: who asks has to check what it got.
"""

from __future__ import annotations

import re
from typing import Final

_CLASSES: Final = {"d": "0", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a"}
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r"}
_QUANTIFIER: Final = re.compile(r"\{(\d*)(?:,\d*)?\}")
# Tried for a class that excludes some.
_USUAL: Final = "a0A- _.x1"
_DEEPEST: Final = 20
_LONGEST: Final = 2000


def text_for(pattern: str) -> str:
    """A text for `pattern`; for one that is not read, any text. At most some thousand characters."""
    try:
        return _Writer(pattern).alternatives(0)
    except (IndexError, RecursionError, ValueError):
        return ""


class _Writer:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def alternatives(self, depth: int) -> str:
        """The first of several; the others are read over."""
        if depth > _DEEPEST:
            raise ValueError("groups in groups")
        first = self._sequence(depth)
        while self._skip("|"):
            self._sequence(depth)
        return first

    def _sequence(self, depth: int) -> str:
        parts: list[str] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            part = self._atom(depth)
            parts.append((part * min(self._least(), _LONGEST))[:_LONGEST])
        return "".join(parts)[:_LONGEST]

    def _atom(self, depth: int) -> str:
        char = self._pattern[self._at]
        self._at += 1
        if char == "(":
            if self._skip("?"):
                while self._pattern[self._at] not in ":>":
                    self._at += 1
                self._at += 1
            inner = self.alternatives(depth + 1)
            if not self._skip(")"):
                raise ValueError("an open group")
            return inner
        if char == "[":
            return self._one_of()
        if char == "\\":
            return self._escaped()
        return "" if char in "^$" else "a" if char == "." else char

    def _escaped(self) -> str:
        char = self._pattern[self._at]
        self._at += 1
        if char in "bBAzZ":
            return ""
        return _CLASSES.get(char) or _CONTROL.get(char) or char

    def _one_of(self) -> str:
        start = self._at
        excludes = self._skip("^")
        first: str | None = None
        while self._pattern[self._at] != "]" or first is None:
            char = self._pattern[self._at]
            self._at += 1
            shown = self._escaped() if char == "\\" else char
            first = first if first is not None else shown
        self._at += 1
        if not excludes:
            return first
        whole = re.compile(self._pattern[start - 1 : self._at])
        return next((usual for usual in _USUAL if whole.match(usual)), "~")

    def _least(self) -> int:
        """How often at least what was just read has to stand."""
        least = 1
        if self._skip("*") or self._skip("?"):
            least = 0
        elif self._skip("+"):
            pass
        elif match := _QUANTIFIER.match(self._pattern, self._at):
            least = min(int(match.group(1) or 0), _LONGEST)
            self._at = match.end()
        else:
            return 1
        self._skip("?")
        return least

    def _skip(self, char: str) -> bool:
        if self._pattern[self._at : self._at + 1] != char:
            return False
        self._at += 1
        return True
