"""What the worker processes of one gateway answer as one, because nobody outside can choose which of them is asked.

Knows what each contributes and how it is put together. Does not know how workers reach each other: that is `Siblings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import msgspec

from gateway.config.versions import Refusal, Versioned
from gateway.observe.events import Recorder
from gateway.observe.exposition import join_workers
from gateway.observe.metrics import Metrics
from gateway.observe.trace import TraceWriter
from gateway.turn.snapshot import Snapshot

# Seconds that another worker has to write the traces of its finished turns.
_FLUSH_S: Final = 1.5


class Siblings(Protocol):
    """The other workers of this gateway.

    Attributes:
        number: this worker's, from 1.
    """

    number: int

    async def ask(self, what: str) -> Mapping[int, bytes]:
        """What the others answer, by their numbers; bounded, and who does not answer in time is missing."""
        ...


class _Outcome(msgspec.Struct, frozen=True):
    """A worker's last reload: when it was over, and why it was refused, if it was."""

    at: float
    refusal: Refusal | None


class Together:
    """This process with its siblings, or alone.

    Attributes:
        answers: what this worker answers to the others, by the word they ask with.
    """

    def __init__(
        self, metrics: Metrics, traces: TraceWriter, versions: Versioned[Snapshot], siblings: Siblings | None
    ) -> None:
        self._metrics = metrics
        self._traces = traces
        self._versions = versions
        self._siblings = siblings
        self.answers: Mapping[str, Callable[[], Awaitable[bytes]]] = {
            "metrics": self._own_metrics,
            "flush": self._own_flush,
            "reload": self._own_outcome,
        }

    async def scrape(self) -> bytes:
        """Every worker's metrics, each under its label `worker`; without workers, without the label."""
        own = self._metrics.render()
        if self._siblings is None:
            return own
        return join_workers({self._siblings.number: own, **await self._siblings.ask("metrics")})

    async def flush(self, timeout_s: float) -> bool:
        """Wait until the traces of turns that have ended by now are kept or dropped; whether they are, here."""
        if self._siblings is None:
            return await self._traces.flush(timeout_s)
        here, _ = await asyncio.gather(self._traces.flush(timeout_s), self._siblings.ask("flush"))
        return here

    def count(self, record: Recorder) -> None:
        """Count what was done here outside of any turn."""
        self._metrics.finished(record)

    async def refusal(self) -> Refusal | None:
        """Why the last reload was refused, whichever worker was asked for it; None where it succeeded."""
        if self._siblings is None:
            return self._versions.last_error
        others = await self._siblings.ask("reload")
        outcomes = [self._outcome(), *(msgspec.msgpack.decode(one, type=_Outcome) for one in others.values())]
        return max(outcomes, key=lambda outcome: outcome.at).refusal

    def _outcome(self) -> _Outcome:
        return _Outcome(self._versions.settled_at, self._versions.last_error)

    async def _own_metrics(self) -> bytes:
        return self._metrics.render()

    async def _own_flush(self) -> bytes:
        await self._traces.flush(_FLUSH_S)
        return b""

    async def _own_outcome(self) -> bytes:
        return msgspec.msgpack.encode(self._outcome())
