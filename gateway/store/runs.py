"""Runs, in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec
from sqlalchemy import and_, case, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio.engine import AsyncConnection

from gateway.store.database import Database
from gateway.store.reopening import reopen
from gateway.store.run_records import ENDED, STEP, UNBOUNDED, Claimed, Priority, Queued, RunRow, Status
from gateway.store.tables import journal, runs, turns

_COLUMNS = [runs.c[name] for name in RunRow.__struct_fields__]
_LARGE = frozenset({"body", "answer", "caller", "meta"})
_SMALL_COLUMNS = [column for column in _COLUMNS if column.name not in _LARGE]
_JSON = ("meta", "error", "progress")
_QUEUED = [runs.c.id, runs.c.trace_id, runs.c.parent_id, runs.c.kind, runs.c.priority]
_HELD = ("running", "cancelling")
_SEARCHED = 5000  # rows one statement looks at, at most
_AT_ONCE = 1000  # rows one transaction removes, at most


class SqlRuns:
    """`RunRecords` over SQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[RunRow], *, keys_since: float = 0.0) -> Sequence[RunRow]:
        """Record these; of those that are known, the runs that are there."""
        async with self._database.transaction() as connection:
            if not any(row.idempotency_key for row in rows):
                # The many: one statement, and only where an id is known one by one.
                try:
                    async with connection.begin_nested():
                        await connection.execute(insert(runs), [_values(row) for row in rows])
                except IntegrityError:
                    pass
                else:
                    return rows
            return [await added_run(connection, row, keys_since) for row in rows]

    async def forget(self, ids: Collection[str]) -> None:
        """Forget runs that could not be queued."""
        async with self._database.transaction() as connection:
            await connection.execute(delete(runs).where(runs.c.id.in_(ids), runs.c.status == "queued"))

    async def get(self, id: str, owner: str | None) -> RunRow | None:  # noqa: A002 - the contract's word
        """One run, whole."""
        query = select(*_COLUMNS).where(runs.c.id == id, *(() if owner is None else (runs.c.owner == owner,)))
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        return None if found is None else _row(found)

    async def by_body(self, owner: str, body_hash: str, *, since: float) -> RunRow | None:
        """The owner's newest run of this body since then, without an idempotency key."""
        query = (
            select(*_COLUMNS)
            .where(runs.c.owner == owner, runs.c.created_at >= since, runs.c.body_hash == body_hash)
            .where(runs.c.idempotency_key.is_(None), runs.c.parent_id.is_(None))
            .order_by(runs.c.created_at.desc())
            .limit(1)
        )
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).mappings().first()
        return None if found is None else _row(found)

    async def newest(
        self, owner: str | None, *, status: Status | None, dead: bool | None, limit: int, after: str | None
    ) -> Sequence[RunRow]:
        """The newest first, without bodies and answers."""
        query = select(*_SMALL_COLUMNS).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(runs.c.owner == owner)
        if status is not None:
            query = query.where(runs.c.status == status)
        if dead is not None:
            query = query.where(runs.c.dead.is_(dead))
        if after is not None:
            last = await self.get(after, owner)
            if last is None:
                return []
            same = and_(runs.c.created_at == last.created_at, runs.c.id < last.id)
            query = query.where(or_(runs.c.created_at < last.created_at, same))
        async with self._database.reading() as connection:
            return [_row(found) for found in (await connection.execute(query)).mappings().all()]

    async def claim(self, ids: Sequence[str], holder: str, *, now: float, until: float, per_key: int | None) -> Claimed:
        """Become the holder of those of these that are queued."""
        held: list[RunRow] = []
        async with self._database.transaction(hasty=True) as connection:
            # Locked, where several may write at once: who comes second sees what the first has made of them.
            query = select(runs.c.id, runs.c.key, runs.c.status).where(runs.c.id.in_(ids))
            query = query.order_by(runs.c.id).with_for_update()
            known = {run: (key, status) for run, key, status in (await connection.execute(query)).all()}
            if per_key is not None and self._database.is_postgresql:
                await _alone(
                    connection, {key for key, status in known.values() if key is not None and status == "queued"}
                )
            for run in dict.fromkeys(ids):
                key, status = known.get(run, (None, None))
                if status != "queued":
                    continue
                if key is not None and per_key is not None and await _busy(connection, key) >= per_key:
                    await connection.execute(update(runs).where(runs.c.id == run).values(waits_for="key"))
                    continue
                values = {
                    "status": "running",
                    "waits_for": "queue",
                    "deliveries": runs.c.deliveries + 1,
                    "epoch": runs.c.epoch + 1,
                    "holder": holder,
                    "held_until": until,
                    "started_at": func.coalesce(runs.c.started_at, now),
                }
                taken = update(runs).where(runs.c.id == run).values(**values).returning(*_COLUMNS)
                held.append(_row((await connection.execute(taken)).mappings().one()))
        return Claimed(held, [run for run in ids if run not in known])

    async def renew(self, holder: str, *, until: float) -> Mapping[str, tuple[int, Status]]:
        """Hold on to everything that is held by this process."""
        query = (
            update(runs)
            .where(runs.c.status.in_(_HELD), runs.c.holder == holder)
            .values(held_until=until)
            .returning(runs.c.id, runs.c.epoch, runs.c.status)
        )
        async with self._database.transaction(hasty=True) as connection:
            return {run: (epoch, status) for run, epoch, status in (await connection.execute(query)).all()}

    async def to_cancel(self, holder: str) -> Sequence[str]:
        """What this process holds that is to be cancelled."""
        query = select(runs.c.id).where(runs.c.status == "cancelling", runs.c.holder == holder)
        async with self._database.reading() as connection:
            return [run for (run,) in (await connection.execute(query)).all()]

    async def report(self, run: RunRow, progress: Any) -> bool:
        """Keep what is reported of a run that is held."""
        async with self._database.transaction(hasty=True) as connection:
            done = await connection.execute(update(runs).where(_held(run)).values(progress=_json(progress)))
            return done.rowcount == 1

    async def end(
        self,
        run: RunRow,
        *,
        status: Status,
        now: float,
        answer: bytes | None = None,
        meta: Any = None,
        error: Any = None,
        dead: bool = False,
        followers: Sequence[RunRow] = (),
    ) -> bool:
        """Commit how a run that is held ended, and with it the runs that follow."""
        values = {
            "status": status,
            "finished_at": now,
            "answer": answer,
            "meta": _json(meta),
            "error": _json(error),
            "dead": dead,
            "held_until": 0.0,
        }
        async with self._database.transaction() as connection:
            if (await connection.execute(update(runs).where(_held(run)).values(**values))).rowcount != 1:
                return False
            for row in followers:
                await added_run(connection, row)
        return True

    async def give_back(
        self, run: RunRow, *, now: float, due_at: float, counted: bool, error: Any = None
    ) -> Status | None:
        """Queue a run again that is held, or end it as cancelled where that was asked for."""
        later = "time" if due_at > now else "queue"
        again: dict[str, Any] = {
            "status": "queued",
            "waits_for": later,
            "due_at": max(due_at, now),
            "holder": "",
            "held_until": 0.0,
            "deliveries": runs.c.deliveries - (0 if counted else 1),
        }
        if error is not None:
            again["error"] = _json(error)
        async with self._database.transaction(hasty=True) as connection:
            done = await connection.execute(update(runs).where(_held(run), runs.c.status == "running").values(**again))
            if done.rowcount == 1:
                return "queued"
            ended = {"status": "cancelled", "finished_at": now, "held_until": 0.0}
            done = await connection.execute(update(runs).where(_held(run)).values(**ended))
            return "cancelled" if done.rowcount == 1 else None

    async def cancel(self, id: str, owner: str | None, *, now: float) -> RunRow | None:  # noqa: A002 - the contract's word
        """End a queued run as cancelled, mark a running one."""
        mine = (runs.c.id == id) if owner is None else and_(runs.c.id == id, runs.c.owner == owner)
        waits = runs.c.status == "queued"
        values = {
            "status": case((waits, "cancelled"), else_="cancelling"),
            "finished_at": case((waits, now), else_=runs.c.finished_at),
        }
        async with self._database.transaction() as connection:
            # One statement: it may go from one to the other meanwhile.
            await connection.execute(
                update(runs).where(mine, runs.c.status.in_(("queued", "running"))).values(**values)
            )
            found = (await connection.execute(select(*_COLUMNS).where(mine))).mappings().first()
        return None if found is None else _row(found)

    async def retry(self, id: str, owner: str | None, *, now: float, forget_from: int | None = None) -> bool:  # noqa: A002 - as above
        """Queue a failed or cancelled run again."""
        mine = (runs.c.id == id) if owner is None else and_(runs.c.id == id, runs.c.owner == owner)
        again = {
            "status": "queued",
            "waits_for": "queue",
            "dead": False,
            "deliveries": 0,
            "due_at": now,
            "finished_at": None,
            "holder": "",
        }
        query = update(runs).where(mine, runs.c.status.in_(("failed", "cancelled"))).values(**again)
        async with self._database.transaction() as connection:
            trace_id = await connection.scalar(query.returning(runs.c.trace_id))
            if trace_id is None:
                return False
            await reopen(connection, trace_id, now=now, forget_from=forget_from)
        return True

    async def steps(self, run: RunRow) -> Mapping[str, Any]:
        """What its steps came to."""
        query = select(journal.c.content).where(journal.c.turn_id == run.trace_id, journal.c.kind == STEP)
        async with self._database.reading() as connection:
            found = [msgspec.json.decode(content) for (content,) in (await connection.execute(query)).all()]
        return {step["name"]: step["value"] for step in found}

    async def keep_step(self, run: RunRow, name: str, value: Any, *, now: float) -> bool:
        """Record a step, as whoever holds the run."""
        mine = journal.c.turn_id == run.trace_id
        async with self._database.transaction() as connection:
            # A write, so that nobody takes the run meanwhile.
            held = update(runs).where(_held(run)).values(epoch=runs.c.epoch)
            if (await connection.execute(held)).rowcount != 1:
                return False
            number = await connection.scalar(select(func.count()).where(mine, journal.c.kind == STEP)) or 0
            await connection.execute(
                insert(journal).values(
                    turn_id=run.trace_id,
                    trace_id=run.trace_id,
                    owner=run.owner,
                    round=number + 1,
                    kind=STEP,
                    position=0,
                    content=_json({"name": name, "value": value}),
                    created_at=now,
                )
            )
        return True

    async def any_open(self) -> bool:
        """Whether there is a run that has not ended."""
        query = select(runs.c.id).where(runs.c.status.in_(("queued", *_HELD))).limit(1)
        async with self._database.reading() as connection:
            return await connection.scalar(query) is not None

    async def holders(self) -> Sequence[str]:
        """Who holds runs."""
        query = select(runs.c.holder).where(runs.c.status.in_(_HELD)).distinct()
        async with self._database.reading() as connection:
            return [holder for (holder,) in (await connection.execute(query)).all()]

    async def lapse(self, *, now: float, max_deliveries: int, gone: Collection[str] = ()) -> Sequence[RunRow]:
        """Take runs from holders whose time is over, and from those that are gone."""
        lost = and_(runs.c.status.in_(_HELD), or_(runs.c.held_until < now, runs.c.holder.in_(gone)))
        async with self._database.reading() as connection:
            # Mostly there are none, and looking takes nobody's turn to write.
            if (await connection.execute(select(runs.c.id).where(lost).limit(1))).first() is None:
                return []
        free = {"holder": "", "held_until": 0.0, "epoch": runs.c.epoch + 1}
        gave_up = _json(_GAVE_UP)
        found: list[RunRow] = []
        async with self._database.transaction() as connection:
            for condition, values in (
                (runs.c.status == "cancelling", {"status": "cancelled", "finished_at": now}),
                (
                    and_(runs.c.deliveries >= max_deliveries, runs.c.kind.not_in(UNBOUNDED)),
                    {"status": "failed", "dead": True, "finished_at": now, "error": gave_up},
                ),
                (runs.c.status == "running", {"status": "queued", "waits_for": "queue", "due_at": now}),
            ):
                query = update(runs).where(lost, condition).values(**free, **values).returning(*_SMALL_COLUMNS)
                found += [_row(each) for each in (await connection.execute(query)).mappings().all()]
        return found

    async def due(self, *, now: float, limit: int) -> Sequence[Queued]:
        """Runs that waited for a time that has come."""
        waiting = (
            select(runs.c.id)
            .where(runs.c.status == "queued", runs.c.waits_for == "time", runs.c.due_at <= now)
            .order_by(runs.c.due_at)
            .limit(limit)
        )
        return await self._into_queue(waiting)

    async def next_due(self) -> float | None:
        """When the next of those that wait for a time is due."""
        query = select(func.min(runs.c.due_at)).where(runs.c.status == "queued", runs.c.waits_for == "time")
        async with self._database.reading() as connection:
            return cast(float | None, await connection.scalar(query))

    async def unblocked(self, per_key: int | None, *, limit: int) -> Sequence[Queued]:
        """Runs that waited for another of their key and need not any more, the oldest of each key."""
        other = runs.alias()
        waits = and_(runs.c.status == "queued", runs.c.waits_for == "key")
        query = select(runs.c.id, runs.c.key).where(waits).order_by(runs.c.due_at).limit(_SEARCHED)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).all()
            if not found:
                return []
            keys = {key for _, key in found}
            counting = select(other.c.key, func.count()).where(
                other.c.key.in_(keys),
                or_(other.c.status.in_(_HELD), and_(other.c.status == "queued", other.c.waits_for == "queue")),
            )
            busy = {row[0]: row[1] for row in (await connection.execute(counting.group_by(other.c.key))).all()}
        free: list[str] = []
        for run, key in found:
            if len(free) < limit and (per_key is None or busy.get(key, 0) < per_key):
                busy[key] = busy.get(key, 0) + 1
                free.append(run)
        return await self._into_queue(free) if free else []

    async def missed(self, *, before: Mapping[Priority, float], now: float, limit: int) -> Sequence[Queued]:
        """Runs that should be in the queue and were due before, the oldest first; due now from here on."""
        late = or_(*(and_(runs.c.priority == lane, runs.c.due_at < time) for lane, time in before.items()))
        query = (
            select(*_QUEUED)
            .where(runs.c.status == "queued", runs.c.waits_for == "queue", late)
            .order_by(runs.c.due_at)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            found = [Queued(*each) for each in (await connection.execute(query)).all()]
        if found:
            async with self._database.transaction(hasty=True) as connection:
                ids = [each.id for each in found]
                await connection.execute(update(runs).where(runs.c.id.in_(ids)).values(due_at=now))
        return found

    async def aside(self) -> int:
        """How many runs wait for their time or their key."""
        query = select(func.count()).where(runs.c.status == "queued", runs.c.waits_for.in_(("time", "key")))
        async with self._database.reading() as connection:
            return await connection.scalar(query) or 0

    async def counts(self) -> Mapping[str, int]:
        """How many runs there are by status, and how many are dead."""
        query = select(runs.c.status, func.count()).group_by(runs.c.status)
        dead = select(func.count()).where(runs.c.status == "failed", runs.c.dead.is_(True))
        async with self._database.reading() as connection:
            found = {row[0]: row[1] for row in (await connection.execute(query)).all()}
            found["dead"] = await connection.scalar(dead) or 0
        return found

    async def prune(self, *, before: float) -> int:
        """Forget runs that ended before then."""
        # Older than it ended: what is not old enough to be looked at is found by an index.
        over = and_(runs.c.created_at < before, runs.c.finished_at < before, runs.c.status.in_(tuple(ENDED)))
        some = select(runs.c.id).where(over).limit(_AT_ONCE)
        gone = 0
        while True:
            async with self._database.reading() as connection:
                ids = [run for (run,) in (await connection.execute(some)).all()]
            if not ids:
                return gone
            # In pages, so that nobody waits long for their turn to write.
            async with self._database.transaction(hasty=True) as connection:
                gone += (await connection.execute(delete(runs).where(runs.c.id.in_(ids)))).rowcount

    async def _into_queue(self, which: Any) -> Sequence[Queued]:
        query = (
            update(runs)
            .where(runs.c.id.in_(which), runs.c.status == "queued")
            .values(waits_for="queue")
            .returning(*_QUEUED)
        )
        async with self._database.transaction(hasty=True) as connection:
            return [Queued(*found) for found in (await connection.execute(query)).all()]


_GAVE_UP = {
    "message": "The run was begun as often as it may be, and whoever executed it ended each time before it did.",
    "type": "server_error",
    "param": None,
    "code": "run_abandoned",
    "status": 500,
}


def _held(run: RunRow) -> Any:
    return and_(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.holder == run.holder, runs.c.status.in_(_HELD))


async def added_run(connection: AsyncConnection, row: RunRow, keys_since: float = 0.0) -> RunRow:
    """Record a run in a transaction that is under way; one that is known stays as it is, and is answered. See `RunRecords.add`."""
    if row.idempotency_key is not None:
        mine = and_(runs.c.owner == row.owner, runs.c.idempotency_key == row.idempotency_key)
        old = and_(mine, runs.c.created_at < keys_since, runs.c.status.in_(tuple(ENDED)))
        await connection.execute(update(runs).where(old).values(idempotency_key=None))
        asked = select(turns.c.turn_id, turns.c.body_hash, turns.c.created_at)
        asked = asked.where(turns.c.owner == row.owner, turns.c.key == row.idempotency_key)
        turn = (await connection.execute(asked.where(turns.c.created_at >= keys_since))).first()
        if turn is not None:
            times = {"created_at": turn.created_at, "due_at": turn.created_at}
            return RunRow(
                id=turn.turn_id, kind="", trace_id=turn.turn_id, owner=row.owner, body_hash=turn.body_hash, **times
            )
    try:
        async with connection.begin_nested():
            await connection.execute(insert(runs).values(**_values(row)))
    except IntegrityError:
        known = runs.c.id == row.id
        if row.idempotency_key is not None:
            known = or_(known, and_(runs.c.owner == row.owner, runs.c.idempotency_key == row.idempotency_key))
        found = (await connection.execute(select(*_COLUMNS).where(known))).mappings().first()
        return row if found is None else _row(found)
    return row


async def _alone(connection: AsyncConnection, keys: Collection[str]) -> None:
    """Be the only one who counts the runs of these keys, until the transaction ends."""
    for key in sorted(keys):
        await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))


async def _busy(connection: AsyncConnection, key: str) -> int:
    query = select(func.count()).where(runs.c.key == key, runs.c.status.in_(_HELD))
    return await connection.scalar(query) or 0


def _values(row: RunRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in RunRow.__struct_fields__}
    return values | {name: _json(values[name]) for name in _JSON}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _row(found: Mapping[Any, Any]) -> RunRow:
    return RunRow(**{**found, **{name: msgspec.json.decode(found[name]) for name in _JSON if name in found}})
