"""Approvals, in the database."""

from __future__ import annotations

import hmac
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.approval_records import (
    MOST_WRONG,
    ApprovalRow,
    ApprovalStatus,
    Decided,
    Decision,
    values_of,
)
from gateway.store.audit import added
from gateway.store.audit_records import AuditEntry
from gateway.store.database import Database
from gateway.store.run_records import RunRow
from gateway.store.runs import added_run
from gateway.store.tables import approvals, runs

_COLUMNS = [approvals.c[name] for name in ApprovalRow.__struct_fields__]
# Of a conversation with very many, what is looked at.
_MOST = 100


class SqlApprovals:
    """`Approvals` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, row: ApprovalRow, followers: Sequence[RunRow], entry: AuditEntry) -> ApprovalRow:
        """Record this, or find the approval that this call has asked for before."""
        place = and_(
            approvals.c.owner == row.owner,
            approvals.c.turn_id == row.turn_id,
            approvals.c.round == row.round,
            approvals.c.position == row.position,
        )
        async with self._database.transaction() as connection:
            try:
                async with connection.begin_nested():
                    await connection.execute(insert(approvals).values(**values_of(row)))
            except IntegrityError:
                found = (await connection.execute(select(*_COLUMNS).where(place))).mappings().first()
                return row if found is None else _row(found)
            for each in followers:
                await added_run(connection, each)
            await added(connection, entry, self._database)
        return row

    async def get(self, id: str, owner: str | None) -> ApprovalRow | None:  # noqa: A002 - the contract's word
        """One approval."""
        found = await self._find(select(*_COLUMNS).where(approvals.c.id == id), owner)
        return found[0] if found else None

    async def of_thread(self, owner: str, ids: Sequence[str], session: str | None) -> Sequence[ApprovalRow]:
        """The owner's approvals of these ids, and of this session."""
        which: Any = approvals.c.id.in_(ids[-_MOST:])
        if session is not None:
            which = or_(which, approvals.c.session == session)
        newest = select(*_COLUMNS).where(which).order_by(approvals.c.created_at.desc(), approvals.c.id).limit(_MOST)
        return (await self._find(newest, owner))[::-1]

    async def of_call(self, owner: str, tool: str, arguments_hash: str) -> Sequence[ApprovalRow]:
        """The owner's approvals of such calls, the newest first."""
        query = (
            select(*_COLUMNS)
            .where(approvals.c.arguments_hash == arguments_hash, approvals.c.tool == tool)
            .order_by(approvals.c.created_at.desc())
            .limit(_MOST)
        )
        return await self._find(query, owner)

    async def newest(
        self, owner: str | None, *, status: ApprovalStatus | None, limit: int, after: str | None, now: float
    ) -> Sequence[ApprovalRow]:
        """The newest first."""
        query = select(*_COLUMNS).order_by(approvals.c.created_at.desc(), approvals.c.id.desc()).limit(limit)
        pending = approvals.c.status == "pending"
        if status == "pending":
            query = query.where(pending, approvals.c.expires_at > now)
        elif status == "expired":
            query = query.where(pending, approvals.c.expires_at <= now)
        elif status is not None:
            query = query.where(approvals.c.status == status)
        if after is not None:
            last = await self.get(after, owner)
            if last is None:
                return []
            same = and_(approvals.c.created_at == last.created_at, approvals.c.id < last.id)
            query = query.where(or_(approvals.c.created_at < last.created_at, same))
        return await self._find(query, owner)

    async def decide(
        self,
        id: str,  # noqa: A002 - the contract's word
        decision: Decision,
        *,
        by: str,
        reason: str | None,
        code: str | None,
        now: float,
        run: RunRow | None,
        undo: RunRow | None,
        entry: AuditEntry,
    ) -> Decided:
        """Decide a pending one, once, whoever races."""
        async with self._database.transaction() as connection:
            # Whoever comes second waits here, on either kind of database, and finds it decided.
            asked = select(*_COLUMNS).where(approvals.c.id == id).with_for_update()
            found = (await connection.execute(asked)).mappings().first()
            if found is None:
                return Decided(None, done=False)
            row = _row(found)
            if row.status_at(now) != "pending":
                return Decided(row, done=False)
            if await self._is_given_up(connection, row):
                changed = await _changed(connection, id, status="withdrawn", decided_at=now, reason="its run has ended")
                return Decided(changed, done=False)
            if decision == "approved" and row.code is not None and not _same(code, row.code):
                wrong = row.wrong + 1
                if wrong < MOST_WRONG:
                    return Decided(await _changed(connection, id, wrong=wrong), done=False, wrong_code=True)
                locked = await _changed(connection, id, wrong=wrong, status="locked", decided_at=now, decided_by=by)
                said = msgspec.structs.replace(entry, action="approval.locked", decision="locked")
                await added(connection, said, self._database)
                if undo is not None:
                    await added_run(connection, undo)
                await _woken(connection, row.turn_id, now)
                return Decided(locked, done=False, wrong_code=True)
            values: dict[str, Any] = {"status": decision, "decided_at": now, "decided_by": by, "reason": reason}
            if run is not None:
                await added_run(connection, run)
                values["run_id"] = run.id
            decided = await _changed(connection, id, **values)
            await added(connection, entry, self._database)
            if decision != "approved":
                if undo is not None:
                    await added_run(connection, undo)
                await _woken(connection, row.turn_id, now)
            return Decided(decided, done=True)

    async def finish(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        ok: bool,
        content: str,
        now: float,
        undo: RunRow | None,
        entry: AuditEntry,
    ) -> bool:
        """Commit what came of an approved one, and wake the run that waits for it."""
        open_one = and_(approvals.c.id == id, approvals.c.status == "approved", approvals.c.finished_at.is_(None))
        values = {"ok": ok, "content": content, "finished_at": now}
        async with self._database.transaction() as connection:
            done = await connection.execute(
                update(approvals).where(open_one).values(**values).returning(approvals.c.turn_id)
            )
            turn_id = done.scalar()
            if turn_id is None:
                return False
            await added(connection, entry, self._database)
            if undo is not None:
                await added_run(connection, undo)
            await _woken(connection, turn_id, now)
        return True

    async def told(self, ids: Sequence[str], *, now: float) -> None:
        """Note that a model was told of these."""
        async with self._database.transaction(hasty=True) as connection:
            untold = and_(approvals.c.id.in_(ids), approvals.c.told_at.is_(None))
            await connection.execute(update(approvals).where(untold).values(told_at=now))

    async def wake(self, turn_id: str, *, now: float) -> None:
        """Let the run of a turn go on that waits for a time."""
        async with self._database.transaction(hasty=True) as connection:
            await _woken(connection, turn_id, now)

    async def prune(self, *, before: float) -> int:
        """Forget those that were decided, or expired, before then."""
        over = or_(
            and_(approvals.c.status == "pending", approvals.c.expires_at < before),
            and_(approvals.c.status != "pending", approvals.c.status != "approved", approvals.c.decided_at < before),
            approvals.c.finished_at < before,
        )
        async with self._database.transaction() as connection:
            return (await connection.execute(delete(approvals).where(over))).rowcount

    async def _is_given_up(self, connection: AsyncConnection, row: ApprovalRow) -> bool:
        """Whether a background run has asked that was cancelled, or has failed."""
        query = select(runs.c.status).where(runs.c.id == f"run_{row.turn_id}")
        return await connection.scalar(query) in ("cancelling", "cancelled", "failed") and row.kind == "call"

    async def _find(self, query: Any, owner: str | None) -> list[ApprovalRow]:
        if owner is not None:
            query = query.where(approvals.c.owner == owner)
        async with self._database.reading() as connection:
            return [_row(found) for found in (await connection.execute(query)).mappings().all()]


async def _changed(connection: AsyncConnection, id: str, **values: Any) -> ApprovalRow:  # noqa: A002 - the contract's word
    query = update(approvals).where(approvals.c.id == id).values(**values).returning(*_COLUMNS)
    return _row((await connection.execute(query)).mappings().one())


async def _woken(connection: AsyncConnection, turn_id: str, now: float) -> None:
    waits = and_(runs.c.id == f"run_{turn_id}", runs.c.status == "queued", runs.c.waits_for == "time")
    await connection.execute(update(runs).where(waits, runs.c.due_at > now).values(due_at=now))


def _same(typed: str | None, code: str) -> bool:
    # Whoever writes Chinese may type digits of full width.
    plain = unicodedata.normalize("NFKC", typed or "").strip()
    return hmac.compare_digest(plain.encode(), code.encode())


def _row(found: Mapping[Any, Any]) -> ApprovalRow:
    values = dict(found)
    values["headers"] = msgspec.json.decode(values["headers"])
    values["why"] = tuple(msgspec.json.decode(values["why"]))
    return ApprovalRow(**values)
