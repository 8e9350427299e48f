"""What a run is: the record of a turn that outlives its request, and how somebody executes one.

Values and seams. Does not know queues, databases or HTTP.

The record is the truth about a run's state, in whichever process it is executed: `completed` is written once its handler has
returned, with what it returned; a run may also end without its handler (cancelled while it was queued, given up after too many
deliveries), so whoever shows a state of their own asks the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

Status = Literal["queued", "running", "cancelling", "completed", "failed", "cancelled"]
Priority = Literal["high", "normal", "low"]

PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
ENDED: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for.

    Attributes:
        kind: which handler executes it, for example `chat` or `response`.
        trace_id: 32 hex digits; the run's id is `run_` and these, a response's `resp_` and these.
        owner: whose it is.
        body: the request as it came.
        caller: who asked and what their headers wished for, as `frame.py` writes it.
        priority: which runs are begun first.
        key: runs of one owner and key are bounded by `runs.per_key`; None for those that are not.
        not_before: seconds since the epoch at which it is due, or None for at once.
        parent_id: the run it belongs to, or None.
    """

    kind: str
    trace_id: str
    owner: str
    body: bytes
    caller: bytes = b"{}"
    priority: Priority = "normal"
    key: str | None = None
    not_before: float | None = None
    parent_id: str | None = None

    @property
    def id(self) -> str:
        """What the run is called."""
        return f"run_{self.trace_id}"


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is recorded. Times are seconds since the epoch.

    Attributes:
        status: see `Status`. `cancelling` until it is certain that nothing of it is at work any more.
        dead: whether it failed because it was begun `runs.max_deliveries` times.
        deliveries: how often somebody began it.
        epoch: rises with every claim; who holds an older one may write nothing.
        holder: the process that executes it, until `held_until` at the latest.
        queued_at: when it was last due.
        answer: the answer's body, once it completed.
        meta: JSON value: what the answer's headers say.
        error: `{"message", "type", "param", "code", "status"}` of a failed one, of the last attempt of one that is tried again.
        progress: JSON value that its handler or tools reported last, or None.
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
    body: bytes = b""
    caller: bytes = b"{}"
    deliveries: int = 0
    epoch: int = 0
    holder: str = ""
    held_until: float = 0.0
    created_at: float
    queued_at: float
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


class Done(msgspec.Struct, frozen=True):
    """What a handler made of a run: the answer's body, and what its headers would have said."""

    answer: bytes
    meta: Any = None


class Attempt(Protocol):
    """What a handler is told of the attempt it makes."""

    @property
    def number(self) -> int:
        """1 for the first delivery. Later ones continue from what is recorded (`Idempotency-Key`: the run's id)."""
        ...

    async def report(self, progress: Mapping[str, Any]) -> None:
        """Leave word of how far it is; shown as `progress`."""
        ...


class Handler(Protocol):
    """Executes runs of one kind, in any process; may be called again for the same run after any crash."""

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:
        """Take the run to its end.

        Cancelled when the run is cancelled or handed back: it lets go of everything then, and passes the cancellation on.

        Raises:
            GatewayError: it failed; tried again later where `retryable`, up to `runs.max_deliveries`.
        """
        ...
