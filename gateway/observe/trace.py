"""Traces, written behind.

Knows queues and batches. Nothing here is on a turn's path but one append; encoding and writing happen in a
task of their own, and what cannot be kept is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Protocol

import msgspec
import structlog

from gateway.clock import Clock
from gateway.config.models import TracesConfig
from gateway.errors import NotStorable, StoreUnavailable
from gateway.observe.encoding import answered_summary, encode_events, trace_row
from gateway.observe.events import Recorder
from gateway.observe.redaction import Redactor
from gateway.security.masking.messages import Conversation
from gateway.store.store import Store
from gateway.store.trace_records import TraceBatch, TraceRow, TraceSummary, batches_of

# What may wait to be written: traces, and characters of their requests.
MAX_WAITING: Final = 5000
MAX_CHARACTERS: Final = 64_000_000
# Seconds in which traces gather before they are written: few transactions, and few syncs of the disk, for all turns of that time.
# So many, or half of what may wait, are written before it is over.
GATHER_S: Final = 1.0
_MANY: Final = 1000
# The owner of requests whose caller is unknown. They are counted and logged; kept, anybody could fill the disk.
NOBODY: Final = "-"
# Bytes of one transaction's events, unless one batch holds more.
_WRITTEN: Final = 4_000_000
# Traces that wait one by one; so many are made a batch, and somebody looks again at how much waits.
_BATCH: Final = 100
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
        self._clock = clock
        self._redactor = redactor
        self._vault = vault
        self.configure(config)
        self._max_waiting = max_waiting
        self._many = max(1, min(_MANY, max_waiting // 2))
        self._gather_s = gather_s
        # What waits: traces whose summaries and events are still apart, batches of them, and what is still to be encoded or has
        # private values to keep.
        self._summaries: list[TraceSummary] = []
        self._events: list[bytes] = []
        self._batches: list[TraceBatch] = []
        self._others: list[_Other] = []
        # Of all that waits or is being written, but for those that are in no batch yet; and how many of these are to become one.
        self._characters = 0
        self._look_at = 0
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
        self._content = config.content
        self._thins = config.sample < 1
        self._private = private

    async def open(self) -> None:
        """Start writing."""
        self._task = asyncio.create_task(self._run(), name="trace-writer")

    def finished(self, trace: Recorder) -> None:
        """Queue one trace; drop it where the queue is full. Never waits, never raises."""
        if trace.owner == NOBODY or (self._thins and not _sampled(trace.trace_id, self._config.sample)):
            return
        summaries = self._summaries
        if len(summaries) >= self._look_at:
            self._pack()
            if not self._has_room():
                self.dropped += 1
                return
        events = trace.events
        if trace.private is None and events[-1].type == "turn.finished":
            try:
                # The request is what can be large.
                if sum(map(len, events[0].data["messages"])) <= _SMALL:
                    # At once: while it is warm it costs half, and the turn's objects die young.
                    encoded = encode_events(events, self._content, self._redactor)
                    summaries.append(answered_summary(trace))
                    self._events.append(encoded)
                    return
            except Exception:  # noqa: BLE001, S110 - whoever writes it tries again, and tells
                pass
        self._queue(trace)

    def _queue(self, trace: Recorder) -> None:
        """Queue a trace of which more is to be found out."""
        private = trace.private
        if private is None and trace.events[-1].type != "turn.finished" and not _is_decided(trace):
            private = self._private(trace.owner)
        messages = trace.events[0].data.get("messages")
        size = _LEAST + (sum(map(len, messages)) if isinstance(messages, list) else 0)
        if self._characters + size > MAX_CHARACTERS or not self._has_room():
            self.dropped += 1
            return
        row: TraceRow | None = None
        # What is private is looked for in a thread.
        if size <= _SMALL and (private is None or not private.masking.known):
            with contextlib.suppress(Exception):  # as above
                row = trace_row(trace, self._content, self._redactor, private)
        self._others.append(_Other(size, trace, row, private))
        self._characters += size

    def _has_room(self) -> bool:
        """Whether more may wait. Rouses whoever writes."""
        count = self._waiting()
        if count >= self._max_waiting or self._characters > MAX_CHARACTERS:
            self._look_at = 0
            return False
        self._look_at = min(_BATCH, self._many, self._max_waiting - count)
        self._wake.set()
        if count >= self._many or self._characters > MAX_CHARACTERS // 2:
            self._hurry.set()
        return True

    def _waiting(self) -> int:
        return sum(batch.count for batch in self._batches) + len(self._summaries) + len(self._others)

    def _pack(self) -> None:
        """Make batches of the traces that wait one by one."""
        if self._summaries:
            batches = self._batches_of(self._summaries, self._events)
            self._characters += sum(map(_size_of, batches))
            self._batches += batches
            # Emptied, not replaced: who adds holds them.
            self._summaries.clear()
            self._events.clear()

    def _batches_of(self, summaries: Sequence[TraceSummary], events: Sequence[bytes]) -> list[TraceBatch]:
        """Batches of these. A trace that nobody can write is dropped, and its neighbours are not."""
        try:
            return batches_of(summaries, events)
        except Exception:  # noqa: BLE001 - as in `_keep`
            if len(summaries) == 1:
                self._cannot_be_written(summaries[0].trace_id)
                return []
            return [
                batch for one in zip(summaries, events, strict=True) for batch in self._batches_of(one[:1], one[1:])
            ]

    async def flush(self, timeout_s: float = 5) -> bool:
        """Wait until everything queued by now is kept or dropped; False where that takes longer than `timeout_s`."""
        self._pack()
        goal = self._taken + self._waiting()
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
        self._max_waiting = self._look_at = 0
        if self._task is None:
            return
        await self.flush(timeout_s)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self.dropped += self._waiting()
        for waiting in (self._summaries, self._events, self._batches, self._others):
            waiting.clear()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._gather_s)
            self._hurry.clear()
            # What comes while these are written gathers anew: written at once, it would be a few at a time for as long as more come.
            await self._write()
            if not self._waiting():
                self._wake.clear()

    async def _write(self) -> None:
        """Write what waits by now."""
        self._pack()
        count, batches, others = self._waiting(), self._batches, self._others
        size = sum(map(_size_of, batches)) + sum(other.size for other in others)
        self._batches, self._others, self._look_at = [], [], 0
        self._taken += count
        lost_before, written_before = self.dropped, self.written
        try:
            if others:
                rows = await self._read(others)
                batches += self._batches_of([row.summary for row in rows], [row.events for row in rows])
            while batches:
                fitting = 1 + sum(total <= _WRITTEN for total in accumulate(batch.size for batch in batches[1:]))
                await self._keep(batches[:fitting])
                del batches[:fitting]
        except asyncio.CancelledError:
            self.dropped = lost_before + count - (self.written - written_before)
            raise
        finally:
            self._characters -= size
            self._done += count
            async with self._settled:
                self._settled.notify_all()

    async def _read(self, others: list[_Other]) -> list[TraceRow]:
        """The rows of these, whose private values are kept then."""
        try:
            # Off the event loop: long conversations take milliseconds to encode.
            rows = await asyncio.to_thread(_rows_of, others, self._config, self._redactor)
            if self._vault is not None and (values := _values(others)):
                # First: a placeholder that can be read can be asked for.
                await self._vault.keep(values)
        except StoreUnavailable as error:
            self._lost(len(others), error)
            return []
        except Exception:  # noqa: BLE001 - as in `_keep`
            if len(others) == 1:
                self._cannot_be_written(others[0].trace.trace_id)
                return []
            return [row for other in others for row in await self._read([other])]
        return rows

    async def _keep(self, batches: list[TraceBatch]) -> None:
        count = sum(batch.count for batch in batches)
        try:
            await self._store.traces.add(batches)
            self.written += count
            self._failing = False
        except StoreUnavailable as error:
            if not isinstance(error, NotStorable):
                self._lost(count, error)
                return
            await self._keep_apart(batches)
        except Exception:  # noqa: BLE001 - as the next line says
            # The task's outermost handler: a trace that can't be written must end neither the writing nor its neighbours.
            await self._keep_apart(batches)

    async def _keep_apart(self, batches: list[TraceBatch]) -> None:
        """Keep these one by one, down to their traces."""
        if len(batches) > 1:
            for batch in batches:
                await self._keep([batch])
            return
        rows = batches[0].rows()
        if len(rows) == 1:
            self._cannot_be_written(rows[0].summary.trace_id)
            return
        for row in rows:
            await self._keep(batches_of([row.summary], [row.events]))

    def _cannot_be_written(self, trace_id: str) -> None:
        self.dropped += 1
        _log.exception("a trace could not be written", trace_id=trace_id)

    def _lost(self, count: int, error: StoreUnavailable) -> None:
        self.dropped += count
        if not self._failing:
            # Once per outage: the counter tells the rest.
            _log.warning("traces are being lost", reason=error.message)
        self._failing = True


class KeepsValues(Protocol):
    """Where what placeholders stand for is kept."""

    async def keep(self, values: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """Keep values by owners' placeholders. Raises `StoreUnavailable`."""
        ...


class _Other(msgspec.Struct, frozen=True):
    """A trace of which more is to be found out: encoded already, or as it is."""

    size: int
    trace: Recorder
    row: TraceRow | None
    private: Conversation | None


def _size_of(batch: TraceBatch) -> int:
    """What a batch counts of the characters that may wait."""
    return _LEAST * batch.count + batch.size


def _rows_of(others: list[_Other], config: TracesConfig, redactor: Redactor | None) -> list[TraceRow]:
    return [each.row or trace_row(each.trace, config.content, redactor, each.private) for each in others]


def _values(others: list[_Other]) -> list[tuple[str, Mapping[str, str]]]:
    return [(each.trace.owner, each.private.masking.values) for each in others if each.private is not None]


def _sampled(trace_id: str, share: float) -> bool:
    # By the id itself, so that every replica and every retry decides alike.
    return share >= 1 or int(trace_id[-8:], 16) < share * 0x1_0000_0000


def _is_decided(trace: Recorder) -> bool:
    """Whether the turn got as far as to a route, which says what is private in it."""
    return any(event.type == "decision.made" for event in trace.events)
