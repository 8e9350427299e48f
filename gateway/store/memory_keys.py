"""The twins in memory of keys and of what was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import StoreUnavailable
from gateway.store.key_records import KeyRow, SecretRow
from gateway.store.usage_records import Dimension, UsageRow

_COUNTS = ("turns", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "unpriced")
_changed = msgspec.structs.replace


class MemoryKeys:
    """`Keys` in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[str, KeyRow] = {}

    async def add(self, row: KeyRow) -> None:
        """Keep a new key."""
        known = {secret.digest for each in self._rows.values() for secret in each.secrets}
        if row.id in self._rows or known & {secret.digest for secret in row.secrets}:
            raise StoreUnavailable("a record of this identity is kept already", retryable=False)
        self._rows[row.id] = row

    async def find(self, digest: str) -> KeyRow | None:
        """The key of this secret."""
        for row in self._rows.values():
            for secret in row.secrets:
                if secret.digest == digest:
                    return _changed(row, secrets=(secret,))
        return None

    async def get(self, id: str) -> KeyRow | None:  # noqa: A002 - the contract's word
        """One key."""
        return self._rows.get(id)

    async def every(self, *, limit: int | None = None, after: str | None = None) -> Sequence[KeyRow]:
        """The newest first."""
        rows = sorted(self._rows.values(), key=lambda row: (row.created_at, row.id), reverse=True)
        if after is not None:
            places = [index for index, row in enumerate(rows) if row.id == after]
            rows = rows[places[0] + 1 :] if places else []
        return rows[:limit]

    async def change(self, id: str, values: Mapping[str, Any]) -> KeyRow | None:  # noqa: A002 - the contract's word
        """Change some of a key's fields."""
        row = self._rows.get(id)
        if row is None or row.revoked_at is not None:
            return None
        self._rows[id] = _changed(row, **values)
        return self._rows[id]

    async def rotate(self, id: str, secret: SecretRow, *, old_until: float) -> KeyRow | None:  # noqa: A002 - the contract's word
        """Add a secret; the others end soon."""
        row = self._rows.get(id)
        if row is None or row.revoked_at is not None:
            return None
        old = tuple(_changed(each, expires_at=min(each.expires_at or old_until, old_until)) for each in row.secrets)
        return await self.change(id, {"secrets": (secret, *old)})

    async def revoke(self, id: str, now: float) -> bool:  # noqa: A002 - the contract's word
        """End a key now."""
        return await self.change(id, {"revoked_at": now}) is not None

    async def any_active(self, now: float) -> bool:
        """Whether some key counts now."""
        return any(
            row.revoked_at is None and not row.blocked and (row.expires_at is None or row.expires_at > now)
            for row in self._rows.values()
        )

    async def ever_created(self) -> bool:
        """Whether there ever was a key."""
        return bool(self._rows)


class MemoryUsage:
    """`Usages` in a list."""

    def __init__(self) -> None:
        self._rows: list[UsageRow] = []

    async def add(self, rows: Sequence[UsageRow]) -> None:
        """Add these."""
        self._rows += rows

    async def sums(
        self, by: Sequence[Dimension], *, owner: str | None = None, since: str | None = None, until: str | None = None
    ) -> Sequence[UsageRow]:
        """Sums by these dimensions."""
        found: dict[tuple[str, ...], UsageRow] = {}
        for row in self._between(since, until):
            if owner in (None, row.owner):
                place = tuple(getattr(row, name) for name in by)
                before = found.get(place) or UsageRow(**dict(zip(by, place, strict=True)))
                found[place] = _changed(before, **{n: getattr(before, n) + getattr(row, n) for n in _COUNTS})
        return [found[place] for place in sorted(found)]

    async def spent(self, scope: str, name: str, *, since: str | None = None, until: str | None = None) -> int:
        """The cost of these days."""
        rows = self._between(since, until)
        if scope == "tag":
            return sum(row.cost for row in rows if name in msgspec.json.decode(row.tags))
        return sum(row.cost for row in rows if getattr(row, scope) == name)

    async def prune(self, *, before: str) -> int:
        """Forget days before this one."""
        kept = [row for row in self._rows if row.day >= before]
        gone = len(self._rows) - len(kept)
        self._rows = kept
        return gone

    def _between(self, since: str | None, until: str | None) -> list[UsageRow]:
        return [row for row in self._rows if (since or "") <= row.day and (until is None or row.day <= until)]
