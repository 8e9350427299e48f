"""One model: its backends in order, and a second try where the first did no harm.

Knows when an attempt may be repeated: always before content, never after it. Does not know HTTP or clients.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from gateway.backends.backend import Backend, ModelCall
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk
from gateway.clock import Clock
from gateway.errors import GatewayError, UpstreamError
from gateway.observe.events import Recorder

_BACKOFF_S = 0.1
_LONGEST_WAIT_S = 5.0


class PoolAnswer(msgspec.Struct, frozen=True):
    """An answer, who gave it and how many seconds the attempt took."""

    answer: Answer
    backend: str
    seconds: float


class PoolBatch(msgspec.Struct, frozen=True):
    """Chunks that arrived together, and whose they are."""

    chunks: Sequence[Chunk]
    backend: str


class Pool:
    """A model's backends.

    Args:
        name: the model's name in the configuration.
        backends: tried in this order.
        retries: how many more attempts a failing backend gets before the next one is asked.
    """

    def __init__(self, name: str, backends: Sequence[Backend], *, retries: int, clock: Clock) -> None:
        self.name = name
        self._backends = tuple(backends)
        self._retries = retries
        self._clock = clock

    def backend_names(self) -> tuple[str, ...]:
        """The backends, in order."""
        return tuple(backend.name for backend in self._backends)

    async def complete(self, call: ModelCall, record: Recorder, prefer: str | None = None) -> PoolAnswer:
        """Ask until one answers. `prefer` names the backend that is asked first.

        Raises:
            GatewayError: the last failure, when nobody answered in `call.timeout_s`.
        """
        until = self._clock.monotonic() + call.timeout_s
        attempts = self._attempts(prefer)
        while True:
            backend, _ = attempts[0]
            started = self._clock.monotonic()
            try:
                answer = await backend.complete(_within(call, until - started))
            except GatewayError as error:
                attempts = await self._left(error, attempts, started, until, record)
                if not attempts:
                    raise
                continue
            return PoolAnswer(answer, backend.name, self._clock.monotonic() - started)

    async def stream(
        self, call: ModelCall, record: Recorder, prefer: str | None = None
    ) -> AsyncGenerator[PoolBatch, None]:
        """Ask until one begins to answer. What an attempt sent before its first content is held back until then.

        Raises:
            GatewayError: the last failure before content, or any failure after it.
        """
        until = self._clock.monotonic() + call.timeout_s
        attempts = self._attempts(prefer)
        while True:
            backend, _ = attempts[0]
            started = self._clock.monotonic()
            held: list[Chunk] | None = []
            try:
                async with aclosing(backend.stream(_within(call, until - started))) as batches:
                    async for batch in batches:
                        if held is None:
                            yield PoolBatch(batch, backend.name)
                            continue
                        held += batch
                        if _has_content(batch):
                            begun, held = held, None
                            yield PoolBatch(begun, backend.name)
                if held:
                    yield PoolBatch(held, backend.name)
            except GatewayError as error:
                left = await self._left(error, attempts, started, until, record, begun=held is None)
                if not left:
                    raise
                attempts = left
                continue
            return

    def _attempts(self, prefer: str | None) -> Sequence[tuple[Backend, int]]:
        order = sorted(self._backends, key=lambda backend: backend.name != prefer) if prefer else self._backends
        return [(backend, attempt) for backend in order for attempt in range(self._retries + 1)]

    async def _left(
        self,
        error: GatewayError,
        attempts: Sequence[tuple[Backend, int]],
        started: float,
        until: float,
        record: Recorder,
        *,
        begun: bool = False,
    ) -> Sequence[tuple[Backend, int]]:
        """Note the first attempt's failure, wait, and say which attempts are left; none where trying again is wrong."""
        backend, attempt = attempts[0]
        now = self._clock.monotonic()
        status = error.status if isinstance(error, UpstreamError) else None
        record.emit(
            "attempt.failed", backend=backend.name, error=error.message, status=status, seconds=round(now - started, 4)
        )
        if begun or not error.retryable:
            return ()
        left = attempts[1:]
        wait_s = (error.retry_after_s or 0.0) + random.uniform(0, _BACKOFF_S * 2**attempt)  # noqa: S311 - jitter, not a secret
        if wait_s > _LONGEST_WAIT_S or now + wait_s >= until:
            left = [each for each in left if each[0] is not backend]
        if not left or now >= until:
            return ()
        if left[0][0] is backend:
            await self._clock.sleep(wait_s)
        return left


def _within(call: ModelCall, seconds: float) -> ModelCall:
    if seconds >= call.timeout_s:
        return call
    return ModelCall(call.messages, call.fields, call.trace_id, max(0.001, seconds), call.model)


def _has_content(batch: Sequence[Chunk]) -> bool:
    """Whether anything a client would notice is in it: more than a role, a preamble or usage."""
    for chunk in batch:
        for choice in chunk.choices:
            delta = choice.delta
            if choice.finish_reason:
                return True
            if delta is not None and (
                delta.content or delta.tool_calls or delta.reasoning_content or delta.reasoning or delta.refusal
            ):
                return True
    return False
