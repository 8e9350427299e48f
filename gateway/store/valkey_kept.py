"""The route each conversation is on, in Redis or Valkey, for replicas that share their conversations.

A server that is away costs one request a moment and the others nothing: nobody is asked again for a few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gateway.errors import StoreUnavailable
from gateway.store.kept import KEPT_S
from gateway.store.valkey_client import bounded, connect, disconnect

_log = logging.getLogger(__name__)

# Seconds a request may wait for what only makes its answer steadier, and how long a server that failed is left alone.
_WAIT_S: Final = 0.25
_AWAY_S: Final = 5.0


class ValkeyKept:
    """`KeptRoutes` over a Redis or Valkey server.

    Args:
        url: `redis://`, `rediss://` or `unix://`; never shown.
        prefix: what every key begins with.
        monotonic: time.
        lost: what becomes of conversations while the server is away, for the log.
    """

    def __init__(
        self, url: str, prefix: str, monotonic: Callable[[], float], lost: str = "conversations are routed anew"
    ) -> None:
        self._lost = lost
        self._redis = connect(url)
        # One hash slot, so that several may be asked for at once in a cluster.
        self._prefix = f"{prefix}{{sticky}}:"
        self._monotonic = monotonic
        self._asked_again = -1.0

    async def find(self, places: Sequence[str]) -> str | None:
        """See `KeptRoutes`."""
        if not places or self._monotonic() < self._asked_again:
            return None
        try:
            async with bounded(_WAIT_S):
                found = await self._redis.mget([self._prefix + place for place in places])
        except StoreUnavailable as error:
            self._failed(error)
            return None
        return next((route.decode("utf-8", "replace") for route in found if route is not None), None)

    async def keep(self, place: str, route: str) -> None:
        """See `KeptRoutes`."""
        if self._monotonic() < self._asked_again:
            return
        try:
            async with bounded(_WAIT_S):
                await self._redis.set(self._prefix + place, route, ex=KEPT_S)
        except StoreUnavailable as error:
            self._failed(error)

    def _failed(self, error: StoreUnavailable) -> None:
        self._asked_again = self._monotonic() + _AWAY_S
        _log.warning("%s for %g s: %s", self._lost, _AWAY_S, error.message)

    async def close(self) -> None:
        """Close connections."""
        await disconnect(self._redis)
