"""The audit log's chain, on both databases: what was changed or is missing is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, literal, select, update

from gateway.store.audit_records import AuditEntry
from gateway.store.sql import SqlStore
from gateway.store.tables import audit, audit_head


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        made = SqlStore(f"sqlite:///{tmp_path / 'x.db'}")
    else:
        made = SqlStore(await request.getfixturevalue("postgres_server").migrated())
    await made.open()
    yield made
    await made.close()


def entry(number: int) -> AuditEntry:
    return AuditEntry(
        at=float(number),
        actor="ops",
        owner="app",
        action="approval.approved",
        subject=f"apr_{number}",
        arguments='{"a":1}',
        decision="approved",
    )


async def test_entries_stand_on_each_other_and_tampering_is_found(store: SqlStore) -> None:
    assert (await store.audit.verify()).entries == 0
    # Many at once: each has its place.
    await asyncio.gather(*(store.audit.append(entry(number)) for number in range(1, 9)))
    whole = await store.audit.verify()
    assert (whole.entries, whole.faults) == (8, ())
    rows = await store.audit.newest(None, limit=10, after=None)
    assert [row.seq for row in rows] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert rows[0].before == rows[1].hash
    assert [row.seq for row in await store.audit.newest(None, limit=2, after=4)] == [3, 2]


_NAMES = [column.name for column in audit.c]


def _as_sixth(name: str) -> Any:
    """A column of an entry that stands behind the end."""
    return literal(6) if name == "seq" else audit.c[name]


@pytest.mark.parametrize(
    ("tampering", "place"),
    [
        (update(audit).where(audit.c.seq == 3).values(outcome="nothing"), 3),
        (update(audit).where(audit.c.seq == 3).values(actor="nobody"), 3),
        (delete(audit).where(audit.c.seq == 3), 3),
        (delete(audit).where(audit.c.seq >= 4), 4),
        (delete(audit).where(audit.c.seq == 1), 1),
        (delete(audit_head), 5),
        (insert(audit).from_select(_NAMES, select(*map(_as_sixth, _NAMES)).where(audit.c.seq == 5)), 6),
    ],
)
async def test_changed_or_missing_entry_is_named(tmp_path: Path, tampering: Any, place: int) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'x.db'}")
    await store.open()
    try:
        for number in range(1, 6):
            await store.audit.append(entry(number))
        async with store._database.transaction() as connection:
            await connection.execute(tampering)
        assert (await store.audit.verify()).faults[0].seq == place
    finally:
        await store.close()
