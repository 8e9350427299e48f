"""Texts with the kinds of private values in their places: where nobody has to find the way back.

For logs, which have no owner, and for servers that only compare texts: equal texts stay equal whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.security.masking.found import apart
from gateway.security.masking.masking import Detects
from gateway.security.masking.placeholders import name_of

Scrub = Callable[[str], str]


def scrubber(detectors: Sequence[Detects]) -> Scrub:
    """What takes out of a text everything that one of these finds private."""

    def scrub(text: str) -> str:
        encoded = text.encode("utf-8", "surrogatepass")
        found = [one for detector in detectors if detector.suspects(encoded) for one in detector.find(text)]
        if not found:
            return text
        out: list[str] = []
        place = 0
        for start, end, kind in apart(found):
            out += (text[place:start], f"[{name_of(kind)}]")
            place = end
        return "".join([*out, text[place:]])

    return scrub


def scrubbed(value: Any, scrub: Scrub) -> Any:
    """The same for texts inside of lists and mappings."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: scrubbed(item, scrub) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item, scrub) for item in value]
    return value
