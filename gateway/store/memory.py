"""The store's twin without a database: for tests, and for whoever needs a gateway that keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.errors import StoreUnavailable
from gateway.store.memory_keys import MemoryKeys, MemoryUsage
from gateway.store.memory_responses import MemoryConversations, MemoryResponses
from gateway.store.memory_turns import MemoryEffects, MemoryHidden, MemoryTurns
from gateway.store.memory_values import MemoryValues
from gateway.store.store import JournalEntry
from gateway.store.trace_records import TraceBatch, TraceRow, TraceSummary


class MemoryTraces:
    """`Traces` in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[str, TraceRow] = {}

    async def add(self, batches: Sequence[TraceBatch]) -> None:
        """Keep these."""
        for row in (row for batch in batches for row in batch.rows()):
            known = self._rows.get(row.summary.trace_id)
            if row.summary.stays_over(None if known is None else known.summary):
                self._rows[row.summary.trace_id] = row

    async def get(self, id: str, owner: str | None) -> TraceRow | None:  # noqa: A002 - the contract's word
        """The trace of this trace id, request id or response id."""
        found = [row for row in self._sorted(owner) if row.summary.is_called(id)]
        return found[0] if found else None

    async def newest(self, owner: str | None, *, limit: int, after: str | None = None) -> Sequence[TraceSummary]:
        """The newest first."""
        rows = [row.summary for row in self._sorted(owner)]
        if after is not None:
            places = [index for index, row in enumerate(rows) if row.trace_id == after]
            rows = rows[places[0] + 1 :] if places else []
        return rows[:limit]

    async def prune(self, *, before: float, max_bytes: int) -> int:
        """Forget the old ones and the oldest beyond the size."""
        kept: dict[str, TraceRow] = {}
        total = 0
        for row in self._sorted(None):
            if row.summary.started_at < before:
                continue
            total += len(row.events)
            if total <= max_bytes:
                kept[row.summary.trace_id] = row
        gone = len(self._rows) - len(kept)
        self._rows = kept
        return gone

    def _sorted(self, owner: str | None) -> list[TraceRow]:
        rows = [row for row in self._rows.values() if owner in {None, row.summary.owner}]
        return sorted(rows, key=lambda row: row.summary.place, reverse=True)


class MemoryJournal:
    """`Journal` in a dictionary."""

    def __init__(self, turns: MemoryTurns | None = None) -> None:
        self._entries: dict[tuple[str, int, str, int], JournalEntry] = {}
        self._turns = turns

    async def append(self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False) -> None:  # noqa: ARG002 - the seam's
        """Keep these, all or none, where their turn is held by that attempt."""
        if entries and held_by is not None and self._turns is not None:
            turn = await self._turns.get(entries[0].turn_id, None)
            if turn is None or turn.holder != held_by:
                raise StoreUnavailable("Another process has taken this turn over.", retryable=True)
        places = [(entry.turn_id, entry.round, entry.kind, entry.position) for entry in entries]
        if len(set(places)) < len(places) or any(place in self._entries for place in places):
            raise StoreUnavailable("a record of this identity is kept already", retryable=False)
        # What is kept is what JSON keeps, as in a database.
        stored = [
            msgspec.structs.replace(entry, content=msgspec.json.decode(msgspec.json.encode(entry.content)))
            for entry in entries
        ]
        self._entries.update(zip(places, stored, strict=True))

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[JournalEntry]:
        """The turn's entries in order."""
        found = [
            entry
            for entry in self._entries.values()
            if entry.turn_id == turn_id and (owner is None or entry.owner == owner)
        ]
        return sorted(found, key=lambda entry: (entry.round, entry.kind, entry.position))

    async def prune(self, *, before: float) -> int:
        """Forget entries older than `before`."""
        kept = {place: entry for place, entry in self._entries.items() if entry.created_at >= before}
        gone = len(self._entries) - len(kept)
        self._entries = kept
        return gone


class MemoryStore:
    """`Store` that forgets everything with the process."""

    def __init__(self) -> None:
        self.traces = MemoryTraces()
        self.usage = MemoryUsage()
        self.turns = MemoryTurns()
        self.journal = MemoryJournal(self.turns)
        self.keys = MemoryKeys()
        self.effects = MemoryEffects()
        self.hidden = MemoryHidden()
        self.conversations = MemoryConversations()
        self.responses = MemoryResponses(self.conversations)
        self.private_values = MemoryValues()

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""
