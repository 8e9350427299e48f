"""How runs end, or go back into the queue: written down under the lease of whoever executed them, until it is written.

Knows which failure is tried again and when. Does not know how a run is executed or stopped.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import structlog

from gateway.clock import Clock
from gateway.config.runs import RunsConfig
from gateway.errors import StoreUnavailable
from gateway.runs.acceptance import queued_of, resumed_of
from gateway.runs.followers import Followers
from gateway.runs.queue import Queue
from gateway.runs.tally import RunsTally
from gateway.store.run_records import RunRecords, RunRow

# Seconds until the next attempt at a run that failed: doubled each time, never more than the second.
RETRY_S: Final = 1.0
_RETRY_MOST_S: Final = 60.0
# Runs that a limit lets wait ask again within so many seconds of each other.
_SPREAD_MOST_S: Final = 30.0
# How long the end of a run is tried to be written down, and the pause in between.
_WRITE_S: Final = 60.0
_WRITE_AGAIN_S: Final = 0.5

_log: Any = structlog.get_logger("gateway.runs")


class Ending:
    """Writes down what became of runs that this process holds.

    Args:
        records: the runs.
        queue: where those go that are executed again.
        followers: what follows the end of a run.
        tally: counts.
        clock: for times and waits.
        config: how often a run is begun.
        retry_s: seconds until the attempt that follows a failed first one.
    """

    def __init__(
        self,
        records: RunRecords,
        queue: Queue,
        followers: Followers,
        tally: RunsTally,
        clock: Clock,
        config: Callable[[], RunsConfig],
        retry_s: float = RETRY_S,
    ) -> None:
        self._records = records
        self._queue = queue
        self._followers = followers
        self._tally = tally
        self._clock = clock
        self._config = config
        self._retry_s = retry_s

    async def failed(self, run: RunRow, error: Mapping[str, Any], *, retryable: bool, after_s: float = 0.0) -> None:
        """An attempt failed: the next one follows where it could help and there is one left, `after_s` seconds at the earliest."""
        if not retryable:
            await self.end(run, "failed", error=error)
        elif run.deliveries >= self._most(run):
            await self.end(run, "failed", error=error, dead=True)
        else:
            wait_s = min(_RETRY_MOST_S, self._retry_s * 2 ** (run.deliveries - 1)) * random.uniform(0.75, 1.25)  # noqa: S311 - spreads
            wait_s = self._followers.wait_s(run) or wait_s
            await self.give_back(run, self._clock.now() + max(wait_s, after_s), counted=True, error=error)

    async def not_yet(self, run: RunRow, error: Mapping[str, Any] | None = None, after_s: float = 0.0) -> None:
        """The run could not be begun, which is nobody's fault: soon again, `after_s` seconds at the earliest, and no delivery is counted."""
        now = self._clock.now()
        # Of many that wait for the same limit one or two get in at a time: the longer they wait, the further apart they ask.
        most_s = 0.0 if error is None else max(0.0, min(_SPREAD_MOST_S, (now - run.created_at) / 2))
        spread_s = random.uniform(0, most_s)  # noqa: S311 - spreads
        await self.give_back(run, now + max(self._retry_s, after_s) + spread_s, counted=False, error=error)

    def receiver(self, run: RunRow) -> str | None:
        """Whom a run tells something, where it is a delivery."""
        return self._followers.receiver(run)

    def _most(self, run: RunRow) -> int:
        return self._followers.most(run) or self._config().max_deliveries

    async def end(
        self,
        run: RunRow,
        status: Literal["completed", "failed", "cancelled"],
        *,
        answer: bytes | None = None,
        meta: Any = None,
        error: Any = None,
        dead: bool = False,
    ) -> None:
        """The run has ended; what follows is recorded with it."""
        now = self._clock.now()
        followers = self._followers.of(run, status, now)

        async def write() -> bool:
            return await self._records.end(
                run, status=status, now=now, answer=answer, meta=meta, error=error, dead=dead, followers=followers
            )

        if await self._written(run, write):
            self._tally.ended("dead" if dead else status, now - run.created_at)
            if followers:
                with contextlib.suppress(StoreUnavailable):  # the keeper finds them
                    await self._queue.put([queued_of(each) for each in followers])

    async def give_back(self, run: RunRow, due_at: float, *, counted: bool, error: Any = None) -> None:
        """The run is executed again from `due_at` on, or is cancelled where that was asked for."""
        status = ""

        async def write() -> bool:
            nonlocal status
            now = self._clock.now()
            done = await self._records.give_back(run, now=now, due_at=due_at, counted=counted, error=error)
            status = done or ""
            return done is not None

        if await self._written(run, write) and status == "queued" and due_at <= self._clock.now():
            with contextlib.suppress(StoreUnavailable):
                await self._queue.put([resumed_of(run)])

    async def _written(self, run: RunRow, write: Callable[[], Awaitable[bool]]) -> bool:
        """Write a run's state down, again where the database is away for a while; False where it is somebody else's."""
        until = self._clock.monotonic() + _WRITE_S
        while True:
            try:
                if await write():
                    return True
            except StoreUnavailable as error:
                if self._clock.monotonic() > until:
                    _log.error("how a run ended could not be written down", run=run.id, reason=error.message)
                    return False
                await self._clock.sleep(_WRITE_AGAIN_S)
            else:
                _log.warning("a run is somebody else's by now", run=run.id, epoch=run.epoch)
                return False
