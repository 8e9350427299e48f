"""Finished turns as they are kept: many in one row.

A row of its own for each trace cost more than the trace: three indices, a key and pages of its own. So the traces of a moment
are kept together as one batch: their events in one block, and beside it the summary of each with the place of its events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec

from gateway.ids import made_at

# Bytes of a batch's events. Larger, its making and writing leave the processor's near cache; a trace that is larger is alone.
BATCH_BYTES: Final = 512_000
# Seconds between the beginnings of a batch's traces: whoever looks for one moment reads few batches.
BATCH_S: Final = 60.0
# A turn is recorded under an id that is not this many seconds old, unless it is taken up again: then an earlier trace of it may be kept.
FRESH_S: Final = 1.0
# Seconds between the makings of the ids from a batch's first to its last.
SPAN_S: Final = BATCH_S + 2 * FRESH_S


class TraceSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a trace says of a finished turn without its events. Times are seconds since the epoch, `seconds` is how long it took."""

    trace_id: str
    owner: str
    started_at: float
    finished_at: float
    key: str
    status: int
    seconds: float
    user: str | None = None
    response_id: str | None = None
    route: str | None = None
    model: str | None = None
    backend: str | None = None
    strategy: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    version: str | None = None

    @property
    def place(self) -> tuple[float, str]:
        """Where it stands among all."""
        return self.started_at, self.trace_id

    def stays_over(self, other: TraceSummary | None) -> bool:
        """Whether this one stays of two traces of one turn, the other having come first, if there is any."""
        return other is None or other.finished_at <= self.finished_at

    def shown(self) -> dict[str, Any]:
        """What is told of it."""
        fields = msgspec.structs.asdict(self)
        return {"id": fields.pop("trace_id"), "object": "trace", **fields}

    def is_called(self, name: str) -> bool:
        """Whether this is its trace id, request id (`req_` and the trace id) or response id."""
        return self.trace_id == name.removeprefix("req_") or self.response_id == name


class TraceRow(msgspec.Struct, frozen=True):
    """A finished turn: its summary, and the JSON list of its events."""

    summary: TraceSummary
    events: bytes

    def shown(self) -> dict[str, Any]:
        """What is told of it, with its events."""
        return {**self.summary.shown(), "events": msgspec.json.decode(self.events) if self.events else []}


class Kept(msgspec.Struct, frozen=True, gc=False):
    """Where in its batch's events a trace stands, and its summary."""

    start: int
    size: int
    summary: TraceSummary


class TraceBatch(msgspec.Struct, frozen=True):
    """Traces that are kept together.

    Attributes:
        first_id: the smallest of their ids but for `again`; empty where there is no other.
        last_id: the largest of them. No two of them were made more than `SPAN_S` apart.
        oldest_at: when the first of them began, in seconds since the epoch.
        newest_at: when the last of them began.
        count: how many they are.
        size: bytes of their events.
        owners: whose they are.
        names: by what they can be asked for beside those ids and what ends with them: `again` among it.
        again: ids that were not made when their traces began. Of such a turn an earlier trace may be kept.
        kept: JSON of a list of `Kept`.
        events: what all of them hold, one behind the other.
    """

    first_id: str
    last_id: str
    oldest_at: float
    newest_at: float
    count: int
    size: int
    owners: frozenset[str]
    names: frozenset[str]
    again: frozenset[str]
    kept: bytes
    events: bytes

    def rows(self) -> list[TraceRow]:
        """Each of its traces."""
        return [TraceRow(each.summary, self.events[each.start : each.start + each.size]) for each in kept_of(self.kept)]


class Traces(Protocol):
    """Finished turns. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def add(self, batches: Sequence[TraceBatch]) -> None:
        """Keep these, all or none. Of two traces of one id the one that ended later stays."""
        ...

    async def get(self, id: str, owner: str | None) -> TraceRow | None:  # noqa: A002 - the contract's word
        """The trace of this trace id, request id (`req_` and the trace id) or response id; None where there is none."""
        ...

    async def newest(self, owner: str | None, *, limit: int, after: str | None = None) -> Sequence[TraceSummary]:
        """The newest first, at most `limit`, older than the trace `after`."""
        ...

    async def prune(self, *, before: float, max_bytes: int) -> int:
        """Forget those that began before `before`, and the oldest beyond `max_bytes` of events; how many went."""
        ...


_id_of, _owner_of, _started_at = attrgetter("trace_id"), attrgetter("owner"), attrgetter("started_at")
_FIELDS: Final = len(TraceSummary.__struct_fields__)
_encode: Final = msgspec.json.Encoder().encode
# Whatever a summary holds, its neighbours can be read.
_decode: Final = msgspec.json.Decoder(list[tuple[int, int, list[Any]]]).decode


def kept_of(kept: bytes) -> list[Kept]:
    """The traces that a batch's `kept` names."""
    return [Kept(start, size, TraceSummary(*said[:_FIELDS])) for start, size, said in _decode(kept)]


def kept_as(trace_id: str, kept: bytes) -> list[Kept]:
    """Those of this trace id among them."""
    # Most batches that are looked into do not hold it: to read them would take fifty times as long.
    if trace_id.encode(errors="replace") not in kept:
        return []
    return [each for each in kept_of(kept) if each.summary.trace_id == trace_id]


def batches_of(summaries: Sequence[TraceSummary], events: Sequence[bytes]) -> list[TraceBatch]:
    """These traces as batches, none too large and none over too long a time.

    Raises:
        UnicodeEncodeError: a summary holds half a surrogate pair.
    """
    if not summaries:
        return []
    starts = [*map(_started_at, summaries)]
    if max(starts) - min(starts) <= BATCH_S and sum(map(len, events)) <= BATCH_BYTES:
        return [_batch(summaries, events)]
    batches: list[TraceBatch] = []
    first = size = 0
    # The order in which they came decides between two of one id that ended at once.
    order = sorted(range(len(starts)), key=starts.__getitem__)
    for place, index in enumerate(order):
        if place > first and (
            starts[index] - starts[order[first]] > BATCH_S or size + len(events[index]) > BATCH_BYTES
        ):
            batches.append(_of(order[first:place], summaries, events))
            first, size = place, 0
        size += len(events[index])
    return [*batches, _of(order[first:], summaries, events)]


def _of(indexes: Iterable[int], summaries: Sequence[TraceSummary], events: Sequence[bytes]) -> TraceBatch:
    chosen = sorted(indexes)
    return _batch([summaries[index] for index in chosen], [events[index] for index in chosen])


def _batch(summaries: Sequence[TraceSummary], events: Sequence[bytes]) -> TraceBatch:
    ids, starts, sizes = [*map(_id_of, summaries)], [*map(_started_at, summaries)], [*map(len, events)]
    places = [0, *accumulate(sizes)]
    again = frozenset(each.trace_id for each in summaries if not _is_fresh(each))
    # An id of any other time would make the batch one of those to look into for every id between.
    spanned = [each for each in ids if each not in again] if again else ids
    return TraceBatch(
        min(spanned, default=""),
        max(spanned, default=""),
        min(starts),
        max(starts),
        len(ids),
        places[-1],
        frozenset(map(_owner_of, summaries)),
        again.union(
            each.response_id
            for each in summaries
            if each.response_id is not None and not each.response_id.endswith(each.trace_id)
        ),
        again,
        _encode([*zip(places, sizes, summaries, strict=False)]),
        b"".join(events),
    )


def _is_fresh(summary: TraceSummary) -> bool:
    try:
        return -FRESH_S <= summary.started_at - made_at(summary.trace_id) <= FRESH_S
    except ValueError:
        return False
