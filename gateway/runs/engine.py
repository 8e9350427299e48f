"""Everything about runs in one process: takes them on and, where it is to, executes them.

Knows which parts there are and how they start and stop. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.clock import Clock
from gateway.config.runs import RunsConfig, WebhookConfig
from gateway.errors import BackgroundUnavailable, GatewayError, StoreUnavailable
from gateway.runs.acceptance import KEYS_S, Acceptance
from gateway.runs.ending import RETRY_S, Ending
from gateway.runs.followers import KIND as WEBHOOK
from gateway.runs.followers import Followers
from gateway.runs.keeper import LOOK_S, MISSED_S, Keeper
from gateway.runs.lasting import lasting
from gateway.runs.queue import Queue
from gateway.runs.run import Handler
from gateway.runs.schedules import Schedules
from gateway.runs.stages import Stages
from gateway.runs.tally import RunsTally
from gateway.runs.webhooks import WebhookHandler
from gateway.runs.worker import LEASE_S, Worker
from gateway.security.principal import Principal
from gateway.store.run_records import RunRecords

# Seconds between two looks at how many runs there are, and whether the queue is there, for the metrics and `/readyz`.
_COUNT_S: Final = 5.0
_COUNT_SHARE: Final = 50.0


class Pace(NamedTuple):
    """Seconds of a lease, between two looks of the keeper, until a run counts as missed by its queue, and until the first
    attempt that follows a failed one.
    """

    lease_s: float = LEASE_S
    look_s: float = LOOK_S
    missed_s: float = MISSED_S
    retry_s: float = RETRY_S


USUAL_PACE: Final = Pace()


class Engine:
    """Runs, in this process.

    Args:
        records: the runs.
        queue: wakes workers.
        handlers: who executes runs of a kind, or None; webhooks are the engine's own.
        executes: whether this process executes runs.
        holder: this process, and `alive` whether another may still be at work.
        writes: whether an effect of a turn (trace id, owner) is still being made here.
        describe: an error as it is recorded.
        named: who a key makes of its bearer.
        config, webhooks: the settings as they are now.
        tally: counts.
        clock: for times and waits.
        laid_aside: told of the approvals for which a run was laid aside.
        undoes: whether there is anything that could be undone of a run that fails.
        stages: from where runs go on that are begun again.
        keys_s: seconds for which an `Idempotency-Key` means the same run.

    Attributes:
        runs: takes runs on, tells of them, cancels them.
        counts: how many runs there are by status, as of a few seconds ago.
    """

    def __init__(
        self,
        records: RunRecords,
        queue: Queue,
        handlers: Callable[[str], Handler | None],
        *,
        executes: bool,
        holder: str,
        alive: Callable[[str], bool],
        writes: Callable[[str, str], Awaitable[bool]],
        describe: Callable[[GatewayError], Mapping[str, Any]],
        named: Callable[[str], Awaitable[Principal | None]],
        config: Callable[[], RunsConfig],
        webhooks: Callable[[], Mapping[str, WebhookConfig]],
        tally: RunsTally,
        clock: Clock,
        stages: Stages,
        keys_s: Callable[[], float] = lambda: KEYS_S,
        pace: Pace = USUAL_PACE,
        laid_aside: Callable[[Sequence[str]], Awaitable[None]] | None = None,
        undoes: Callable[[], bool] = lambda: False,
    ) -> None:
        self.executes = executes
        self.counts: Mapping[str, int] = {}
        self._records = records
        self._queue = queue
        self._clock = clock
        followers = Followers(webhooks, undoes)
        self.runs = Acceptance(records, queue, clock, config, stages, followers, keys_s)
        self._telling = WebhookHandler(webhooks, clock)
        self.worker = Worker(
            records,
            queue,
            lambda kind: self._telling if kind == WEBHOOK else handlers(kind),
            holder,
            writes,
            describe,
            Ending(records, queue, followers, tally, clock, config, pace.retry_s),
            tally,
            clock,
            config,
            lease_s=pace.lease_s,
            laid_aside=laid_aside,
        )
        schedules = Schedules(self.runs, lambda: config().schedules, named, clock)
        self._keeper = Keeper(
            records,
            queue,
            followers,
            schedules,
            alive,
            tally,
            clock,
            config,
            look_s=pace.look_s,
            missed_s=pace.missed_s,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin: count, and execute where this process does."""
        self._tasks.append(asyncio.create_task(lasting(self._count, "count", self._clock), name="runs-count"))
        if self.executes:
            self._keeper.start()
            self.worker.start()

    def drain(self, grace_s: float) -> asyncio.Task[None]:
        """Take no more runs, let those under way end within `grace_s`, hand back the rest; the task that does it."""
        if self._draining is None:
            self._draining = asyncio.create_task(self.worker.drain(grace_s), name="runs-drain")
        return self._draining

    async def close(self) -> None:
        """Stop; what is still under way is handed back."""
        if self.executes:
            await self.drain(0.0)
        await self._keeper.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.worker.close()
        await self.runs.close()
        await self._telling.close()
        await self._queue.close()

    async def _count(self) -> None:
        while True:
            started = self._clock.monotonic()
            with contextlib.suppress(StoreUnavailable, BackgroundUnavailable):
                await self.runs.size()
                self.counts = await self._records.counts()
            # Of millions of runs counting takes seconds: it never takes more than a fiftieth of the time.
            await self._clock.sleep(max(_COUNT_S, _COUNT_SHARE * (self._clock.monotonic() - started)))
