"""The seam of everything that is kept.

Knows records and who may read them. Does not know SQL. `owner=None` reads everybody's and is for administrators alone;
any other owner sees their own and no trace of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gateway.store.key_records import Keys
from gateway.store.response_records import Conversations, Responses
from gateway.store.trace_records import Traces
from gateway.store.turn_records import Effects, Hidden, Turns
from gateway.store.usage_records import Usages
from gateway.store.value_records import PrivateValues


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a turn.

    `kind` says which (`decision` in round 0, `answer`, `tool`, a run's `step`), `position` which call of the round it is about (0 for the answer); `content` is
    a JSON value.
    """

    turn_id: str
    trace_id: str
    owner: str
    round: int
    kind: str
    position: int = 0
    content: Any
    created_at: float


class Journal(Protocol):
    """The durable steps of turns. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def append(self, entries: Sequence[JournalEntry], *, held_by: str | None = None, hasty: bool = False) -> None:
        """Commit these, all or none, before returning.

        With `held_by`, only where their turn is held by that attempt. A `hasty` commit may be lost when the machine stops, unless
        another one followed it.

        Raises:
            StoreUnavailable: also where that step of the turn is there already, or the turn is held by another: somebody
                else continued the turn.
        """
        ...

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[JournalEntry]:
        """The turn's entries in order."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget entries older than `before`, but for those of runs that may go on; how many went."""
        ...


class Store(Protocol):
    """All repositories, over one database."""

    @property
    def traces(self) -> Traces:
        """Finished turns."""
        ...

    @property
    def journal(self) -> Journal:
        """The durable steps of turns."""
        ...

    @property
    def keys(self) -> Keys:
        """Keys made at run time."""
        ...

    @property
    def usage(self) -> Usages:
        """What was used."""
        ...

    @property
    def turns(self) -> Turns:
        """Turns that can be joined."""
        ...

    @property
    def effects(self) -> Effects:
        """The ledger."""
        ...

    @property
    def hidden(self) -> Hidden:
        """Rounds that clients do not see."""
        ...

    @property
    def responses(self) -> Responses:
        """Responses."""
        ...

    @property
    def conversations(self) -> Conversations:
        """Conversations."""
        ...

    @property
    def private_values(self) -> PrivateValues:
        """What placeholders stand for."""
        ...

    async def open(self) -> None:
        """Connect and bring the tables up to date. Raises `StoreUnavailable`, with what to do."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
