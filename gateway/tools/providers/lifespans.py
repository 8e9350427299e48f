"""What plugins' `lifespan()` starts and stops.

Knows async generators and async context managers. Does not know what they yield.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import isasyncgenfunction
from typing import Any

# How long a plugin's resources may take to start, and to stop.
START_S = 30.0
STOP_S = 10.0


class Lifespan:
    """One plugin's lifespan, entered and left in one task of its own, as cancel scopes and task groups inside require."""

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        self._function = function
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> dict[str, Any]:
        """Enter it and return its resources by name: a dict as it is, anything else under the plugin's name.

        Raises:
            Exception: whatever the plugin raised.
            TimeoutError: it took longer than 30 s.
        """
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(entered), name=f"lifespan of {self.name}")
        done, _ = await asyncio.wait({entered, self._task}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self._task.cancel()
            raise TimeoutError(f"lifespan() did not yield within {START_S:g} s")
        value = await entered
        if value is None:
            return {}
        return dict(value) if isinstance(value, dict) else {self.name: value}

    async def stop(self) -> None:
        """Leave it, within 10 s; what it raises on the way out is nobody's business any more."""
        if self._task is None:
            return
        self._leave.set()
        await asyncio.wait({self._task}, timeout=STOP_S)
        if not self._task.done():
            self._task.cancel()
        elif not self._task.cancelled():
            self._task.exception()

    async def _live(self, entered: asyncio.Future[Any]) -> None:
        try:
            async with self._manager() as value:
                entered.set_result(value)
                await self._leave.wait()
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised on the loop these would stop the whole gateway.
            failure = RuntimeError(f"{type(error).__name__}: {error}")
            if entered.done():
                raise failure from error
            entered.set_exception(failure)
        except Exception as error:
            if entered.done():
                raise
            entered.set_exception(error)

    def _manager(self) -> AbstractAsyncContextManager[Any]:
        made = asynccontextmanager(self._function)() if isasyncgenfunction(self._function) else self._function()
        if not isinstance(made, AbstractAsyncContextManager):
            raise TypeError("lifespan must be an async generator or return an async context manager")
        return made
