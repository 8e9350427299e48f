"""How far a run is, told while it is executed: its round and its state, whenever they have changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from gateway.errors import StoreUnavailable
from gateway.runs.run import Attempt
from gateway.turn.context import Turn

# Seconds between two looks; a run that is over before leaves no word.
_LOOK_S: Final = 1.0


@asynccontextmanager
async def told(attempt: Attempt, turn: Callable[[], Turn | None]) -> AsyncIterator[None]:
    """Tell of the turn's progress while the block runs; `turn` is None until it has begun."""
    task = asyncio.create_task(_tell(attempt, turn), name="progress")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _tell(attempt: Attempt, of: Callable[[], Turn | None]) -> None:
    last: dict[str, Any] = {}
    while True:
        await asyncio.sleep(_LOOK_S)
        turn = of()
        if turn is None:
            continue
        now = {"round": turn.machine.rounds, "state": turn.machine.state.value}
        if now != last:
            with contextlib.suppress(StoreUnavailable):
                await attempt.report(now)
            last = now
