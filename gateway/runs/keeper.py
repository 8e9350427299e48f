"""Looks after runs that nobody holds: those whose worker died, whose time has come, whose queue forgot them.

Everything it does is one step in the database, so any number of processes may do it at once and none can leave anything locked.
Knows no run's inside.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import structlog

from gateway.clock import Clock
from gateway.config.runs import RunsConfig
from gateway.errors import StoreUnavailable
from gateway.runs.acceptance import queued_of, resumed_of
from gateway.runs.followers import Followers
from gateway.runs.lasting import lasting
from gateway.runs.queue import Queue
from gateway.runs.schedules import Schedules
from gateway.runs.tally import RunsTally
from gateway.store.run_records import PRIORITIES, Priority, RunRecords

# Seconds between two looks.
LOOK_S: Final = 1.0
# Seconds that a run may be in the database and not yet in the queue: whoever submits it is between both.
MISSED_S: Final = 10.0
_MISSED_EVERY: Final = 5
_PAGE: Final = 1000
_PRUNE_S: Final = 3600.0
_DAY_S: Final = 86_400.0

_log: Any = structlog.get_logger("gateway.runs")


class Keeper:
    """Looks once a second.

    Args:
        records: the runs.
        queue: where those belong that wait.
        followers: what follows the end of a run that is given up.
        schedules: begins runs at their times.
        alive: whether a holder may still be at work.
        tally: counts.
        clock: for times and waits.
        config: how often, how many.
    """

    def __init__(
        self,
        records: RunRecords,
        queue: Queue,
        followers: Followers,
        schedules: Schedules,
        alive: Callable[[str], bool],
        tally: RunsTally,
        clock: Clock,
        config: Callable[[], RunsConfig],
        *,
        look_s: float = LOOK_S,
        missed_s: float = MISSED_S,
    ) -> None:
        self._records = records
        self._queue = queue
        self._followers = followers
        self._schedules = schedules
        self._alive = alive
        self._tally = tally
        self._clock = clock
        self._config = config
        self._look_s = look_s
        self._missed_s = missed_s
        self._looks = 0
        self._pruned_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._task = asyncio.create_task(lasting(self._run, "keeper", self._clock), name="runs-keeper")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """Look once.

        Raises:
            StoreUnavailable: the database or the queue is away; what was not done is done the next time.
        """
        now = self._clock.now()
        if await self._queue.is_new():
            await self._queue_again(dict.fromkeys(PRIORITIES, now), "the queue had forgotten its runs")
        # Where there is nothing to look after, looking costs one read.
        if await self._records.any_open():
            await self._look_after(now)
        await self._schedules.begin()
        if now - self._pruned_at > _PRUNE_S:
            await self._records.prune(before=now - self._config().keep_days * _DAY_S)
            self._pruned_at = now

    async def _look_after(self, now: float) -> None:
        await self._lapse(now)
        next_due = await self._records.next_due()
        if next_due is not None and next_due <= now:
            await self._queue.put(await self._records.due(now=now, limit=_PAGE))
        await self._queue.put(await self._records.unblocked(self._config().per_key, limit=_PAGE))
        self._looks += 1
        if self._looks % _MISSED_EVERY == 0:
            oldest = await self._queue.oldest()
            before = {lane: min(now, oldest.get(lane, now)) - self._missed_s for lane in PRIORITIES}
            await self._queue_again(before, "runs were not in the queue")

    async def _lapse(self, now: float) -> None:
        gone = [holder for holder in await self._records.holders() if holder and not self._alive(holder)]
        lapsed = await self._records.lapse(now=now, max_deliveries=self._config().max_deliveries, gone=gone)
        for run in lapsed:
            _log.warning("nobody executes this run any more", run=run.id, status=run.status, deliveries=run.deliveries)
            if run.over:
                self._tally.ended("dead" if run.dead else run.status, now - run.created_at)
        followers = [each for run in lapsed if run.over for each in self._followers.of(run, run.status, now)]
        if followers:
            await self._records.add(followers)
        again = [resumed_of(run) for run in lapsed if run.status == "queued"]
        await self._queue.put([*again, *(queued_of(run) for run in followers)])

    async def _queue_again(self, before: dict[Priority, float], why: str) -> None:
        total = 0
        while found := await self._records.missed(before=before, now=self._clock.now(), limit=_PAGE):
            await self._queue.put(found)
            total += len(found)
        if total:
            _log.warning("runs were queued again", runs=total, reason=why)

    async def _run(self) -> None:
        well = True
        while True:
            try:
                await self.look()
            except StoreUnavailable as error:
                if well:
                    _log.warning("runs cannot be looked after", reason=error.message)
                well = False
            else:
                well = True
            await self._clock.sleep(self._look_s)
