"""Takes runs on, tells of them, cancels them, begins them again: `Runs`, over records and a queue.

Knows the order in which record and queue change: a run is in the database before it is queued, so that a queue may lose it. Runs
that arrive together are committed together. Does not execute anything.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from gateway.approvals.desk import EXECUTES
from gateway.clock import Clock
from gateway.config.runs import RunsConfig
from gateway.errors import (
    BackgroundUnavailable,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    QueueFull,
    RunEnded,
    StoreUnavailable,
)
from gateway.runs.followers import Followers
from gateway.runs.queue import Queue
from gateway.runs.run import NewRun
from gateway.runs.stages import LAST, Stages
from gateway.store.run_records import Queued, RunRecords, RunRow, Status

# Seconds within which an SDK's retry finds the run that its first attempt began.
_RETRIED_S: Final = 600.0
# Runs of one commit.
_AT_ONCE: Final = 256
_LOOK_S: Final = 0.2
_FULL_RETRY_S: Final = 5.0
KEYS_S: Final = 86_400.0
# What waits elsewhere than in the queue is counted once a second, and takes never more than a fiftieth of the time.
_ASIDE_S: Final = 1.0
_ASIDE_SHARE: Final = 50.0


class Acceptance:
    """`Runs` over a database and a queue.

    Args:
        records: the runs.
        queue: wakes workers.
        clock: for times and waits.
        config: the limits as they are now.
        stages: from where runs go on.
        followers: what follows the end of a run that nobody held.
        keys_s: seconds for which an `Idempotency-Key` means the same run.

    Attributes:
        reachable: whether the queue could be asked when it was last tried.
    """

    def __init__(
        self,
        records: RunRecords,
        queue: Queue,
        clock: Clock,
        config: Callable[[], RunsConfig],
        stages: Stages,
        followers: Followers,
        keys_s: Callable[[], float] = lambda: KEYS_S,
    ) -> None:
        self._records = records
        self._queue = queue
        self._clock = clock
        self._config = config
        self._followers = followers
        self._stages = stages
        self._keys_s = keys_s
        self._aside = 0
        self._aside_until = 0.0
        self._arrived: list[tuple[RunRow, asyncio.Future[RunRow]]] = []
        self._committing: asyncio.Task[None] | None = None
        self.reachable = True

    async def submit(self, new: NewRun) -> RunRow:
        """Record and queue a run. See `Runs.submit`."""
        row = self._row(new)
        if new.retried and new.idempotency_key is None:
            since = self._clock.now() - _RETRIED_S
            before = await self._records.by_body(new.owner, row.body_hash, since=since)
            if before is not None:
                return before
        future: asyncio.Future[RunRow] = asyncio.get_running_loop().create_future()
        self._arrived.append((row, future))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_arrived(), name="runs-commit")
        # Who gives up waiting has asked all the same: the run is taken on.
        there = await asyncio.shield(future)
        if there.id != row.id and (there.body_hash, there.kind) != (row.body_hash, row.kind):
            raise IdempotencyConflict("This `Idempotency-Key` was used for another request.")
        return there

    async def _commit_arrived(self) -> None:
        while self._arrived:
            batch, self._arrived = self._arrived[:_AT_ONCE], self._arrived[_AT_ONCE:]
            rows = [row for row, _ in batch]
            try:
                there = await self._take_on(rows)
            except Exception as error:  # noqa: BLE001 - whoever asked gets it, whatever it is
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()
            else:
                for (_, future), row in zip(batch, there, strict=True):
                    if isinstance(row, QueueFull):
                        future.set_exception(row)
                        future.exception()
                    elif not future.done():
                        future.set_result(row)
        self._committing = None

    async def _take_on(self, rows: Sequence[RunRow]) -> Sequence[RunRow | QueueFull]:
        limit = self._config().queue_max
        room = max(0, limit - await self.size() - await self._waiting_aside())
        fit = rows[:room]
        there: list[RunRow | QueueFull] = []
        if fit:
            known = await self._records.add(fit, keys_since=self._clock.now() - self._keys_s())
            there += known
            fresh = [row for row, known_row in zip(fit, known, strict=True) if row is known_row]
            self._aside += sum(row.waits_for != "queue" for row in fresh)
            try:
                await self._queue.put([queued_of(row) for row in fresh if row.waits_for == "queue"])
            except StoreUnavailable as error:
                # They are not taken on: whoever asked is told so, and asks again.
                await self._records.forget([row.id for row in fresh])
                raise _away(error) from error
        full = QueueFull(f"{limit} runs are queued (`runs.queue_max`).", retry_after_s=_FULL_RETRY_S)
        return [*there, *(full for _ in rows[room:])]

    async def _waiting_aside(self) -> int:
        """How many runs wait for their time or their key, as of a second ago, and those that were taken on since."""
        started = self._clock.monotonic()
        if started >= self._aside_until:
            self._aside = await self._records.aside()
            now = self._clock.monotonic()
            self._aside_until = now + max(_ASIDE_S, _ASIDE_SHARE * (now - started))
        return self._aside

    async def size(self) -> int:
        """How many runs are in the queue. Raises `BackgroundUnavailable` where it cannot be reached."""
        try:
            size = await self._queue.size()
        except StoreUnavailable as error:
            self.reachable = False
            raise _away(error) from error
        self.reachable = True
        return size

    async def get(self, id: str, owner: str | None) -> RunRow | None:  # noqa: A002 - the contract's word
        """One run, with its answer."""
        return await self._records.get(id, owner)

    async def newest(
        self,
        owner: str | None,
        *,
        status: Status | None = None,
        dead: bool | None = None,
        limit: int,
        after: str | None,
    ) -> Sequence[RunRow]:
        """The newest first."""
        return await self._records.newest(owner, status=status, dead=dead, limit=limit, after=after)

    async def cancel(self, id: str, owner: str | None) -> RunRow:  # noqa: A002 - as above
        """Ask for its end. See `Runs.cancel`."""
        before = await self._records.get(id, owner)
        if before is not None and before.kind in EXECUTES.values() and not before.over:
            raise InvalidRequest(
                f"The run {id} makes what was approved, or undoes what has failed: it cannot be cancelled.", param="id"
            )
        found = await self._records.cancel(id, owner, now=self._clock.now())
        if found is None:
            raise _no_run(id)
        if found.status == "cancelled":
            # One that nobody held: what follows its end is recorded here, once.
            following = self._followers.of(found, "cancelled", self._clock.now())
            if following:
                await self._records.add(following)
        return found

    async def stages(self, run: RunRow) -> Sequence[str] | None:
        """From where a run can go on that is begun again; None for one that cannot be."""
        return await self._stages.of(run) if run.status in ("failed", "cancelled") else None

    async def retry(self, id: str, owner: str | None, stage: str = LAST) -> RunRow:  # noqa: A002 - as above
        """Begin a run again that failed or was cancelled; it goes on from one of its stages, mostly its last recorded step.

        Raises:
            NotFound: there is none of this owner's.
            RunEnded: it is neither failed nor cancelled.
            InvalidRequest: it has no such stage, or an effect was made since.
            BackgroundUnavailable: the queue cannot be reached.
        """
        forget_from: int | None = None
        if stage != LAST:
            before = await self._records.get(id, owner)
            if before is None:
                raise _no_run(id)
            if before.over:
                forget_from = await self._stages.first_forgotten(before, stage)
        if not await self._records.retry(id, owner, now=self._clock.now(), forget_from=forget_from):
            found = await self._records.get(id, owner)
            if found is None:
                raise _no_run(id)
            raise RunEnded(f"The run {id} is {found.status}; only one that failed or was cancelled begins again.")
        found = await self._records.get(id, owner)
        if found is None:
            raise _no_run(id)
        try:
            await self._queue.put([queued_of(found)])
        except StoreUnavailable as error:
            raise _away(error) from error
        return found

    async def ended(self, id: str, owner: str | None, timeout_s: float) -> RunRow | None:  # noqa: A002 - as above
        """Wait until it has ended, at most `timeout_s`."""
        until = self._clock.monotonic() + timeout_s
        while True:
            found = await self._records.get(id, owner)
            if found is None or found.over or self._clock.monotonic() >= until:
                return found
            await self._clock.sleep(min(_LOOK_S, max(0.0, until - self._clock.monotonic())))

    async def close(self) -> None:
        """Commit what has arrived."""
        if self._committing is not None:
            await asyncio.wait([self._committing], timeout=5)

    def _row(self, new: NewRun) -> RunRow:
        now = self._clock.now()
        later = new.not_before is not None and new.not_before > now
        return RunRow(
            id=new.id,
            kind=new.kind,
            trace_id=new.trace_id,
            owner=new.owner,
            parent_id=new.parent_id,
            priority=new.priority,
            key=new.key,
            waits_for="time" if later else "queue",
            body=new.body,
            body_hash=hashlib.sha256(new.kind.encode() + b"\0" + new.caller + b"\0" + new.body).hexdigest(),
            caller=new.caller,
            idempotency_key=new.idempotency_key,
            created_at=now,
            due_at=new.not_before if later and new.not_before is not None else now,
        )


def queued_of(row: RunRow) -> Queued:
    """What is queued of a run."""
    return Queued(row.id, row.trace_id, row.parent_id, row.kind, row.priority)


def resumed_of(row: RunRow) -> Queued:
    """What is queued of a run that was under way already: before all that wait to be begun."""
    return queued_of(row)._replace(priority="high")


def _away(error: StoreUnavailable) -> BackgroundUnavailable:
    return BackgroundUnavailable(
        f"Background runs cannot be taken on: {error.message} Requests without `background` are answered.",
        retry_after_s=2,
    )


def _no_run(id: str) -> NotFound:  # noqa: A002 - the contract's word
    return NotFound(f"There is no run {id!r}.")
