"""What placeholders stand for, as it is recorded, and what its store promises.

Knows that values are sealed. Does not know by whom, nor SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class ValueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One value of an owner's: its placeholder, and the value, sealed. `expires_at` is in seconds since the epoch."""

    owner: str
    placeholder: str
    sealed: bytes
    expires_at: float


class PrivateValues(Protocol):
    """What placeholders stand for. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def keep(self, rows: Sequence[ValueRow]) -> None:
        """Keep these, all or none. Of one that is kept already the time is put off."""
        ...

    async def get(self, placeholder: str, owner: str) -> ValueRow | None:
        """The owner's value, or None."""
        ...

    async def newest(self, owner: str, beginnings: Sequence[str], limit: int) -> list[ValueRow]:
        """An owner's values whose placeholders begin like one of these; the newest, where there are more than `limit`."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget those whose time was over before then; how many went."""
        ...
