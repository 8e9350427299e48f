"""The conversations this process has sent a part of, and how right its estimates were.

Whatever is forgotten here is computed anew from the conversation itself: forgetting costs time, and at worst another cut.
Knows owners apart. Does not know backends beyond their names.
"""

from __future__ import annotations

from array import array
from typing import Final

from cachetools import LRUCache

from gateway.scribe.conversation import Conversation
from gateway.scribe.pins import PinPatterns

# Messages that all remembered conversations have together, eight bytes each and a little for those that are sent.
_MOST_MESSAGES: Final = 1_000_000
_LEAST_SIZE: Final = 32
# The messages by which a conversation is told from another of the same owner.
_FIRST: Final = 1

# What reported usage may make of an estimate, how fast, and by which difference it has to be wrong. Never less than it was: a
# server that says too little would make windows too large, and one that is right costs a tenth of the room.
_LEAST, _MOST = 1.0, 2.0
_WEIGHT: Final = 0.3
_STEP: Final = 0.1
_WORTH_TOKENS: Final = 500
_BACKENDS: Final = 1000

Key = tuple[str, str, str, bytes]


class Conversations:
    """Conversations by owner, session, place and beginning."""

    def __init__(self) -> None:
        self._known: LRUCache[Key, Conversation] = LRUCache(
            _MOST_MESSAGES, getsizeof=lambda known: max(_LEAST_SIZE, len(known.prints))
        )
        self._seen: LRUCache[str, float] = LRUCache(_BACKENDS)
        self._ratios: LRUCache[str, float] = LRUCache(_BACKENDS)

    def of(
        self, owner: str, session: str | None, place: str, prints: array[int], patterns: PinPatterns
    ) -> tuple[Key, Conversation]:
        """The conversation that these messages continue, at this place; a new one where there is none."""
        key = (owner, session or "", place, prints[:_FIRST].tobytes())
        known = self._known.get(key)
        if known is None or not known.continues(prints):
            known = Conversation(patterns)
        return key, known

    def keep(self, key: Key, conversation: Conversation) -> None:
        """Remember it as it is now."""
        self._known.pop(key, None)
        if len(conversation.prints) <= _MOST_MESSAGES:
            self._known[key] = conversation

    def find(self, key: Key) -> Conversation | None:
        """What is remembered under this key."""
        return self._known.get(key)

    def ratio(self, backend: str) -> float:
        """What an estimate has to be multiplied by for this backend's own count; moves in steps, so that windows rest."""
        return self._ratios.get(backend, 1.0)

    def reported(self, backend: str, estimate: int, tokens: int) -> None:
        """A backend counted `tokens` where the estimate was another."""
        if estimate < _WORTH_TOKENS or tokens <= 0:
            return
        found = min(_MOST, max(_LEAST, tokens / estimate))
        moved = found if backend not in self._seen else self._seen[backend] * (1 - _WEIGHT) + found * _WEIGHT
        self._seen[backend] = moved
        if abs(moved - self.ratio(backend)) > _STEP:
            # Rounded up: too small a window costs less than one that is refused.
            self._ratios[backend] = min(_MOST, -(-moved // _STEP) * _STEP)
