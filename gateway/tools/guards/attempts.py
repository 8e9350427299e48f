"""One call, made until it is answered, has failed for good, or its time is over.

Knows timeouts, what may be asked again, and how long to wait before that. Does not know results or ledgers; whatever goes on
after nobody waits for it any more is counted here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.clock import Clock
from gateway.tools.outcome import AnswerUnreadable, CallFailed, OutcomeUnknown, TransportFailed, words_of
from gateway.tools.spec import InvalidArguments, ToolFatal, ToolRetry, ToolSpec

# How long a tool may take to notice that it was cancelled; after that it is left behind, and nobody waits for it.
CANCEL_GRACE_S: Final = 1.0

_TRANSIENT = (ConnectionError, TimeoutError)


class Unreached(CallFailed):
    """The connection failed, as often as it was tried; whatever the call was for did not happen, or only reads."""


class TimedOut(CallFailed):
    """A reading tool did not answer in its time."""


class TimedOutUnknown(OutcomeUnknown):
    """A writing tool did not answer in its time."""


class AnsweredUnknown(OutcomeUnknown):
    """A writing tool's far side is there, and its answer cannot be used."""


class Attempts:
    """Makes calls. Holds those that nobody waits for any more: tools that ignore their cancellation, and writing tools whose
    client has gone.
    """

    def __init__(self, clock: Clock, dice: random.Random | None = None) -> None:
        self._clock = clock
        self._dice = dice or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._left_behind: set[asyncio.Task[Any]] = set()

    @property
    def left_behind(self) -> int:
        """How many calls still run that nobody waits for."""
        return len(self._left_behind)

    async def make(
        self,
        spec: ToolSpec,
        call: Callable[[], Awaitable[Any]],
        backoff_s: float,
        told: Callable[[int, float, str], None],
    ) -> Any:
        """What the tool returns.

        Args:
            spec: whose `timeout_s` bounds all attempts and waits together, and `retries` their number.
            call: begins one attempt.
            backoff_s: the longest wait before the second attempt; each further one may take twice as long.
            told: hears of each further attempt: its number, the seconds before it, and why.

        Raises:
            OutcomeUnknown: a writing tool's connection broke, its time was over, or its answer cannot be used; it is never asked
                again.
            Unreached: the connection failed.
            TimedOut: a reading tool's time was over.
            CallFailed: the tool raised something else.
            ToolFatal, ToolRetry, InvalidArguments: the tool raised it.
        """
        deadline = self._clock.monotonic() + spec.timeout_s
        for attempt in range(spec.retries + 1):
            try:
                return await self.bounded(call(), spec, deadline - self._clock.monotonic())
            except _TRANSIENT as error:
                if spec.writes and may_have_happened(error):
                    said = f"the connection failed: {words_of(error)}"
                    raise OutcomeUnknown(f"{said}; whether it took effect is not known") from error
                wait_s = self._wait_s(error, backoff_s, attempt)
                if attempt == spec.retries or self._clock.monotonic() + wait_s >= deadline:
                    raise Unreached(words_of(error)) from error
                told(attempt + 2, wait_s, words_of(error))
            except AnswerUnreadable as error:
                if spec.writes:
                    raise AnsweredUnknown(f"{error}; whether it took effect is not known") from error
                raise
            except (ToolFatal, ToolRetry, InvalidArguments, CallFailed):
                raise
            except Exception as error:
                raise CallFailed(words_of(error)) from error
            await self._clock.sleep(wait_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def bounded(self, running: Awaitable[Any], spec: ToolSpec, timeout_s: float) -> Any:
        """Wait for a call, `timeout_s` at most, whether or not it heeds its cancellation."""
        task = asyncio.ensure_future(running)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            if spec.writes:
                self._leave(task)
            else:
                await self.stop(task)
            raise
        if not done:
            await self.stop(task)
            said = f"`{spec.name}` did not answer within {spec.timeout_s:g} s"
            if spec.writes:
                raise TimedOutUnknown(f"{said}; whether it took effect is not known")
            raise TimedOut(said)
        if task.cancelled():
            raise CallFailed(f"`{spec.name}` was cancelled from within")
        error = task.exception()
        if error is not None and not isinstance(error, Exception):
            # A GeneratorExit, which no coroutine can hold back, would pass every handler of the turn.
            raise CallFailed(f"`{spec.name}` failed: {words_of(error)}") from error
        return task.result()

    async def stop(self, task: asyncio.Future[Any]) -> None:
        """Cancel a call and wait until it has noticed, a second at most."""
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        finally:
            self._leave(task)

    async def close(self, grace_s: float) -> None:
        """Wait for calls that were left behind, then cancel them."""
        if self._left_behind:
            _, late = await asyncio.wait(self._left_behind, timeout=grace_s)
            for task in late:
                task.cancel()

    def _wait_s(self, error: Exception, backoff_s: float, attempt: int) -> float:
        wait_s: float = backoff_s * 2**attempt * self._dice.uniform(0.5, 1.0)
        asked_s = error.retry_after_s if isinstance(error, TransportFailed) else None
        return wait_s if asked_s is None else max(wait_s, asked_s)

    def _leave(self, task: asyncio.Future[Any]) -> None:
        if isinstance(task, asyncio.Task) and not task.done():
            self._left_behind.add(task)
            task.add_done_callback(self._forget)
        elif not task.cancelled():
            task.exception()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            # Read, so that the loop does not report it as lost: nobody waits for this call any more.
            task.exception()


def may_have_happened(error: Exception) -> bool:
    """Whether what a broken connection was asked for may have been done all the same."""
    if isinstance(error, TransportFailed):
        return error.processed
    return not isinstance(error, ConnectionRefusedError)
