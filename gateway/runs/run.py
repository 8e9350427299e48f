"""What somebody asks for when they ask for a run, and how somebody executes one.

Values and seams; the record of a run is `RunRow`. Does not know queues, databases or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from gateway.store.run_records import Priority, RunRow


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for.

    Attributes:
        kind: which handler executes it, for example `chat` or `response`.
        trace_id: 32 hex digits; the run's id is `run_` and these, a response's `resp_` and these.
        owner: whose it is.
        body: the request as it came.
        caller: who asked and what their headers wished for, as `frame.py` writes it.
        priority: which runs are begun first.
        key: of the runs with one key, `runs.per_key` are executed at once; None for runs that nobody counts.
        not_before: seconds since the epoch at which it is due, or None for at once.
        parent_id: the run it belongs to, or None.
        idempotency_key: the request's `Idempotency-Key`, or None.
        retried: whether the SDK says that it asks again; then, and with a key, `submit` may answer the run of the first time.
    """

    kind: str
    trace_id: str
    owner: str
    body: bytes
    caller: bytes = b"{}"
    idempotency_key: str | None = None
    retried: bool = False
    priority: Priority = "normal"
    key: str | None = None
    not_before: float | None = None
    parent_id: str | None = None

    @property
    def id(self) -> str:
        """What the run is called."""
        return f"run_{self.trace_id}"


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


@runtime_checkable
class Keeping(Handler, Protocol):
    """A handler whose runs leave more than their record: what that says of their end, the record says too."""

    async def came_of(self, run: RunRow) -> Done | None:
        """What came of a run that was stopped, where it had come to its end all the same."""
        ...
