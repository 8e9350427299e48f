"""Model answers in the journal.

Knows how a message is kept and read back. Does not know when that has to happen: that is the turn's.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.chat.blocks import Message
from gateway.clock import Clock
from gateway.store.store import Journal, JournalEntry

ANSWER: Final = "answer"


class AnswerJournal:
    """Commits the answers of turns, so that none is asked for twice. A turn is named by its trace id."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    async def record_answer(self, *, trace_id: str, owner: str, round_number: int, message: Message) -> None:
        """Commit one answer. Returns after it is durable.

        Raises:
            StoreUnavailable: it could not be written, or somebody else has written this round; the turn must not go on.
        """
        entry = JournalEntry(
            turn_id=trace_id,
            trace_id=trace_id,
            owner=owner,
            round=round_number,
            kind=ANSWER,
            content=msgspec.to_builtins(message),
            created_at=self._clock.now(),
        )
        await self._journal.append([entry])

    async def answers(self, trace_id: str, owner: str | None) -> dict[int, Message]:
        """The committed answers by round."""
        entries = await self._journal.of_turn(trace_id, owner)
        return {entry.round: msgspec.convert(entry.content, Message) for entry in entries if entry.kind == ANSWER}
