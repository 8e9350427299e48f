"""Runs as they are recorded, and what their store promises.

Knows the record. Does not know SQL, nor when a run changes its state: that is `gateway/runs/`.

The record is the truth about a run, in whichever process it is executed. A run may end without its handler (cancelled while it
was queued, given up after too many deliveries), so whoever shows a state of their own asks the record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

Status = Literal["queued", "running", "cancelling", "completed", "failed", "cancelled"]
Priority = Literal["high", "normal", "low"]
WaitsFor = Literal["queue", "time", "key"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
# Kinds that are begun as often as it takes: what was approved, and what is owed. What they do is in the ledger, and done once.
UNBOUNDED: Final = ("approval", "compensation")
ENDED: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
# The journal's kind of a step that a run of a plugin's type records: `content` is its `name` and its `value`.
STEP: Final = "step"


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is recorded. Times are seconds since the epoch.

    Attributes:
        status: see `Status`. `cancelling` until it is certain that nothing of it is at work any more.
        dead: whether it failed because it was begun as often as may be.
        key: of the runs with one key, only some are executed at once; None for runs that nobody counts.
        waits_for: where a queued run is: in the `queue`, or kept until its `time` or until another of its `key` ends.
        body: the request as it came, and `body_hash` hex SHA-256 of it.
        caller: who asked and what their headers wished for.
        idempotency_key: one run of an owner per key.
        deliveries: how often somebody began it.
        epoch: rises with every claim; who holds an older one may write nothing.
        holder: the process that executes it, until `held_until` at the latest.
        due_at: when it was last to begin.
        answer: the answer's body, once it completed.
        meta: JSON value: what the answer's headers say.
        error: `{"message", "type", "param", "code", "status"}` of a failed one, or of the last attempt of one that is tried again.
        progress: JSON value that its handler or its tools reported last, or None.
    """

    id: str
    kind: str
    trace_id: str
    owner: str
    parent_id: str | None = None
    status: Status = "queued"
    dead: bool = False
    priority: Priority = "normal"
    key: str | None = None
    waits_for: WaitsFor = "queue"
    body: bytes = b""
    body_hash: str = ""
    caller: bytes = b"{}"
    idempotency_key: str | None = None
    deliveries: int = 0
    epoch: int = 0
    holder: str = ""
    held_until: float = 0.0
    created_at: float
    due_at: float
    started_at: float | None = None
    finished_at: float | None = None
    answer: bytes | None = None
    meta: Any = None
    error: Any = None
    progress: Any = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in ENDED


class Queued(NamedTuple):
    """What is queued of a run."""

    id: str
    trace_id: str
    parent_id: str | None
    kind: str
    priority: Priority


class Claimed(NamedTuple):
    """What became of an attempt to claim runs: those that are held now, and those that nobody has recorded."""

    held: Sequence[RunRow]
    unknown: Sequence[str]


class RunRecords(Protocol):
    """Runs. Every call is one transaction, and raises `StoreUnavailable` where the store cannot be reached."""

    async def add(self, rows: Sequence[RunRow], *, keys_since: float = 0.0) -> Sequence[RunRow]:
        """Record these; of those whose id or idempotency key is known, the runs that are there. In their order.

        Keys of runs that ended, and were asked for before `keys_since`, are free again. What a key was used for that is no run is
        answered as a run of no kind, with the hash of what was asked.
        """
        ...

    async def forget(self, ids: Collection[str]) -> None:
        """Forget runs that could not be queued."""
        ...

    async def get(self, id: str, owner: str | None) -> RunRow | None:  # noqa: A002 - the contract's word
        """One run, whole."""
        ...

    async def by_body(self, owner: str, body_hash: str, *, since: float) -> RunRow | None:
        """The owner's newest run of this body since then, without an idempotency key."""
        ...

    async def newest(
        self, owner: str | None, *, status: Status | None, dead: bool | None, limit: int, after: str | None
    ) -> Sequence[RunRow]:
        """The newest first, at most `limit`, older than the run `after`; without bodies and answers."""
        ...

    async def claim(self, ids: Sequence[str], holder: str, *, now: float, until: float, per_key: int | None) -> Claimed:
        """Become the holder of those of these that are queued, under a new epoch. At most `per_key` of one key are held."""
        ...

    async def renew(self, holder: str, *, until: float) -> Mapping[str, tuple[int, Status]]:
        """Hold on to everything that is held by this process: epoch and status by id."""
        ...

    async def to_cancel(self, holder: str) -> Sequence[str]:
        """What this process holds that is to be cancelled."""
        ...

    async def report(self, run: RunRow, progress: Any) -> bool:
        """Keep what is reported of a run that is held; False where it is somebody else's by now."""
        ...

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
        """Commit how a run that is held ended, and with it the runs that follow; False where it is somebody else's by now."""
        ...

    async def give_back(
        self, run: RunRow, *, now: float, due_at: float, counted: bool, error: Any = None
    ) -> Status | None:
        """Queue a run again that is held, or end it as cancelled where that was asked for; its status, None where it is
        somebody else's by now. `counted`: whether the delivery counts.
        """
        ...

    async def cancel(self, id: str, owner: str | None, *, now: float) -> RunRow | None:  # noqa: A002 - as above
        """End a queued run as cancelled, mark a running one; the run as it is then."""
        ...

    async def retry(self, id: str, owner: str | None, *, now: float, forget_from: int | None = None) -> bool:  # noqa: A002 - as above
        """Queue a failed or cancelled run again, with its deliveries before it; False where it is neither.

        With `forget_from`, its recorded steps from this number on are forgotten, and of a response what was told of it.
        """
        ...

    async def steps(self, run: RunRow) -> Mapping[str, Any]:
        """What the steps of a run of a plugin's type came to, by name."""
        ...

    async def keep_step(self, run: RunRow, name: str, value: Any, *, now: float) -> bool:
        """Record what a step of a run that is held came to; False where the run is somebody else's by now."""
        ...

    async def any_open(self) -> bool:
        """Whether there is a run that has not ended."""
        ...

    async def holders(self) -> Sequence[str]:
        """Who holds runs."""
        ...

    async def lapse(self, *, now: float, max_deliveries: int, gone: Collection[str] = ()) -> Sequence[RunRow]:
        """Take runs from holders whose time is over, and from those that are `gone`: queued again, given up, or cancelled.
        The runs as they are then.
        """
        ...

    async def due(self, *, now: float, limit: int) -> Sequence[Queued]:
        """Runs that waited for a time that has come, now waiting in the queue."""
        ...

    async def next_due(self) -> float | None:
        """When the next of those that wait for a time is due."""
        ...

    async def unblocked(self, per_key: int | None, *, limit: int) -> Sequence[Queued]:
        """Runs that waited for another of their key and need not any more, the oldest of each key, now waiting in the queue."""
        ...

    async def missed(self, *, before: Mapping[Priority, float], now: float, limit: int) -> Sequence[Queued]:
        """Runs that should be in the queue and were due before, by priority, the oldest first; due now from here on."""
        ...

    async def aside(self) -> int:
        """How many runs wait elsewhere than in the queue."""
        ...

    async def counts(self) -> Mapping[str, int]:
        """How many runs there are by status, and how many of them are `dead`."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget runs that ended before then; how many went."""
        ...
