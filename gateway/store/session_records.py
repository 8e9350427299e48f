"""Sessions: conversations that the gateway keeps, and who may write to one at a time.

Knows records and rules. Does not know SQL. Whoever has a turn in a session holds it; a holder that died, or whose time is over,
holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session.

    Attributes:
        number: what its messages are found by.
        name: what its owner calls it.
        revision: rises with every change.
        head: the JSON list of its leading system messages.
        first: the position of its first message; those before were forgotten for want of room.
        end: the position behind its last message.
        size: bytes of its messages.
        last: the position at which the latest turn begins, and `last_print` what was asked in it.
        holder: who has a turn in it, until `held_until`; empty where nobody has.
    """

    number: int
    owner: str
    name: str
    revision: int = 0
    head: bytes = b"[]"
    first: int = 0
    end: int = 0
    size: int = 0
    last: int = 0
    last_print: str = ""
    holder: str = ""
    held_until: float = 0.0
    created_at: float
    updated_at: float
    expires_at: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn makes of a session.

    Attributes:
        first: as in `SessionRow`: what stands before is forgotten.
        upto: the position up to which messages stay; those behind it are replaced.
        messages: what stands there now, JSON each.
        head: as in `SessionRow`.
        size: as in `SessionRow`.
        last: as in `SessionRow`, and `last_print`.
    """

    first: int
    upto: int
    messages: Sequence[bytes]
    head: bytes
    size: int
    last: int
    last_print: str


class Sessions(Protocol):
    """Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def take(
        self, owner: str, name: str, holder: str, *, until: float, now: float, alive: Callable[[str], bool]
    ) -> SessionRow | None:
        """Hold a session, a new one where there is none; None while somebody else does."""
        ...

    async def messages(self, number: int) -> Sequence[bytes]:
        """A session's messages, JSON each, in order."""
        ...

    async def change(self, number: int, holder: str, change: Change, *, now: float, ttl_s: float) -> bool:
        """Change a session that is held; it is nobody's then. False where the holder has lost it."""
        ...

    async def release(self, number: int, holder: str) -> None:
        """Hold it no more."""
        ...

    async def get(self, owner: str, name: str, *, now: float) -> SessionRow | None:
        """One session that has anything in it."""
        ...

    async def delete(self, owner: str, name: str) -> bool:
        """Forget a session."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget those that expired before then and that nobody holds; how many."""
        ...
