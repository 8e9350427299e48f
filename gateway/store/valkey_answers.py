"""Answers kept in Redis or Valkey, shared by replicas of one version.

One key an answer, with an expiry; how many there may be is the server's own `maxmemory`. A cache must not make a request
slow: each command is bounded, and a server that does not answer is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.clock import Clock
from gateway.errors import StoreUnavailable

# Seconds one command may take: a model takes longer, a client hardly sees it.
_COMMAND_S: Final = 0.25
# Seconds for which a server that failed is not asked.
_REST_S: Final = 5.0


class ValkeyAnswers:
    """`AnswerStore` over a Redis or Valkey server.

    Args:
        url: `redis://`, `rediss://` or `unix://`; never shown.
        prefix: what every key begins with.
        clock: time.
    """

    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        # The client's own timeouts are off: they sometimes swallow a cancellation.
        self._redis: Any = Redis.from_url(
            url,
            socket_connect_timeout=None,
            socket_timeout=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
            retry=Retry(NoBackoff(), 1),
            max_connections=64,
        )
        self._prefix = f"{prefix}answer:"
        self._clock = clock
        self._rests_until = 0.0

    async def get(self, key: str) -> bytes | None:
        """The value, while it lives."""
        found: bytes | None = await self._ask(self._redis.get, self._prefix + key)
        return found

    async def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """Keep a value."""
        await self._ask(self._redis.set, self._prefix + key, value, px=max(1, int(ttl_s * 1000)))

    async def close(self) -> None:
        """Close connections."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_COMMAND_S):
                await self._redis.aclose()

    async def _ask(self, command: Any, *arguments: Any, **options: Any) -> Any:
        if self._clock.monotonic() < self._rests_until:
            raise StoreUnavailable("The server that `storage.redis` names failed a moment ago.")
        try:
            async with asyncio.timeout(_COMMAND_S):
                return await command(*arguments, **options)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            self._rests_until = self._clock.monotonic() + _REST_S
            raise StoreUnavailable("The server that `storage.redis` names cannot be used.") from error
