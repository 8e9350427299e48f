"""The pruner: forgets what has had its time, once an hour.

Knows how long each kind of record is kept, and why none goes before another that needs it. Does not know SQL.

| records | kept |
| --- | --- |
| traces | `observe.traces.keep_days`, and `max_mb` of them at most |
| turns that can be joined | `idempotency.ttl_s`, but as long as a retry may join them |
| journal, ended effects | as long as traces and turns: a turn that is taken up needs both; of runs that have not completed, as long as the run |
| effects that are `unknown` | until somebody settles them |
| approvals, what was undone | `runs.keep_days` from their end |
| what could not be undone, the audit log | for ever |
| hidden rounds | seven days |
| responses | `runs.keep_days` from their end, their events for a day; conversations until somebody deletes them |
| memories | until somebody deletes them, a thousand of each owner |
| sessions | `context.sessions.ttl_s` from their last turn |
| what placeholders stand for | `privacy.keep_days` from the last trace that showed them |
| keys, and what was used | for ever: the one says who may call, the other what may still be spent |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

import structlog

from gateway.clock import Clock
from gateway.config.models import GatewayConfig
from gateway.errors import StoreUnavailable
from gateway.store.session_records import Sessions
from gateway.store.store import Store
from gateway.tools.settling import Settling
from gateway.turn.joining import JOIN_S

# A conversation that rested for longer goes on without the rounds its client never saw.
HIDDEN_S: Final = 7 * 86_400.0
# Whoever comes back later than this for the events of a response gets them as they might have come.
EVENTS_S: Final = 86_400.0
_EVERY_S: Final = 3600.0
_DAY_S: Final = 86_400.0

_log: Any = structlog.get_logger("gateway.pruner")


class Prunable(Protocol):
    """Records that can be forgotten."""

    async def prune(self, *, before: float) -> int:
        """Forget what ended before then; how many went. Raises `StoreUnavailable`."""
        ...


class Pruner:
    """Prunes at its start and every hour from then on.

    Args:
        store: all records.
        settling: counts abandoned effects as unknown.
        config: how long things are kept.
        clock: for ages.
        sessions: conversations that are kept, where any are.
        also: further records that are kept as long as runs.
    """

    def __init__(
        self,
        store: Store,
        settling: Settling,
        config: GatewayConfig,
        clock: Clock,
        sessions: Sessions | None = None,
        also: Sequence[Prunable] = (),
    ) -> None:
        self._also = also
        self._store = store
        self._settling = settling
        self._config = config
        self._clock = clock
        self._sessions = sessions
        self._task: asyncio.Task[None] | None = None

    def configure(self, config: GatewayConfig) -> None:
        """Take another generation's settings; they hold from the next time on."""
        self._config = config

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._task = asyncio.create_task(self._run(), name="pruner")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def prune(self) -> None:
        """Forget what has had its time.

        Raises:
            StoreUnavailable: nothing can be removed; what was, was.
        """
        now, store, traces = self._clock.now(), self._store, self._config.observe.traces
        joinable_s = max(self._config.idempotency.ttl_s, JOIN_S, 2 * self._config.server.turn_timeout_s)
        shown_s = traces.keep_days * _DAY_S
        steps_s = max(joinable_s, shown_s)
        kept_s = self._config.runs.keep_days * _DAY_S
        await self._settling.lapse()
        await store.traces.prune(before=now - shown_s, max_bytes=int(traces.max_mb * 1024 * 1024))
        await store.turns.prune(before=now - joinable_s)
        await store.journal.prune(before=now - steps_s)
        await store.effects.prune(before=now - steps_s)
        for each in self._also:
            await each.prune(before=now - kept_s)
        await store.hidden.prune(before=now - HIDDEN_S)
        await store.private_values.prune(before=now)
        if self._sessions is not None:
            await self._sessions.prune(before=now)
        await store.responses.prune(before=now - kept_s, events_before=now - EVENTS_S)

    async def _run(self) -> None:
        while True:
            try:
                await self.prune()
            except StoreUnavailable as error:
                _log.warning("old records could not be removed", reason=error.message)
            await asyncio.sleep(_EVERY_S)
