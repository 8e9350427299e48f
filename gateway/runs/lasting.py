"""Loops that live as long as their process, whatever happens in one of their turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from gateway.clock import Clock

_AGAIN_S: Final = 1.0

_log: Any = structlog.get_logger("gateway.runs")


async def lasting(loop: Callable[[], Awaitable[None]], name: str, clock: Clock) -> None:
    """Run a loop for ever; a defect in it is logged, and it begins again after a second."""
    while True:
        try:
            await loop()
        except Exception:  # noqa: BLE001 - the outermost handler of a loop: without it no run would be executed any more
            _log.exception("a loop of background runs failed and begins again", loop=name)
        await clock.sleep(_AGAIN_S)
