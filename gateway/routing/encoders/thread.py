"""The one thread in which an encoder loads and encodes.

Knows how to keep foreign, CPU-bound work off the event loop and how to stop. Does not know encoders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gateway.routing.encoder import EncoderFailed

P = ParamSpec("P")
T = TypeVar("T")

# Longest that closing waits for a call which is still running; encoding takes milliseconds, loading seconds.
_CLOSE_S = 5.0


class EncoderThread:
    """Runs calls one after the other. The thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` there and wait for it. Raises what it raises, and `EncoderFailed` once closed."""
        if self._closed:
            raise EncoderFailed(f"encoder {self._name!r} is closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"encoder-{self._name}")
        future = self._executor.submit(call, *args, **kwargs)
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Drop what has not begun and wait, for a bounded time, for what has."""
        self._closed = True
        executor, self._executor = self._executor, None
        if executor is None:
            return
        executor.shutdown(wait=False, cancel_futures=True)
        waiting = asyncio.create_task(asyncio.to_thread(executor.shutdown))
        await asyncio.wait({waiting}, timeout=_CLOSE_S)
