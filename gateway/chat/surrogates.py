"""Characters that a server cut in the middle: one half of a UTF-16 pair in one chunk, the other half in the next.

Pure. Knows JSON's `\\uD83D` escapes and the texts of a delta; looks only at chunks that no JSON reader takes.
"""

from __future__ import annotations

import json
import re
from typing import Any

_HIGH_AT_END = re.compile("[\ud800-\udbff]$")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_ESCAPED = re.compile(rb"\\u([dD][89a-fA-F][0-9a-fA-F]{2})")
_BYTE = re.compile(r"\(byte (\d+)\)")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class SurrogateJoiner:
    """Joins the halves of one stream. A half whose other half never comes is replaced by U+FFFD."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], str] = {}

    def mend(self, payload: bytes) -> bytes:
        """The chunk with whole characters: a first half is held back, a second half joined to what was held.

        Raises:
            ValueError: it is not JSON for another reason.
        """
        try:
            value = json.loads(payload)
        except RecursionError as error:
            raise ValueError("an event is nested too deeply") from error
        choices = value.get("choices") if isinstance(value, dict) else None
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                for name in _TEXTS:
                    if isinstance(delta.get(name), str):
                        delta[name] = self._joined((position, name), delta[name])
        return json.dumps(whole_characters(value), ensure_ascii=False).encode()

    def _joined(self, place: tuple[int, str], text: str) -> str:
        text = self._held.pop(place, "") + text
        if half := _HIGH_AT_END.search(text):
            self._held[place] = half.group()
            text = text[:-1]
        return text


def half_at(body: bytes, reason: str) -> str | None:
    """The escape of half a character at the place where a JSON reader gave up, if one is there.

    Args:
        body: what it read.
        reason: what it said. "Truncated" is said of a half less than six bytes before the end, too.
    """
    at = _BYTE.search(reason)
    if at is None and not ("truncated" in reason and body.rstrip().endswith((b"}", b"]"))):
        return None
    end = int(at.group(1)) + 6 if at is not None else len(body)
    found = list(_ESCAPED.finditer(body, max(0, end - 30), end))
    if not found or (at is not None and found[-1].end() < end - 12):
        return None
    last = found[-1]
    paired = len(found) > 1 and found[-2].end() == last.start() and found[-2].group(1)[1:2] in b"89abAB"
    is_second = last.group(1)[1:2] not in b"89abAB"
    return None if is_second and paired else last.group().decode()


def whole_characters(value: Any) -> Any:
    """A JSON value whose texts hold no half of a pair: two that belong together are joined, one alone becomes U+FFFD."""
    if isinstance(value, str):
        paired = _PAIR.sub(lambda found: found.group().encode("utf-16", "surrogatepass").decode("utf-16"), value)
        return _LONE.sub(_REPLACEMENT, paired)
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {whole_characters(name): whole_characters(item) for name, item in value.items()}
    return value
