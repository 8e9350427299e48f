"""Traces, written behind.

Knows queues and batches. Nothing here is on a turn's path but one append; encoding and writing happen in a
task of their own, and what cannot be kept is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final, Protocol

import msgspec
import structlog

from gateway.clock import Clock
from gateway.config.models import TracesConfig
from gateway.errors import StoreUnavailable
from gateway.observe.encoding import trace_row
from gateway.observe.events import Recorder
from gateway.observe.redaction import Redactor
from gateway.security.masking.messages import Conversation
from gateway.store.store import Store, TraceRow

# What may wait to be written: traces, and characters of their requests.
MAX_WAITING: Final = 5000
MAX_CHARACTERS: Final = 64_000_000
# Seconds in which traces gather before they are written: few transactions, and few syncs of the disk, for all turns of that time.
# So many, or half of what may wait, are written before it is over.
GATHER_S: Final = 1.0
_MANY: Final = 1000
# The owner of requests whose caller is unknown. They are counted and logged; kept, anybody could fill the disk.
NOBODY: Final = "-"
_BATCH: Final = 500
# Characters of a trace beside its messages, and of one that is encoded on the spot.
_LEAST: Final = 2000
_SMALL: Final = 50_000

_log = structlog.get_logger("gateway.traces")


class TraceWriter:
    """A subscriber that keeps every finished trace.

    Attributes:
        dropped: traces that were lost so far: the queue was full, or the store away.
        written: traces kept so far.
    """

    def __init__(
        self,
        store: Store,
        config: TracesConfig,
        clock: Clock,
        redactor: Redactor | None = None,
        *,
        max_waiting: int = MAX_WAITING,
        gather_s: float = GATHER_S,
        vault: KeepsValues | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._redactor = redactor
        self._vault = vault
        self._private: Callable[[str], Conversation | None] = lambda _: None
        self._max_waiting = max_waiting
        self._many = max(1, min(_MANY, max_waiting // 2))
        self._gather_s = gather_s
        self._waiting: list[_Waiting] = []
        self._characters = 0
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._settled = asyncio.Condition()
        # Traces that were taken out of the queue to be written, and those of them that are written or lost.
        self._taken = 0
        self._done = 0
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.dropped = 0
        self.written = 0

    def configure(self, config: TracesConfig, private: Callable[[str], Conversation | None] = lambda _: None) -> None:
        """Take another generation's settings; they hold from the next batch on. `private` says, for an owner, what is private in
        a turn that ended before anybody knew its route.
        """
        self._config = config
        self._private = private

    async def open(self) -> None:
        """Start writing."""
        self._task = asyncio.create_task(self._run(), name="trace-writer")

    def finished(self, trace: Recorder) -> None:
        """Queue one trace; drop it where the queue is full. Never waits, never raises."""
        config = self._config
        if trace.owner == NOBODY or (config.sample < 1 and not _sampled(trace.trace_id, config.sample)):
            return
        events = trace.events
        messages = events[0].data.get("messages")
        # What it holds on to, roughly: the request is what can be large.
        size = _LEAST + (sum(map(len, messages)) if isinstance(messages, list) else 0)
        waiting, characters = self._waiting, self._characters + size
        count = len(waiting)
        if count >= self._max_waiting or characters > MAX_CHARACTERS:
            self.dropped += 1
            return
        private = trace.private
        if private is None and events[-1].type != "turn.finished" and not _is_decided(trace):
            private = self._private(trace.owner)
        row: TraceRow | None = None
        # What is private is looked for in a thread.
        if size <= _SMALL and (private is None or not private.masking.known):
            # At once: while it is warm it costs half, and the turn's objects die young.
            try:
                row = trace_row(trace, config.content, self._redactor, private)
            except Exception:  # noqa: BLE001 - whoever writes it tries again, and tells
                row = None
        elif characters > MAX_CHARACTERS // 2:
            self._hurry.set()
        if not count % self._many:
            (self._hurry if count else self._wake).set()
        waiting.append(_Waiting(size, row, private, trace if row is None else None))
        self._characters = characters

    async def flush(self, timeout_s: float = 5) -> bool:
        """Wait until everything queued by now is kept or dropped; False where that takes longer than `timeout_s`."""
        goal = self._taken + len(self._waiting)
        if self._done >= goal:
            return True
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_s), self._settled:
                await self._settled.wait_for(lambda: self._done >= goal)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5) -> None:
        """Write what waits, for up to `timeout_s`, and stop. What is left then is dropped and counted."""
        self._max_waiting = 0
        if self._task is None:
            return
        await self.flush(timeout_s)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self.dropped += len(self._waiting)
        self._waiting.clear()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._gather_s)
            self._hurry.clear()
            # What comes while these are written gathers anew: written at once, it would be a few at a time for as long as more come.
            due = len(self._waiting)
            while due > 0:
                due -= await self._write_batch()
            if not self._waiting:
                self._wake.clear()

    async def _write_batch(self) -> int:
        """Write the oldest that wait; how many."""
        batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
        self._taken += len(batch)
        lost_before = self.dropped
        written_before = self.written
        try:
            await self._keep(batch)
        except asyncio.CancelledError:
            self.dropped = lost_before + len(batch) - (self.written - written_before)
            raise
        finally:
            self._characters -= sum(map(_size_of, batch))
            self._done += len(batch)
            async with self._settled:
                self._settled.notify_all()
        return len(batch)

    async def _keep(self, batch: list[_Waiting]) -> None:
        try:
            rows = [*filter(None, map(_row_of, batch))]
            if len(rows) < len(batch):
                # Off the event loop: long conversations take milliseconds to encode.
                rows += await asyncio.to_thread(_rows, batch, self._config, self._redactor)
            if self._vault is not None:
                # First: a placeholder that can be read can be asked for.
                await self._vault.keep(_values(batch))
            await self._store.traces.add(rows)
            self.written += len(batch)
            self._failing = False
        except StoreUnavailable as error:
            self._lost(len(batch), error)
        except Exception:  # noqa: BLE001 - as the next line says
            # The task's outermost handler: a trace that can't be written must end neither the writing nor its neighbours.
            if len(batch) == 1:
                self.dropped += 1
                _log.exception("a trace could not be written", trace_id=batch[0].of.trace_id)
                return
            for each in batch:
                await self._keep([each])

    def _lost(self, count: int, error: StoreUnavailable) -> None:
        self.dropped += count
        if not self._failing:
            # Once per outage: the counter tells the rest.
            _log.warning("traces are being lost", reason=error.message)
        self._failing = True


_size_of, _row_of, _private_of = map(attrgetter, ("size", "row", "private"))


class KeepsValues(Protocol):
    """Where what placeholders stand for is kept."""

    async def keep(self, values: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """Keep values by owners' placeholders. Raises `StoreUnavailable`."""
        ...


class _Waiting(msgspec.Struct, frozen=True):
    """A trace in the queue: its `row` where it is encoded already, else the trace itself."""

    size: int
    row: TraceRow | None
    private: Conversation | None
    trace: Recorder | None

    @property
    def of(self) -> TraceRow | Recorder:
        """Either."""
        found = self.row or self.trace
        assert found is not None
        return found


def _rows(batch: list[_Waiting], config: TracesConfig, redactor: Redactor | None) -> list[TraceRow]:
    return [trace_row(each.trace, config.content, redactor, each.private) for each in batch if each.trace is not None]


def _values(batch: list[_Waiting]) -> list[tuple[str, Mapping[str, str]]]:
    if not any(map(_private_of, batch)):
        return []
    return [(each.of.owner, each.private.masking.values) for each in batch if each.private is not None]


def _sampled(trace_id: str, share: float) -> bool:
    # By the id itself, so that every replica and every retry decides alike.
    return share >= 1 or int(trace_id[-8:], 16) < share * 0x1_0000_0000


def _is_decided(trace: Recorder) -> bool:
    """Whether the turn got as far as to a route, which says what is private in it."""
    return any(event.type == "decision.made" for event in trace.events)
