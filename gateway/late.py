"""Patterns that are compiled when they are first used: most processes never need most of them.

Knows regular expressions, and nothing of what they are for.
"""

from __future__ import annotations

import re
from typing import Any, cast


def late(text: str, flags: int = 0) -> re.Pattern[str]:
    """As `re.compile`, but a mistake in `text` is told at the first use."""
    return cast("re.Pattern[str]", _Late(text, flags))


class _Late:
    """Stands for the pattern. What is asked of it is kept, so that asking again costs what it costs with a pattern."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found
