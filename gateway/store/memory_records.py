"""Memories: what is remembered of an owner beyond one conversation. Knows records. Does not know SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A memory.

    Attributes:
        kind: `preference`, `fact` or `conclusion`.
        source: where it is from: the trace it was said in.
        space: the encoder whose `vector` it has; empty where it has none.
        vector: 32-bit floats, little-endian.
    """

    id: str
    owner: str
    kind: str
    text: str
    source: str
    space: str = ""
    vector: bytes = b""
    created_at: float
    updated_at: float


class Memories(Protocol):
    """Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def add(self, rows: Sequence[MemoryRow], *, most: int) -> None:
        """Keep these, and of each owner at most `most`: the oldest go."""
        ...

    async def of(self, owner: str) -> Sequence[MemoryRow]:
        """All of an owner's, the newest first."""
        ...

    async def newest(self, owner: str, *, limit: int, after: str | None = None) -> Sequence[MemoryRow]:
        """A page of them, without vectors."""
        ...

    async def get(self, id: str, owner: str) -> MemoryRow | None:  # noqa: A002 - the contract's word
        """One of them."""
        ...

    async def change(self, row: MemoryRow) -> bool:
        """Give one another text and vector."""
        ...

    async def delete(self, id: str, owner: str) -> bool:  # noqa: A002 - as above
        """Forget one."""
        ...
