"""Answers kept in this process: bounded in bytes, and each for its own time.

Knows values and seconds. What they mean is `turn/answers.py`'s.
"""

from __future__ import annotations

from typing import Final

from cachetools import TLRUCache

from gateway.clock import Clock

MOST_BYTES: Final = 64 * 1024 * 1024
# What a dictionary entry, a key and a number cost beside the value.
_ENTRY_BYTES: Final = 400


class MemoryAnswers:
    """`AnswerStore` in memory; the least recently used go first when it is full.

    Args:
        clock: time.
        most_bytes: how much may be kept.
    """

    def __init__(self, clock: Clock, most_bytes: int = MOST_BYTES) -> None:
        self._entries: TLRUCache[str, tuple[float, bytes]] = TLRUCache(
            most_bytes, lambda _key, entry, now: now + entry[0], timer=clock.monotonic, getsizeof=_size
        )
        self._most_bytes = most_bytes

    async def get(self, key: str) -> bytes | None:
        """The value, while it lives."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    async def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """Keep a value, unless it is larger than everything together may be."""
        entry = (ttl_s, value)
        if _size(entry) <= self._most_bytes:
            self._entries[key] = entry

    async def close(self) -> None:
        """Forget everything."""
        self._entries.clear()


def _size(entry: tuple[float, bytes]) -> int:
    return len(entry[1]) + _ENTRY_BYTES
