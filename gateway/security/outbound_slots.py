"""How many requests go out at the same time: to one host, and in all.

Knows counts and waits without a bound of its own; the caller's timeout is the bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Places for requests.

    Args:
        per_host: most requests to one host at the same time.
        total: most requests in all.
    """

    def __init__(self, per_host: int, total: int) -> None:
        self._per_host = per_host
        self._total = asyncio.Semaphore(total)
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def taken(self, host: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. Who waits for a busy host keeps nobody from another."""
        places = self._hosts.setdefault(host, asyncio.Semaphore(self._per_host))
        self._users[host] = self._users.get(host, 0) + 1
        try:
            async with places, self._total:
                yield
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._hosts[host]
