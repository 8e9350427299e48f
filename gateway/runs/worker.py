"""Executes runs: takes what is queued, claims it in the database, and has its handler take it to its end.

Knows leases, cancellation, failed attempts and the way to stop. What a run does is its handler's; what becomes of runs that nobody
holds is the keeper's. A run that this process lost is cancelled here: whoever holds it now goes on from what is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import structlog

from gateway.clock import Clock
from gateway.config.runs import RunsConfig
from gateway.errors import AwaitsApproval, ConfigStale, Draining, GatewayError, QueueFull, RateLimited, StoreUnavailable
from gateway.runs.ending import Ending
from gateway.runs.lasting import lasting
from gateway.runs.queue import Queue, Taken
from gateway.runs.run import Done, Handler, Keeping
from gateway.runs.tally import RunsTally
from gateway.store.run_records import RunRecords, RunRow

# A run is held this long from the last sign of life of whoever executes it, who gives three in that time.
LEASE_S: Final = 15.0
# Deliveries to one receiver that are under way at once: beside the runs, so that one who does not answer stops nothing else.
# What is more waits for so many seconds.
DELIVERIES: Final = 16
_LATER_S: Final = 10.0
# Seconds between two looks at what is to be cancelled.
LOOK_S: Final = 0.25
_WAIT_S: Final = 5.0
# Seconds that a run is given to let go once it is told to.
_LET_GO_S: Final = 5.0
_LET_GO_LEAST_S: Final = 2.0
_SETTLE_S: Final = 0.1

Why = Literal["cancelled", "lost", "handed back"]

_log: Any = structlog.get_logger("gateway.runs")


class _Running:
    """A run under way. `why` is set before its task is cancelled; `receiver` is whom it tells something, where it is a delivery."""

    def __init__(self, run: RunRow, receiver: str | None) -> None:
        self.run = run
        self.receiver = receiver
        self.why: Why | None = None
        self.work: asyncio.Task[Done] | None = None

    def stop(self, why: Why) -> None:
        if self.why is None or why == "lost":
            self.why = why
            if self.work is not None:
                self.work.cancel()


class _Attempt:
    """What a handler is told of its attempt."""

    def __init__(self, run: RunRow, records: RunRecords) -> None:
        self._run = run
        self._records = records

    @property
    def number(self) -> int:
        return self._run.deliveries

    async def report(self, progress: Mapping[str, Any]) -> None:
        await self._records.report(self._run, progress)


class Worker:
    """Executes runs in this process.

    Args:
        records: the runs.
        queue: what wakes it.
        handlers: who executes runs of a kind, or None.
        holder: this process.
        writes: whether an effect of this turn (trace id, owner) is still being made by this process.
        describe: an error as it is recorded.
        ending: writes down what became of a run.
        tally: counts.
        clock: for times and waits.
        config: how many at once, how often.
        lease_s: seconds a run is held without a sign of life.
        laid_aside: told of the approvals for which a run was laid aside: one of them may be settled by then.
    """

    def __init__(
        self,
        records: RunRecords,
        queue: Queue,
        handlers: Callable[[str], Handler | None],
        holder: str,
        writes: Callable[[str, str], Awaitable[bool]],
        describe: Callable[[GatewayError], Mapping[str, Any]],
        ending: Ending,
        tally: RunsTally,
        clock: Clock,
        config: Callable[[], RunsConfig],
        *,
        lease_s: float = LEASE_S,
        laid_aside: Callable[[Sequence[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._records = records
        self._queue = queue
        self._handlers = handlers
        self._holder = holder
        self._writes = writes
        self._describe = describe
        self._ending = ending
        self._tally = tally
        self._clock = clock
        self._config = config
        self._lease_s = lease_s
        self._laid_aside = laid_aside
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slot = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._beginning: asyncio.Task[None] | None = None
        self.reachable = True
        self.stopping = False

    @property
    def busy(self) -> int:
        """How many runs are under way here."""
        return len(self._running)

    def start(self) -> None:
        """Begin to take runs, in tasks of its own."""
        for name, loop in (("take", self._take), ("hold", self._hold), ("heed", self._heed)):
            self._loops.append(asyncio.create_task(lasting(loop, name, self._clock), name=f"runs-{name}"))

    async def drain(self, grace_s: float) -> None:
        """Take no more; let what is under way end within `grace_s`, and hand back what does not."""
        if self.stopping:
            return
        self.stopping = True
        if not self._loops:
            return
        self._loops[0].cancel()
        await asyncio.wait([self._loops[0]])
        if self._beginning is not None:
            await asyncio.wait([self._beginning])
        last_s = min(_LET_GO_S, max(_LET_GO_LEAST_S, grace_s / 2))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_s - last_s))
        if self._tasks:
            _log.info("runs are handed back", runs=len(self._tasks))
            for each in list(self._running.values()):
                each.stop("handed back")
            await asyncio.wait(self._tasks, timeout=last_s)

    async def close(self) -> None:
        """Stop at once; what is under way is for others to take over."""
        for task in (*self._loops, *self._tasks):
            task.cancel()
        if self._loops or self._tasks:
            await asyncio.wait([*self._loops, *self._tasks], timeout=_LET_GO_S)

    # --- Taking ----------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        wait_s = 0.1
        while True:
            free = self._config().concurrency - sum(each.receiver is None for each in self._running.values())
            if free <= 0:
                self._slot.clear()
                await self._slot.wait()
                continue
            try:
                taken = await self._queue.take(free, _WAIT_S)
                self._reached(None)
                if not taken:
                    continue
                # What was claimed is begun, whatever happens to this loop.
                self._beginning = asyncio.create_task(self._begin(taken), name="runs-begin")
                await asyncio.shield(self._beginning)
                wait_s = 0.1
            except StoreUnavailable as error:
                self._reached(error)
                await self._clock.sleep(wait_s)
                wait_s = min(2.0, wait_s * 2)

    def _reached(self, error: StoreUnavailable | None) -> None:
        """Say once that the queue went away, and once that it is back."""
        if error is not None and self.reachable:
            _log.warning("no runs can be taken", reason=error.message)
        elif error is None and not self.reachable:
            _log.info("runs are taken again")
        self.reachable = error is None

    async def _begin(self, taken: Sequence[Taken]) -> None:
        for each in taken:
            if each.message is None:
                self._tally.dropped()
                _log.warning("a message that is no run's was dropped", place=each.place[1], reason=each.why)
        ids = [each.message.id for each in taken if each.message is not None]
        if ids:
            now = self._clock.now()
            claimed = await self._records.claim(
                ids, self._holder, now=now, until=now + self._lease_s, per_key=self._config().per_key
            )
            for run in claimed.held:
                self._tally.begun(max(0.0, now - run.due_at))
                await self._begun(run)
            for unknown in claimed.unknown:
                self._tally.dropped()
                _log.warning("a message names a run that nobody has recorded; it was dropped", run=unknown)
        with contextlib.suppress(StoreUnavailable):  # it comes back, and is known by then
            await self._queue.done(taken)

    async def _begun(self, run: RunRow) -> None:
        receiver = self._ending.receiver(run)
        if receiver is not None and sum(each.receiver == receiver for each in self._running.values()) >= DELIVERIES:
            later_s = _LATER_S * random.uniform(0.5, 1.5)  # noqa: S311 - spreads
            await self._ending.give_back(run, self._clock.now() + later_s, counted=False)
            return
        self._start(run, receiver)

    def _start(self, run: RunRow, receiver: str | None) -> None:
        if (before := self._running.get(run.id)) is not None:
            before.stop("lost")  # this process lost it, and was the first to find it again
        running = self._running[run.id] = _Running(run, receiver)
        task = asyncio.create_task(self._execute(running), name=f"run {run.id}")
        self._tasks.add(task)

        def over(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._running.get(run.id) is running:
                del self._running[run.id]
            self._slot.set()

        task.add_done_callback(over)

    # --- Executing -------------------------------------------------------------------------------------------------

    async def _execute(self, running: _Running) -> None:
        run = running.run
        handler = self._handlers(run.kind)
        if handler is None:
            _log.error("nobody here executes runs of this type", run=run.id, type=run.kind)
            error = _error(f"Nobody executes runs of the type {run.kind!r}.", "unknown_run_type")
            await self._ending.end(run, "failed", error=error)
            return
        running.work = asyncio.create_task(handler.execute(run, _Attempt(run, self._records)), name=f"work {run.id}")
        try:
            await asyncio.wait([running.work])
        finally:
            running.work.cancel()
        if running.work.cancelled() and running.why is not None:
            await self._stopped(running)
            return
        try:
            done = running.work.result()
        except asyncio.CancelledError:
            await self._ending.failed(run, _error("The run's handler gave up.", "internal_error"), retryable=True)
        except (ConfigStale, Draining):
            await self._ending.not_yet(run)
        except AwaitsApproval as waits:
            await self._lay_aside(running, waits)
        except GatewayError as error:
            if running.why == "cancelled":
                await self._stopped(running)
                return
            if isinstance(error, RateLimited) and not isinstance(error, QueueFull):
                # Its caller's limits let it wait, however long: no attempt has been made.
                await self._ending.not_yet(run, error=dict(self._describe(error)), after_s=error.retry_after_s or 0.0)
                return
            await self._ending.failed(
                run, dict(self._describe(error)), retryable=error.retryable, after_s=error.retry_after_s or 0.0
            )
        except Exception:  # noqa: BLE001 - the outermost handler of a run
            _log.exception("run.failed", run=run.id, trace_id=run.trace_id)
            await self._ending.failed(
                run, _error("The gateway failed to execute the run.", "internal_error"), retryable=True
            )
        else:
            await self._ending.end(run, "completed", answer=done.answer, meta=done.meta)

    async def _stopped(self, running: _Running) -> None:
        run = running.run
        if running.why == "lost":
            _log.warning("a run is somebody else's by now", run=run.id, epoch=run.epoch)
            return
        # A writing tool that has begun ends; only then it is true that nothing of the run is at work.
        while await self._still_writes(run):
            await self._clock.sleep(_SETTLE_S)
        if running.why == "cancelled":
            done = await self._came_of(run)
            if done is not None:
                await self._ending.end(run, "completed", answer=done.answer, meta=done.meta)
            else:
                await self._ending.end(run, "cancelled")
        else:
            await self._ending.give_back(run, self._clock.now(), counted=False)

    async def _came_of(self, run: RunRow) -> Done | None:
        """What the run came to although it was stopped."""
        handler = self._handlers(run.kind)
        if not isinstance(handler, Keeping):
            return None
        try:
            return await handler.came_of(run)
        except StoreUnavailable:
            return None

    async def _lay_aside(self, running: _Running, waits: AwaitsApproval) -> None:
        """Nobody holds the run until a human has decided, or time has run out."""
        run = running.run
        progress = {**(run.progress or {}), "state": "waiting_approval", "approvals": list(waits.approvals)}
        with contextlib.suppress(StoreUnavailable):
            await self._records.report(run, progress)
        await self._ending.give_back(run, waits.until, counted=False)
        if self._laid_aside is not None:
            try:
                await self._laid_aside(waits.approvals)
            except StoreUnavailable as error:
                _log.warning("a run that waits for approval could not be looked at again", reason=error.message)

    async def _still_writes(self, run: RunRow) -> bool:
        try:
            return await self._writes(run.trace_id, run.owner)
        except StoreUnavailable:
            return True

    # --- Holding ---------------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / 3)
            if not self._running:
                continue
            before = dict(self._running)
            try:
                held = await self._records.renew(self._holder, until=self._clock.now() + self._lease_s)
            except StoreUnavailable as error:
                _log.warning("runs could not be held on to", reason=error.message)
                continue
            for run, running in before.items():
                if held.get(run, (None, None))[0] != running.run.epoch and self._running.get(run) is running:
                    running.stop("lost")

    async def _heed(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            if not self._running:
                continue
            with contextlib.suppress(StoreUnavailable):
                for run in await self._records.to_cancel(self._holder):
                    if (running := self._running.get(run)) is not None:
                        running.stop("cancelled")


def _error(message: str, code: str) -> dict[str, Any]:
    return {"message": message, "type": "server_error", "param": None, "code": code, "status": 500}
