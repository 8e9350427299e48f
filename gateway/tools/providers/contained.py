"""Foreign coroutine functions, kept from stopping the whole gateway.

Knows which exceptions mean something to the event loop that a plugin did not mean.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any


def contained(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same function; what is neither an `Exception` nor a cancellation comes out as a `RuntimeError` of its name.

    `SystemExit` and `KeyboardInterrupt` raised on the loop would end the process; other such exceptions pass every handler.
    """

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: something inside of it was, and the plugin let it pass.
            raise RuntimeError("it was cancelled from within") from error
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return call
