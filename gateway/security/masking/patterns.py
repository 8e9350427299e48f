"""What operators call private: patterns of their own, on RE2, whose time grows with the text and with nothing else.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import re2

from gateway.security.masking.found import Found
from gateway.security.masking.plain import encodable


class Patterns:
    """Finds what matches.

    Args:
        patterns: by the kind that a match is.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        options = re2.Options()
        options.log_errors = False
        self._patterns = [(kind, re2.compile(pattern, options=options)) for kind, pattern in patterns.items()]

    def find(self, text: str) -> Iterator[Found]:
        """Every match in a text; empty ones are none."""
        text = encodable(text)
        for kind, pattern in self._patterns:
            for match in pattern.finditer(text):
                start, end = match.span()
                if start < end:
                    yield Found(start, end, kind)
