"""Decisions that need not be made twice.

The key names the version, so a new version makes every older entry unreachable. Knows nothing of how a decision is made.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.routing.decision import Decision

# A longer text stands in the key by its digest: ten thousand long prompts would otherwise be kept in memory.
_KEPT_CHARS = 512

Key = tuple[object, ...]

_NOTHING: Final[tuple[None, float]] = None, 0.0


class DecisionCache:
    """A bounded cache whose entries die after `ttl_s` seconds.

    Attributes:
        hits: lookups that found a decision.
        misses: lookups that did not.
    """

    def __init__(self, size: int, ttl_s: float, monotonic: Callable[[], float]) -> None:
        self.hits = 0
        self.misses = 0
        self._size = size
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        # With the moment each dies at; the oldest first, as all of them live equally long. Not a dict: to find its first key it
        # passes by all that have been taken from there, thousands of them.
        self._entries: OrderedDict[Key, tuple[Decision, float]] = OrderedDict()

    def get(self, key: Key) -> Decision | None:
        """The decision made under this key, if it still lives."""
        decision, until = self._entries.get(key, _NOTHING)
        if decision is not None and self._monotonic() < until:
            self.hits += 1
            return decision
        self.misses += 1
        return None

    def put(self, key: Key, decision: Decision) -> None:
        """Keep a decision; the oldest goes when the cache is full."""
        entries = self._entries
        entries.pop(key, None)
        if len(entries) >= self._size:
            entries.popitem(last=False)
        entries[key] = decision, self._monotonic() + self._ttl_s

    def __len__(self) -> int:
        return len(self._entries)


def cache_key(version: str, text: str, facts: tuple[object, ...]) -> Key:
    """The key of a decision about a normalised text under the facts that conditions can tell apart."""
    if len(text) > _KEPT_CHARS:
        return version, hashlib.blake2b(text.encode(), digest_size=16).digest(), facts
    return version, text, facts
