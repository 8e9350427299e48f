"""What each conversation is on: its route, for `router.sticky`, and the tools it was offered. Each has a keeper of its own.

Knows names of conversations, which its caller made and which tell nothing, and names of routes. Does not know versions:
whether a route still exists, and may be used, is the router's to see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from cachetools import TTLCache

# Seconds that a conversation may rest and still be where it was.
KEPT_S: Final = 24 * 3600
# Conversations that one process remembers, about 10 MB; the one that rested longest goes first.
_MOST: Final = 50_000


class KeptRoutes(Protocol):
    """Remembers, and forgets after `KEPT_S` seconds. Never raises: a conversation that is forgotten is routed anew."""

    async def find(self, places: Sequence[str]) -> str | None:
        """The route kept under the first of these names that there is one for."""
        ...

    async def keep(self, place: str, route: str) -> None:
        """Keep a route under a name, in the place of an older one."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class MemoryKept:
    """In this process alone."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._routes: TTLCache[str, str] = TTLCache(_MOST, KEPT_S, timer=monotonic)

    async def find(self, places: Sequence[str]) -> str | None:
        """See `KeptRoutes`."""
        return next((route for place in places if (route := self._routes.get(place)) is not None), None)

    async def keep(self, place: str, route: str) -> None:
        """See `KeptRoutes`."""
        self._routes[place] = route

    async def close(self) -> None:
        """Nothing to let go of."""
