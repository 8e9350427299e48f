"""What a service must not tell the model: the credentials it was called with.

Pure. Services echo what they were sent, in error messages above all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIDDEN = "[redacted]"
# Shorter ones are words that stand everywhere.
_SHORTEST = 6
_HARMLESS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_SCHEMES = frozenset({"basic", "bearer", "token", "apikey"})


class Secrets:
    """The header values of one call."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        found = set()
        for name, value in headers.items():
            if name.lower() in _HARMLESS:
                continue
            # `Bearer KEY` and `ApiKey KEY` may be echoed without their first word.
            scheme, _, rest = value.strip().partition(" ")
            found |= {value.strip(), rest.strip() if scheme.lower() in _SCHEMES else ""}
        # The longest first, so that no part of one stays.
        self._values = sorted((each for each in found if len(each) >= _SHORTEST), key=len, reverse=True)

    def hidden(self, value: Any) -> Any:
        """A JSON value without them."""
        if not self._values:
            return value
        if isinstance(value, str):
            for secret in self._values:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, dict):
            return {self.hidden(key): self.hidden(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hidden(item) for item in value]
        return value
