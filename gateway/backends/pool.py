"""One model: its backends and those of its fallbacks, asked until one answers.

Knows when an answer may begin anew: as long as the client has seen nothing of it, never after. Who is asked next is
`attempts.py`'s; HTTP and clients are unknown here.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, nullcontext
from typing import Final

import msgspec

from gateway.backends.attempts import Attempt, Attempts, Tier, plain_attempt
from gateway.backends.backend import ModelCall
from gateway.backends.tap import Tap, Tapped
from gateway.backends.veil import Veil, veiled
from gateway.backends.watched import WatchedBackend
from gateway.chat.answer import Answer
from gateway.chat.chunk import Chunk
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.deadlines import Deadlines
from gateway.errors import GatewayError, UpstreamTimeout
from gateway.observe.events import Recorder
from gateway.observe.metrics import BackendStanding

_EMPTY: Final = frozenset({b"null", b"false", b'""', b"[]", b"{}"})


class _MoreChoice(msgspec.Struct):
    delta: dict[str, msgspec.Raw] | None = None


class _More(msgspec.Struct):
    """A chunk's deltas with every field there is, as it is written."""

    choices: list[_MoreChoice]


_more = msgspec.json.Decoder(_More).decode


class PoolAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer, whose it is (`model` is the one asked for, or a fallback), and after how many attempts it came."""

    answer: Answer
    backend: str
    model: str
    attempt: int


class PoolBatch(msgspec.Struct, frozen=True):
    """Chunks that arrived together, and whose they are. Another `attempt` than before begins the answer anew.

    With a `tap`, what follows need not come as batches: see there.
    """

    chunks: Sequence[Chunk]
    backend: str
    model: str
    attempt: int
    tap: Tap | None = None


class Pool:
    """A model's backends.

    Args:
        name: the model's name in the configuration.
        tiers: its own backends, then those of each fallback; at least one.
        clock: time.
        dice: chance, for strategies and waits.
    """

    def __init__(self, name: str, tiers: Sequence[Tier], clock: Clock, dice: random.Random | None = None) -> None:
        self.name = name
        self._tiers = tuple(tiers)
        self._own = self._tiers[:1]
        self._only, self._first_model = self._tiers[0].only, self._tiers[0].model
        self._clock = clock
        self._deadlines = Deadlines()
        self._dice = dice or random.Random()  # noqa: S311 - spreads load, keeps no secret
        members = [member for tier in tiers for member in tier.members]
        able = [member.backend.config.capabilities for member in members]
        # Said in so many words of each: a text model would refuse the whole conversation.
        self.shows_pictures = all(each.vision and "vision" in each.model_fields_set for each in able)
        self.sized = len(members) > 1 and any(member.backend.config.context_tokens for member in members)

    @property
    def first(self) -> WatchedBackend:
        """The backend that is asked first, as it stands in the configuration."""
        return self._tiers[0].members[0].backend

    def standing(self) -> dict[str, BackendStanding]:
        """How each of its backends stands, fallbacks included."""
        now = self._clock.monotonic()
        backends = [member.backend for tier in self._tiers for member in tier.members]
        return {backend.name: backend.standing(now) for backend in backends}

    def backend_names(self, *, fallbacks: bool = True) -> tuple[str, ...]:
        """The backends, in order; those of fallbacks last."""
        tiers = self._tiers if fallbacks else self._own
        return tuple(member.backend.name for tier in tiers for member in tier.members)

    async def complete(
        self, call: ModelCall, record: Recorder, prefer: str | None = None, *, fallbacks: bool = True
    ) -> PoolAnswer:
        """Ask until one answers.

        Args:
            call: what is asked; its `timeout_s` bounds all attempts and waits together.
            record: the turn's trace.
            prefer: the backend that is asked first.
            fallbacks: whether other models may stand in.

        Raises:
            GatewayError: the last failure, when nobody answered in `call.timeout_s`.
        """
        now, only, attempts = self._clock.monotonic, self._only, None
        started = now()
        attempt = None if only is None else plain_attempt(only, self._first_model, call, started)
        while True:
            if attempt is None:
                attempts = attempts or self._attempts(call, record, prefer, started, fallbacks)
                attempt = await attempts.next()
            try:
                asked, veil = attempt.fitted(), None
                if asked.private is not None:
                    asked, veil = await _veiled(asked, attempt, record)
                answer = await attempt.key.adapter.complete(asked)
                attempt.answered(now(), streamed=False)
                if veil is not None:
                    answer = veil.answer(answer)
                return PoolAnswer(answer, attempt.backend.name, attempt.model, attempt.number)
            except (GatewayError, TimeoutError) as error:
                attempts = attempts or self._attempts(call, record, prefer, started, fallbacks, first=attempt)
                attempts.failed(attempt, _told(error, attempt, begun=True))
            except BaseException:
                attempt.leave()
                raise
            attempt = None

    async def stream(
        self,
        call: ModelCall,
        record: Recorder,
        prefer: str | None = None,
        *,
        fallbacks: bool = True,
        seen: Callable[[], bool] | None = None,
    ) -> AsyncGenerator[PoolBatch, None]:
        """Ask until one begins to answer. What an attempt sent before its first content is held back until then.

        Args:
            call: as in `complete`.
            record: as in `complete`.
            prefer: as in `complete`.
            fallbacks: as in `complete`.
            seen: whether the client has seen anything of what was yielded; without it, everything yielded was seen.

        Raises:
            GatewayError: the last failure before the client saw content, or any failure after it.
        """
        now, only, attempts = self._clock.monotonic, self._only, None
        started = now()
        attempt = None if only is None else plain_attempt(only, self._first_model, call, started)
        while True:
            if attempt is None:
                attempts = attempts or self._attempts(call, record, prefer, started, fallbacks, streamed=True)
                attempt = await attempts.next()
            name, model, number = attempt.backend.name, attempt.model, attempt.number
            held: list[Chunk] = []
            begun = False
            lost: Usage | None = None
            try:
                asked, veil = attempt.fitted(), None
                if asked.private is not None:
                    asked, veil = await _veiled(asked, attempt, record)
                stream = attempt.key.adapter.stream(asked)
                batches = stream if veil is None else _unveiled(stream, veil)
                try:
                    async for batch in batches:
                        if begun:
                            if seen is not None:
                                lost = _usage(batch) or lost
                            yield PoolBatch(batch, name, model, number, batch.tap if type(batch) is Tapped else None)
                            continue
                        held += batch
                        last = batch if _has_content(batch) else await self._content_follows(batches, held, attempt)
                        if last is not None:
                            attempt.began(now())
                        begun = True
                        yield PoolBatch(held, name, model, number, last.tap if type(last) is Tapped else None)
                except BaseException:
                    await batches.aclose()
                    raise
                attempt.answered(now(), streamed=True)
            except (GatewayError, TimeoutError) as error:
                # What was seen is seen, however the rest of it fails: nobody begins it anew.
                seen_it = begun and (seen is None or seen())
                attempts = attempts or self._attempts(
                    call, record, prefer, started, fallbacks, streamed=True, first=attempt
                )
                # Of what the client has seen, the turn books the usage itself.
                usage = None if seen_it else lost or _usage(held)
                attempts.failed(attempt, _told(error, attempt, begun=begun), begun=seen_it, usage=usage)
            else:
                return
            finally:
                attempt.leave()
            attempt = None

    def _attempts(
        self,
        call: ModelCall,
        record: Recorder,
        prefer: str | None,
        started: float,
        fallbacks: bool,
        *,
        streamed: bool = False,
        first: Attempt | None = None,
    ) -> Attempts:
        """A call's attempts, from the first on or behind a plain one; `started` in monotonic seconds."""
        tiers = self._tiers if fallbacks else self._own
        until = started + call.timeout_s
        attempts = Attempts(tiers, call, record, self._clock, self._dice, prefer, streamed, until)
        if first is not None:
            attempts.go_on_after(first)
        return attempts

    async def _content_follows(
        self, batches: AsyncGenerator[Sequence[Chunk], None], held: list[Chunk], attempt: Attempt
    ) -> Sequence[Chunk] | None:
        """Read on behind a beginning that says nothing, up to the first content; the batch that brought it, None without any.

        Until something comes the adapter bounds the wait, and the deadline is kept by it and by the turn.
        """
        limit_s = attempt.backend.config.first_token_timeout_s
        left_s = limit_s - (self._clock.monotonic() - attempt.started)
        with self._deadlines.within(left_s) if limit_s < attempt.call.timeout_s else nullcontext():
            async for batch in batches:
                held += batch
                if _has_content(batch):
                    return batch
        return None


async def _veiled(call: ModelCall, attempt: Attempt, record: Recorder) -> tuple[ModelCall, Veil | None]:
    """The call as the attempt's backend may see it; the trace tells what was hidden."""
    masked, veil = await veiled(call, attempt.backend.name)
    if veil is not None and call.private is not None:
        record.emit(
            "attempt.masked",
            backend=attempt.backend.name,
            model=attempt.model,
            attempt=attempt.number,
            kinds=dict(call.private.masking.kinds),
        )
    return masked, veil


async def _unveiled(
    batches: AsyncGenerator[Sequence[Chunk], None], veil: Veil
) -> AsyncGenerator[Sequence[Chunk], None]:
    """A stream with its values back."""
    async with aclosing(batches):
        async for batch in batches:
            if shown := veil.feed(batch):
                # A batch of its own: nothing may pass unseen that may have to be given back.
                yield [*shown]


def _told(error: GatewayError | TimeoutError, attempt: Attempt, *, begun: bool) -> GatewayError:
    """How an attempt failed; a bare timeout in words, by whether a stream's first content was waited for or anything else."""
    if isinstance(error, GatewayError):
        return error
    call, wait_s = attempt.call, attempt.backend.config.first_token_timeout_s
    what = f"sent no content for {min(wait_s, call.timeout_s):g} s" if not begun else "did not answer in time"
    late = UpstreamTimeout(f"`{call.model}` {what}.")
    late.__cause__ = error
    return late


def _usage(held: Sequence[Chunk]) -> Usage | None:
    said = (chunk.fields.usage for chunk in reversed(held))
    return next((usage.usage() for usage in said if usage is not None and not usage.blank), None)


def _has_content(batch: Sequence[Chunk]) -> bool:
    """Whether anything a client would notice is in it: more than a role, a preamble or usage."""
    for chunk in batch:
        for choice in chunk.choices:
            delta = choice.delta
            if choice.finish_reason:
                return True
            if delta is not None and (
                delta.content
                or delta.tool_calls
                or delta.reasoning_content
                or delta.reasoning
                or delta.refusal
                or delta.function_call
            ):
                return True
    return any(map(_says_more, batch))


def _says_more(chunk: Chunk) -> bool:
    """Whether it says something in a field that the gateway does not act upon, such as sound."""
    if not chunk.choices:
        return False
    deltas = (choice.delta or {} for choice in _more(chunk.data).choices)
    return any(name != "role" and bytes(value) not in _EMPTY for delta in deltas for name, value in delta.items())
