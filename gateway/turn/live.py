"""`on_event` hooks: operators' code that wants to know what happened.

They get the events of a turn when it is over, so that a slow hook never slows a turn; what cannot be told in time is
dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import structlog

from gateway.config.versions import Versioned
from gateway.observe.events import Recorder
from gateway.turn.snapshot import Snapshot

_WAITING = 1000
_HOOK_TIMEOUT_S = 5.0

_log: Any = structlog.get_logger("gateway.hooks")


class HookEvents:
    """A subscriber that calls `on_event(event, trace_id, owner)` for every event of every finished turn."""

    def __init__(self, versions: Versioned[Snapshot]) -> None:
        self._versions = versions
        self._waiting: asyncio.Queue[Recorder] = asyncio.Queue(_WAITING)
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    @property
    def wants_answered(self) -> bool:
        """See `Choosy`."""
        return bool(self._versions.current.hooks.on_event)

    def finished(self, trace: Recorder) -> None:
        """Queue a trace for the hooks, if there are any."""
        if not self._versions.current.hooks.on_event:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="event-hooks")
        try:
            self._waiting.put_nowait(trace)
        except asyncio.QueueFull:
            self.dropped += 1

    async def close(self) -> None:
        """Stop; what waits is dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            trace = await self._waiting.get()
            for hook in self._versions.current.hooks.on_event:
                for event in trace.events:
                    try:
                        async with asyncio.timeout(_HOOK_TIMEOUT_S):
                            await hook(event, trace.trace_id, trace.owner)
                    except Exception as error:  # noqa: BLE001 - as the next line says
                        # Somebody else's code: its failure must not stop the next hook.
                        _log.warning("hook.failed", hook="on_event", error=type(error).__name__)
