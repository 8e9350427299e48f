"""What placeholders stand for, in this process alone."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.value_records import ValueRow


class MemoryValues:
    """`PrivateValues` that forget everything with the process."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], ValueRow] = {}

    async def keep(self, rows: Sequence[ValueRow]) -> None:
        """Keep these."""
        self._rows.update({(row.owner, row.placeholder): row for row in rows})

    async def get(self, placeholder: str, owner: str) -> ValueRow | None:
        """The owner's value, or None."""
        return self._rows.get((owner, placeholder))

    async def newest(self, owner: str, beginnings: Sequence[str], limit: int) -> list[ValueRow]:
        """An owner's values whose placeholders begin like one of these."""
        rows = [row for row in self._rows.values() if row.owner == owner and row.placeholder.startswith((*beginnings,))]
        return sorted(rows, key=lambda row: -row.expires_at)[:limit]

    async def prune(self, *, before: float) -> int:
        """Forget those whose time was over before then."""
        kept = {place: row for place, row in self._rows.items() if row.expires_at >= before}
        gone = len(self._rows) - len(kept)
        self._rows = kept
        return gone
