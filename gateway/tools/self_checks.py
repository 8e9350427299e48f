"""The tools' self-checks, run behind the first requests of a version.

Knows that a failing check is told and stops nobody: a tool that cannot work answers errors, and the others work. Does not know
how a check is written.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from gateway.tools.registry import Registry

_log: Any = structlog.get_logger("gateway.tools")


class SelfChecks:
    """Runs the self-checks of one registry after the other; of an older one none goes on."""

    def __init__(self) -> None:
        self._running: asyncio.Task[None] | None = None

    def begin(self, registry: Registry) -> None:
        """Run a registry's self-checks, without waiting for them."""
        self._stop()
        self._running = asyncio.get_running_loop().create_task(_run(registry), name="self-checks")

    async def close(self) -> None:
        """Stop."""
        running = self._running
        self._stop()
        if running is not None:
            await asyncio.wait([running])

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None


async def _run(registry: Registry) -> None:
    for problem in await registry.check():
        _log.warning("a tool's check failed", file=problem.file, line=problem.line, problem=problem.message)
