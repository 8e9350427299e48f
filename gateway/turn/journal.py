"""The seam to the durable record of a turn's steps."""

from __future__ import annotations

from typing import Protocol

from gateway.chat.blocks import Message


class Journal(Protocol):
    """Where model answers are committed before anything they ask for changes the world."""

    async def record_answer(self, *, trace_id: str, owner: str, round_number: int, message: Message) -> None:
        """Commit one answer. Returns after it is durable.

        Raises:
            StoreUnavailable: it could not be written; the turn must not go on.
        """
        ...
