"""Whole results of which the model was shown a part, kept so that it can read on.

Knows handles, whose they are and for how long. Does not know what a model may read of them (`paging.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

from gateway.clock import Clock

KEEP_S: Final = 3600.0
# All results together, in characters of JSON; what is larger than an eighth of it is not kept.
MAX_CHARS: Final = 64 * 1024 * 1024
HANDLE_PREFIX: Final = "res_"
_HANDLE_DIGITS: Final = 20


class KeptResults:
    """Whole results of this process by handle, for their owners alone; the ones used last stay the longest."""

    def __init__(self, clock: Clock, max_chars: int = MAX_CHARS) -> None:
        self._clock = clock
        self._max_chars = max_chars
        self._secret = secrets.token_bytes(32)
        self._kept: OrderedDict[str, tuple[str, float, str]] = OrderedDict()
        self._chars = 0

    def handle_of(self, owner: str, text: str) -> str:
        """The handle of a result: nobody can guess it, and the same result of the same owner has the same."""
        mark = hmac.digest(self._secret, f"{owner}\0{text}".encode(errors="surrogatepass"), hashlib.sha256)
        return HANDLE_PREFIX + mark.hex()[:_HANDLE_DIGITS]

    def may_keep(self, text: str) -> bool:
        """Whether a result is small enough."""
        return len(text) <= self._max_chars // 8

    def keep(self, handle: str, owner: str, text: str) -> None:
        """Keep a result's JSON text."""
        self._drop(handle)
        self._kept[handle] = (owner, self._clock.monotonic() + KEEP_S, text)
        self._chars += len(text)
        while self._chars > self._max_chars:
            self._drop(next(iter(self._kept)))

    def get(self, handle: str, owner: str) -> str | None:
        """The JSON text, or None where there is none, or it is another owner's."""
        found = self._kept.get(handle)
        if found is None or found[0] != owner:
            return None
        if found[1] <= self._clock.monotonic():
            self._drop(handle)
            return None
        self._kept.move_to_end(handle)
        return found[2]

    def _drop(self, handle: str) -> None:
        found = self._kept.pop(handle, None)
        if found is not None:
            self._chars -= len(found[2])
