"""Connections to Redis or Valkey: how they are made, how long they may take, and what their errors mean here.

Knows no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.errors import StoreUnavailable

# Seconds that one command may take, connecting included.
COMMAND_S: Final = 2.0


def connect(url: str) -> Any:
    """A client that connects when it is first asked. `url` is `redis://`, `rediss://` or `unix://` and never shown."""
    # One retry: a connection that the server closed while it lay in the pool is found out by using it, so whatever is
    # sent may run twice. The client's own timeouts are off: they sometimes swallow a cancellation, and with it `bounded`.
    return Redis.from_url(
        url,
        socket_connect_timeout=None,
        socket_timeout=None,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        retry=Retry(NoBackoff(), 1),
        max_connections=16,
    )


async def disconnect(client: Any) -> None:
    """Close its connections, whatever state they are in."""
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(COMMAND_S):
            await client.aclose()


@asynccontextmanager
async def bounded(seconds: float = COMMAND_S) -> AsyncIterator[None]:
    """Bound what happens inside. Raises `StoreUnavailable` in the place of the client's errors."""
    try:
        async with asyncio.timeout(seconds):
            with _translated():
                yield
    except TimeoutError as error:
        raise StoreUnavailable("The server that `storage.redis` names does not answer.") from error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        reason = type(error).__name__
        raise StoreUnavailable(f"The server that `storage.redis` names cannot be used: {reason}.") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreUnavailable("What `storage.redis` holds was not written by this version.") from error
