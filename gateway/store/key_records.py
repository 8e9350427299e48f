"""Keys made at run time, as records.

Knows the records and what their store promises. Does not know SQL, nor what a key may do: that is the key ring's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class SecretRow(msgspec.Struct, frozen=True, kw_only=True):
    """What bearers of a key send. `digest` is its hex SHA-256; `expires_at` is set while it is being exchanged."""

    digest: str
    prefix: str
    created_at: float
    expires_at: float | None = None


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key made at run time.

    Times are seconds since the epoch; lists of None mean all.

    Attributes:
        owner: who made it.
        limits: the set fields of `Limits`, and `budgets` those of `Budgets`.
        secrets: the newest first; where it was looked up by one, that one alone.
    """

    id: str
    name: str
    owner: str
    team: str | None = None
    roles: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    routes: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    limits: Mapping[str, int] = msgspec.field(default_factory=dict)
    budgets: Mapping[str, float] = msgspec.field(default_factory=dict)
    blocked: bool = False
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    secrets: tuple[SecretRow, ...] = ()

    def ends_at(self) -> float | None:
        """When it stops being one by itself: its own end, or that of the one secret it was looked up by."""
        ends = [end for end in (self.expires_at, *(each.expires_at for each in self.secrets)) if end is not None]
        return min(ends, default=None)


class Keys(Protocol):
    """Keys made at run time. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def add(self, row: KeyRow) -> None:
        """Keep a new key with its secrets.

        Raises:
            StoreUnavailable: also, not to be retried, where its id or a secret is known.
        """
        ...

    async def find(self, digest: str) -> KeyRow | None:
        """The key of this secret, whatever has become of it; None where nobody ever had it."""
        ...

    async def get(self, id: str) -> KeyRow | None:  # noqa: A002 - the contract's word
        """One key."""
        ...

    async def every(self, *, limit: int | None = None, after: str | None = None) -> Sequence[KeyRow]:
        """The newest first, revoked ones included; at most `limit`, older than the key `after`."""
        ...

    async def change(self, id: str, values: Mapping[str, Any]) -> KeyRow | None:  # noqa: A002 - the contract's word
        """Change some of a key's fields; the key then, or None where there is none that is not revoked."""
        ...

    async def rotate(self, id: str, secret: SecretRow, *, old_until: float) -> KeyRow | None:  # noqa: A002 - the contract's word
        """Add a secret; the others end at `old_until` or before. None where there is no such key."""
        ...

    async def revoke(self, id: str, now: float) -> bool:  # noqa: A002 - the contract's word
        """End a key now; False where there is no such key or it has ended before."""
        ...

    async def any_active(self, now: float) -> bool:
        """Whether some key counts now: neither revoked, blocked nor at its end."""
        ...

    async def ever_created(self) -> bool:
        """Whether there ever was a key, revoked ones included."""
        ...
