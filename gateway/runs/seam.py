"""What endpoints may do with runs, whoever executes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.runs.run import NewRun
from gateway.store.run_records import RunRow, Status


class Runs(Protocol):
    """Accepts runs, tells of them, cancels them. Every call raises `StoreUnavailable` where the database cannot be reached."""

    async def submit(self, new: NewRun) -> RunRow:
        """Record and queue a run; it is durable when this returns. The run of the first time where this asks again.

        Raises:
            IdempotencyConflict: the key was used for something else.
            QueueFull: `runs.queue_max` are queued.
            BackgroundUnavailable: the queue cannot be reached.
        """
        ...

    async def get(self, id: str, owner: str | None) -> RunRow | None:  # noqa: A002 - the contract's word
        """One run, with its answer; None where there is none of this owner's."""
        ...

    async def cancel(self, id: str, owner: str | None) -> RunRow:  # noqa: A002 - the contract's word
        """Ask for its end; the run as it is then: `cancelled` only where nothing of it is at work any more, else `cancelling`.

        One that has ended stays as it is, without an error.

        Raises:
            NotFound: there is none of this owner's.
            InvalidRequest: it makes what was approved, or undoes something: neither is given up.
        """
        ...

    async def ended(self, id: str, owner: str | None, timeout_s: float) -> RunRow | None:  # noqa: A002 - as above
        """Wait until it has ended, at most `timeout_s`; the run as it is then."""
        ...

    async def newest(
        self,
        owner: str | None,
        *,
        status: Status | None = None,
        dead: bool | None = None,
        limit: int,
        after: str | None,
    ) -> Sequence[RunRow]:
        """The newest first, at most `limit`, older than the run `after`; without bodies and answers."""
        ...
