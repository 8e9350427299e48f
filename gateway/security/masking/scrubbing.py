"""Texts with the kinds of private values in their places: where nobody has to find the way back.

For logs, which have no owner, and for servers that only compare texts: equal texts stay equal whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.security.masking.masking import Detects
from gateway.security.masking.placeholders import name_of

Scrub = Callable[[str], str]


def scrubber(detector: Detects) -> Scrub:
    """What takes private values out of a text."""

    def scrub(text: str) -> str:
        if not detector.suspects(text.encode("utf-8", "surrogatepass")):
            return text
        out: list[str] = []
        place = 0
        for start, end, kind in detector.find(text):
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
