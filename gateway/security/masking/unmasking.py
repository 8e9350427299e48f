"""Values back in the place of their placeholders, in whole texts and in pieces of them.

Pure. Holds back at most what a placeholder can be long, and only from what may become one of the turn's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from gateway.security.masking.placeholders import COPIED, LONGEST, OPENING

_MARK: Final = OPENING[0]
# Some encoders write signs in JSON by their numbers.
_BY_NUMBER: Final = re.compile(r"\\u005([bBdD])")
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_MOST_NESTED: Final = 8


def unmask(text: str, values: Mapping[str, str], *, in_json: bool = False, before: Callable[[], str] = str) -> str:
    """The text with values for the placeholders that are known; `in_json` writes them as they stand in a JSON text.

    Args:
        text: with placeholders.
        values: by placeholder.
        in_json: whether the text is JSON's.
        before: tells the JSON text that stands before it.
    """
    if in_json and "\\u005" in text:
        plain = _BY_NUMBER.sub(lambda match: "[" if match.group(1) in "bB" else "]", text)
        if any(placeholder in plain for placeholder in values):
            text = plain
    if _MARK not in text:
        return text

    def value(match: re.Match[str]) -> str:
        found = values.get(f"[[{(match.group(1) or match.group(2)).lower()}]]")
        if found is None:
            return match.group()
        if not in_json or (once := _escaped(found)) == found:
            return found
        for _ in range(_depth(before() + text[: match.start()]) - 1):
            once = _escaped(once)
        return once

    return COPIED.sub(value, text)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _depth(begun: str) -> int:
    """How many strings of JSON, each in the one before, a JSON text that ends here is in."""
    depth = 0
    while depth < _MOST_NESTED:
        last = None
        for last in _STRINGS.finditer(begun):  # noqa: B007 - the last one is meant
            pass
        if last is None or last.end() < len(begun) or (len(last.group()) > 1 and _is_closed(last.group())):
            return depth
        depth += 1
        try:
            begun = json.loads(f'{last.group()}"', strict=False)
        except ValueError:
            return depth
        if begun.lstrip()[:1] not in ("{", "["):
            return depth
    return depth


def _is_closed(string: str) -> bool:
    ending = string[1:-1]
    return string[-1] == '"' and (len(ending) - len(ending.rstrip("\\"))) % 2 == 0


class Unmasker:
    """The same for a text that comes in pieces.

    Args:
        values: by placeholder; may grow.
        in_json: as in `unmask`.

    Attributes:
        held: what was held back.
    """

    __slots__ = ("_in_json", "_shown", "_values", "held")

    def __init__(self, values: Mapping[str, str], *, in_json: bool = False) -> None:
        self._values = values
        self._in_json = in_json
        # Of JSON alone: what comes next may stand in JSON within JSON.
        self._shown: list[str] = []
        self.held = ""

    def feed(self, piece: str) -> str:
        """What may be shown by now."""
        text = self.held + piece
        if _MARK not in text:
            self.held = ""
        else:
            text = unmask(text, self._values, in_json=self._in_json, before=self._before)
            place = self._open_at(text)
            self.held = text[place:]
            text = text[:place]
        if self._in_json:
            self._shown.append(text)
        return text

    def end(self) -> str:
        """What is left: it became no placeholder."""
        held, self.held = self.held, ""
        return held

    def _before(self) -> str:
        self._shown = ["".join(self._shown)]
        return self._shown[0]

    def _open_at(self, text: str) -> int:
        """Where something begins that may become a placeholder; the text's end where nothing does."""
        place = text.find(_MARK, max(0, len(text) - LONGEST))
        while place >= 0:
            begun = text[place:].lower()
            half = _MARK + begun
            if any(placeholder.startswith((begun, half)) for placeholder in self._values):
                return place
            place = text.find(_MARK, place + 1)
        return len(text)
