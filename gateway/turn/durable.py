"""The journal over the store.

Knows how an answer becomes a journal entry. Does not know SQL.
"""

from __future__ import annotations

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import encode_call
from gateway.clock import Clock
from gateway.store.store import Journal as JournalStore
from gateway.store.store import JournalEntry


class StoredJournal:
    """Implements `turn.journal.Journal`."""

    def __init__(self, store: JournalStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def record_answer(self, *, trace_id: str, owner: str, round_number: int, message: Message) -> None:
        """Commit one answer before its writing calls start. Raises `StoreUnavailable`."""
        content = {"text": message.text, "tool_calls": [encode_call(call) for call in message.tool_calls]}
        entry = JournalEntry(
            turn_id=trace_id,
            trace_id=trace_id,
            owner=owner,
            round=round_number,
            kind="answer",
            content=content,
            created_at=self._clock.now(),
        )
        await self._store.append([entry])
