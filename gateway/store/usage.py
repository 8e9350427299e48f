"""What was used, in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import delete, func, select

from gateway.store.database import Database
from gateway.store.inserting import insert
from gateway.store.tables import usage
from gateway.store.usage_records import Dimension, UsageRow

_COUNTS: Final = ("turns", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost", "unpriced")


_ADDING = insert(usage)
_ADD: Final = _ADDING.on_conflict_do_update(
    index_elements=list(usage.primary_key.columns),
    set_={name: usage.c[name] + _ADDING.excluded[name] for name in _COUNTS},
)


class SqlUsage:
    """`Usages` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[UsageRow]) -> None:
        """Add these to what is there."""
        # In one order everywhere, so that writers who meet wait for each other and never in a circle.
        ordered = sorted(
            rows, key=lambda row: (row.day, row.owner, row.team, row.tags, row.route, row.model, row.backend)
        )
        async with self._database.transaction() as connection:
            await connection.execute(_ADD, [{n: getattr(row, n) for n in row.__struct_fields__} for row in ordered])

    async def sums(
        self, by: Sequence[Dimension], *, owner: str | None = None, since: str | None = None, until: str | None = None
    ) -> Sequence[UsageRow]:
        """Sums by these dimensions."""
        columns = [usage.c[name] for name in by]
        query = select(*columns, *(func.sum(usage.c[name]).label(name) for name in _COUNTS))
        query = query.group_by(*columns).order_by(*columns)
        if owner is not None:
            query = query.where(usage.c.owner == owner)
        async with self._database.reading() as connection:
            found = (await connection.execute(_between(query, since, until))).mappings().all()
        # Where nothing was used, the sum over everything is a row of nulls.
        sums: list[UsageRow] = []
        for row in found:
            values: dict[str, Any] = {name: row[name] for name in by}
            values.update((name, int(row[name] or 0)) for name in _COUNTS)
            sums.append(UsageRow(**values))
        return sums if by or any(row.turns for row in sums) else []

    async def spent(self, scope: str, name: str, *, since: str | None = None, until: str | None = None) -> int:
        """The cost of these days."""
        query = _between(select(func.sum(usage.c.cost)), since, until)
        if scope == "tag":
            query = query.where(usage.c.tags.contains(msgspec.json.encode(name).decode(), autoescape=True))
        else:
            query = query.where(usage.c[scope] == name)
        async with self._database.reading() as connection:
            return int(await connection.scalar(query) or 0)

    async def prune(self, *, before: str) -> int:
        """Forget days before this one."""
        async with self._database.transaction() as connection:
            return (await connection.execute(delete(usage).where(usage.c.day < before))).rowcount


def _between(query: Any, since: str | None, until: str | None) -> Any:
    if since is not None:
        query = query.where(usage.c.day >= since)
    return query if until is None else query.where(usage.c.day <= until)
