"""Another version whenever something beside the files has changed, such as the tools that a server offers.

Knows that news come in swarms and that a shared store may be away. Does not know what changed.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from gateway.errors import ConfigError, GatewayError

# Seconds that news are collected before a version is built, and before one that could not be published is tried again.
_COLLECT_S: Final = 0.2
_AGAIN_S: Final = 2.0


class Refreshes(Protocol):
    """What news lead to."""

    async def refresh(self) -> object:
        """Build and publish what is active anew."""
        ...


class News:
    """Waits for news and refreshes.

    Args:
        refreshes: refreshes.
    """

    def __init__(self, refreshes: Refreshes) -> None:
        self._refreshes = refreshes
        self._came = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="news")

    def tell(self) -> None:
        """Something has changed. Returns at once."""
        self._came.set()

    async def close(self) -> None:
        """Stop refreshing."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._came.wait()
            await asyncio.sleep(_COLLECT_S)
            self._came.clear()
            try:
                await self._refreshes.refresh()
            except ConfigError:
                continue  # told where it was refused; the next news are another chance
            except GatewayError:
                self._came.set()
                await asyncio.sleep(_AGAIN_S)
