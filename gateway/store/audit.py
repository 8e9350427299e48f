"""The audit log, in the database: entries are added in whoever's transaction says them, and never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.audit_records import BEGINNING, AuditEntry, AuditRow, Fault, Verified, faults_of, hash_of
from gateway.store.database import Database
from gateway.store.tables import audit, audit_head

# Whoever adds an entry holds this lock meanwhile: a number of our own among all advisory locks.
_ADDING: Final = 0x4155_4454
_PAGE: Final = 2000
# More faults than anybody reads.
_MOST_FAULTS: Final = 100


class SqlAudit:
    """`Audit` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, entry: AuditEntry) -> None:
        """Add one entry behind the last."""
        async with self._database.transaction() as connection:
            await added(connection, entry, self._database)

    async def newest(self, owner: str | None, *, limit: int, after: int | None) -> Sequence[AuditRow]:
        """The newest first."""
        query = select(audit).order_by(audit.c.seq.desc()).limit(limit)
        if owner is not None:
            query = query.where(audit.c.owner == owner)
        if after is not None:
            query = query.where(audit.c.seq < after)
        async with self._database.reading() as connection:
            return [_row(found) for found in (await connection.execute(query)).mappings().all()]

    async def verify(self) -> Verified:
        """Go along the whole chain."""
        faults: list[Fault] = []
        last, before = 0, BEGINNING
        async with self._database.reading() as connection:
            beyond = await connection.scalar(select(audit.c.seq).order_by(audit.c.seq.desc()).limit(1))
            # Read behind it: no entry stands there that it does not know of.
            head = (await connection.execute(select(audit_head.c.seq, audit_head.c.hash))).first()
            end: int = head.seq if head is not None else 0
            while len(faults) < _MOST_FAULTS:
                page = select(audit).where(audit.c.seq > last, audit.c.seq <= end).order_by(audit.c.seq).limit(_PAGE)
                rows = [_row(found) for found in (await connection.execute(page)).mappings().all()]
                if not rows:
                    break
                for row in rows:
                    faults += faults_of(row, last, before)
                    last, before = row.seq, row.hash
        if last < end:
            faults.append(Fault(last + 1, f"entries {last + 1} to {end} are missing at the end"))
        elif head is not None and before != head.hash and not faults:
            faults.append(Fault(last, "the log ends with another entry than it did"))
        elif head is None and beyond is not None:
            faults.append(Fault(beyond, "there are entries, and where the log ends is missing"))
        elif beyond is not None and beyond > end:
            faults.append(Fault(beyond, "there are entries behind the end of the log"))
        return Verified(end, before, tuple(faults[:_MOST_FAULTS]))


async def added(connection: AsyncConnection, entry: AuditEntry, database: Database) -> None:
    """Add an entry in a transaction that is under way; it is there if and only if that commits."""
    if database.is_postgresql:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADDING})
    head = (await connection.execute(select(audit_head.c.seq, audit_head.c.hash))).first()
    seq, before = (head.seq + 1, head.hash) if head is not None else (1, BEGINNING)
    digest = hash_of(seq, entry, before)
    values = {name: getattr(entry, name) for name in AuditEntry.__struct_fields__}
    await connection.execute(insert(audit).values(seq=seq, before=before, hash=digest, **values))
    if head is None:
        await connection.execute(insert(audit_head).values(id=1, seq=seq, hash=digest))
    else:
        await connection.execute(update(audit_head).where(audit_head.c.id == 1).values(seq=seq, hash=digest))


def _row(found: Mapping[Any, Any]) -> AuditRow:
    entry = AuditEntry(**{name: found[name] for name in AuditEntry.__struct_fields__})
    return AuditRow(seq=found["seq"], entry=entry, before=found["before"], hash=found["hash"])
