"""Results of reading tools, kept for whoever asks the same.

Knows what makes two calls the same: the tool as it is now, its arguments, and, unless its author says that it does not matter,
everything that a tool may know of its caller. Keeps texts, so that nothing that is done to a result reaches what is kept.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.clock import Clock
from gateway.tools.spec import ToolContext, ToolSpec

# All results together, in characters of JSON; what is larger than a sixteenth of it is not kept.
MAX_CHARS: Final = 32 * 1024 * 1024
_MOST: Final = 10_000

_encode = msgspec.json.Encoder(order="deterministic").encode


class ResultCache:
    """Results by call, the ones used last the longest."""

    def __init__(self, clock: Clock, max_chars: int = MAX_CHARS) -> None:
        self._clock = clock
        self._max_chars = max_chars
        self._kept: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._chars = 0

    def key(self, spec: ToolSpec, arguments: Mapping[str, Any], context: ToolContext, owner: str) -> bytes | None:
        """What a call is found by, or None where its result is not kept at all."""
        if spec.writes or not spec.cache_ttl_s:
            return None
        caller = None
        if not spec.shared_cache:
            caller = [owner, context.key, context.user, context.team, context.session, context.headers]
        return hashlib.sha256(_encode([spec.name, spec.spec_hash, arguments, caller])).digest()

    def get(self, key: bytes) -> str | None:
        """The result as JSON text, or None."""
        found = self._kept.get(key)
        if found is None:
            return None
        until, text = found
        if until <= self._clock.monotonic():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return text

    def keep(self, key: bytes, text: str, ttl_s: float) -> None:
        """Keep a result that is none of an error."""
        if len(text) > self._max_chars // 16:
            return
        self._drop(key)
        self._kept[key] = (self._clock.monotonic() + ttl_s, text)
        self._chars += len(text)
        while self._chars > self._max_chars or len(self._kept) > _MOST:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._chars -= len(found[1])
