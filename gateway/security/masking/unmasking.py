"""Values back in the place of their placeholders, in whole texts and in pieces of them.

Pure. Holds back at most what a placeholder can be long, and only from what may become one of the turn's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from gateway.security.masking.placeholders import LONGEST, OPENING, PLACEHOLDER

_MARK: Final = OPENING[0]
# Some encoders write signs in JSON by their numbers.
_BY_NUMBER: Final = re.compile(r"\\u005([bBdD])")


def unmask(text: str, values: Mapping[str, str], *, in_json: bool = False) -> str:
    """The text with values for the placeholders that are known; `in_json` writes them as they stand in a JSON text."""
    if in_json and "\\u005" in text:
        plain = _BY_NUMBER.sub(lambda match: "[" if match.group(1) in "bB" else "]", text)
        if any(placeholder in plain for placeholder in values):
            text = plain
    if OPENING not in text:
        return text

    def value(match: re.Match[str]) -> str:
        found = values.get(match.group())
        if found is None:
            return match.group()
        return json.dumps(found, ensure_ascii=False)[1:-1] if in_json else found

    return PLACEHOLDER.sub(value, text)


class Unmasker:
    """The same for a text that comes in pieces.

    Args:
        values: by placeholder; may grow.
        in_json: as in `unmask`.

    Attributes:
        held: what was held back.
    """

    __slots__ = ("_in_json", "_values", "held")

    def __init__(self, values: Mapping[str, str], *, in_json: bool = False) -> None:
        self._values = values
        self._in_json = in_json
        self.held = ""

    def feed(self, piece: str) -> str:
        """What may be shown by now."""
        text = self.held + piece
        if _MARK not in text:
            self.held = ""
            return text
        text = unmask(text, self._values, in_json=self._in_json)
        place = self._open_at(text)
        self.held = text[place:]
        return text[:place]

    def end(self) -> str:
        """What is left: it became no placeholder."""
        held, self.held = self.held, ""
        return held

    def _open_at(self, text: str) -> int:
        """Where something begins that may become a placeholder; the text's end where nothing does."""
        place = text.find(_MARK, max(0, len(text) - LONGEST))
        while place >= 0:
            begun = text[place:]
            if any(placeholder.startswith(begun) for placeholder in self._values):
                return place
            place = text.find(_MARK, place + 1)
        return len(text)
