"""One call's way through its backends: who is asked next, after which wait, and when it is enough.

Knows tiers (a model, then what stands in for it), retries, places and the deadline. Does not know what an answer looks
like: it is told how each attempt ended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import field

from gateway.backends.backend import ModelCall
from gateway.backends.choice import Member, Needs, cannot, in_order, missing, needs_of
from gateway.backends.places import wait_for_place
from gateway.backends.retry import Verdict, backoff_s, verdict
from gateway.backends.tool_schemas import said_in
from gateway.backends.watched import Key, WatchedBackend
from gateway.chat.layout import laid_out
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.config.models import Balance
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    InvalidRequest,
    QueueFull,
    UpstreamError,
    UpstreamHungUp,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.observe.events import Recorder

# A retry that is due within this time goes to the same backend; before a longer wait the others are asked.
_SOON_S: Final = 1.0
# Nobody waits longer than this for a retry: the client's own retry, or a fallback, serves better.
_LONGEST_WAIT_S: Final = 10.0
_QUEUE_RETRY_S: Final = 1.0
# A kept connection that its server closes as it is used again says so within one way there and back. Later, the server may have
# been at work on the answer.
_STALE_S: Final = 1.0


class Tier(NamedTuple):
    """The backends of one model, which are asked before those of the next tier.

    Attributes:
        choosy: whether one of them lacks a capability, so that calls have to be looked at.
    """

    model: str
    members: tuple[Member, ...]
    balance: Balance
    retries: int
    choosy: bool = False

    @property
    def only(self) -> WatchedBackend | None:
        """Its backend, where there is nothing to choose: neither among several nor by what a call needs."""
        return None if self.choosy or len(self.members) != 1 else self.members[0].backend


class _Try(msgspec.Struct, eq=False):
    """What is left for one backend: attempts, and `moves` to another of its keys, which are no retries: nobody is asked twice.

    `tighter` where it said that the prompt was too long: it may be asked once more, with less. `was_stale` where a connection to
    it had been closed as it was used: it was asked once more, which is no retry either.
    """

    backend: WatchedBackend
    left: int
    moves: int
    failures: int = 0
    not_before: float = 0.0
    tighter: bool = False
    was_stale: bool = False


class Attempt(msgspec.Struct, eq=False):
    """One request to one backend, its place taken and its breaker entered. Ends by `leave`, told or untold how."""

    backend: WatchedBackend
    key: Key
    model: str
    call: ModelCall
    started: float
    _ticket: int
    number: int = 1
    tighter: bool = False
    was_sent: bool = True
    was_cut: bool = False
    _left: bool = False
    _known: bool = False

    def fitted(self) -> ModelCall:
        """What is sent: the call, its tools, messages and their order as the backend takes them, and no more than it takes.

        Raises:
            ContextTooLong: it does not fit.
        """
        call, backend = self.call, self.backend
        if call.tools_in is not None:
            call = said_in(call, backend.tool_schemas)
        fit = call.fit
        if fit is not None and (fit.always or self.tighter or backend.sized):
            try:
                fitted = fit.fit(call, backend.name, backend.config, tighter=self.tighter)
            except ContextTooLong:
                self.was_sent = False
                raise
            if fitted is not call:
                self.was_cut = True
                call = fitted
        if backend.layout is not None:
            call = msgspec.structs.replace(call, messages=laid_out(call.messages, backend.layout))
        return call

    def began(self, now: float) -> None:
        """The first content of a stream has come."""
        self.backend.first_token.measured(now - self.started, now)
        self.backend.breaker.began(self._ticket)

    def answered(self, now: float, *, streamed: bool) -> None:
        """The answer is complete, and the place free again."""
        backend = self.backend
        backend.breaker.answered(self._ticket, now)
        if not streamed:
            backend.whole.measured(now - self.started, now)
        self._left = True
        backend.places.release()

    def judged(self, found: Verdict, now: float, *, fault: bool) -> None:
        """It failed: tell the breaker whose fault it was."""
        self._known = True
        breaker = self.backend.breaker
        if fault:
            breaker.failed(self._ticket, now)
        elif self.was_sent and found.kind in {"refused", "too_long"}:
            breaker.answered(self._ticket, now)  # it understood the request well enough to refuse it
        else:
            breaker.left(self._ticket)

    def leave(self) -> None:
        """Give the place back. May be called twice."""
        if self._left:
            return
        self._left = True
        if not self._known:
            self.backend.breaker.left(self._ticket)
        self.backend.places.release()


def plain_attempt(backend: WatchedBackend, model: str, call: ModelCall, now: float) -> Attempt | None:
    """A call's first attempt, where its backend can be asked at once: the same as that of `Attempts.next`, for less.

    Args:
        backend: the only one of its tier.
        model: the tier's.
        call: what is asked.
        now: monotonic seconds.
    """
    if not backend.breaker.closed or not backend.places.take():
        return None
    return Attempt(backend, backend.only_key or backend.key(now), model, call, now, backend.breaker.era)


class Attempts(msgspec.Struct, eq=False):
    """The attempts of one call.

    Args:
        tiers: the model's backends, then those of its fallbacks.
        call: what is asked.
        record: the turn's trace.
        clock: time.
        dice: chance, for strategies and waits.
        prefer: the backend that is asked first, if it is in the first tier.
        streamed: whether the answer is a stream.
        until: when everything has to be over, waits included: monotonic seconds.
    """

    _tiers: Sequence[Tier]
    _call: ModelCall
    _record: Recorder
    _clock: Clock
    _dice: random.Random
    _prefer: str | None
    _streamed: bool
    until: float
    _tier: int = 0
    _tries: list[_Try] | None = None
    _asked: set[WatchedBackend] = field(default_factory=set)
    _current: _Try | None = None
    _number: int = 0
    _last: GatewayError | None = None
    _needs: Needs | None = None
    _lacks: list[str] = field(default_factory=list)
    _too_small: list[WatchedBackend] = field(default_factory=list)
    _opens_in: float | None = None

    def go_on_after(self, first: Attempt) -> None:
        """The first attempt was a plain one: go on behind it."""
        own = self._current = _Try(first.backend, self._tiers[0].retries + 1, first.backend.key_count - 1)
        self._tries = [own]
        self._asked.add(first.backend)
        self._number = first.number

    async def next(self) -> Attempt:
        """The next attempt, when its time has come and its place is free.

        Raises:
            GatewayError: nothing is left to try: the last failure, or why nobody could be asked.
        """
        while self._tier < len(self._tiers):
            tier = self._tiers[self._tier]
            if self._tries is None:
                self._tries = self._enter(tier)
            attempt = await self._from(tier, self._tries)
            if attempt is not None:
                return attempt
            self._tier += 1
            self._tries = self._current = None
        raise self._last or self._nobody()

    def failed(self, attempt: Attempt, error: GatewayError, *, begun: bool = False, usage: Usage | None = None) -> None:
        """Note a failure, and what is left after it.

        Args:
            attempt: which one; its place is given back.
            error: how it failed.
            begun: the client has seen a part of the answer, so that nobody else may give it anew.
            usage: tokens the failed attempt has cost, where the upstream said so.

        Raises:
            GatewayError: the same, where asking again would be wrong.
        """
        now = self._clock.monotonic()
        found = verdict(error)
        # A time limit that was the client's or the turn's says nothing of the backend.
        fault = found.fault and not (found.kind == "timeout" and now >= self.until - 0.01)
        stale = isinstance(error, UpstreamHungUp) and now - attempt.started <= _STALE_S
        attempt.judged(found, now, fault=fault and not stale)
        attempt.leave()
        if found.key:
            attempt.backend.rest(attempt.key, error, now, denied=found.kind == "denied")
        self._record.failed_attempts += 1
        self._record.emit(
            "attempt.failed",
            backend=attempt.backend.name,
            model=attempt.model,
            attempt=attempt.number,
            outcome=found.kind,
            error=error.message,
            status=error.status if isinstance(error, UpstreamError) else None,
            seconds=round(now - attempt.started, 4),
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
        )
        if begun or not (found.again or found.elsewhere):
            raise error
        if isinstance(error, ContextTooLong) and isinstance(self._last, ContextTooLong) and not attempt.was_sent:
            error = ContextTooLong(f"{self._last.message} {error.message}", param=error.param)
        elif isinstance(error, ContextTooLong) and attempt.tighter and self._call.fit is not None:
            error = ContextTooLong(f"{error.message} {self._call.fit.cannot_shrink()}".strip(), param=error.param)
        self._last = error
        assert self._current is not None
        if stale and not self._current.was_stale:
            self._current.was_stale = True
            return
        self._after(self._current, attempt, error, found, now)

    def _after(self, own: _Try, attempt: Attempt, error: GatewayError, found: Verdict, now: float) -> None:
        own.failures += 1
        if found.key and own.moves > 0 and not own.backend.rests_s(now):
            own.moves -= 1
            own.not_before = now
            return
        own.left = own.left - 1 if found.again else 0
        own.not_before = now + backoff_s(error, own.failures, self._dice)
        if isinstance(error, ContextTooLong) and self._worth_cutting(own, attempt):
            own.tighter = True
            own.left = 1
            own.not_before = now
            return
        if isinstance(error, ContextTooLong):
            self._too_small.append(own.backend)
            for each in self._tries or ():
                if self._is_too_small(each.backend):
                    each.left = 0

    def _worth_cutting(self, own: _Try, attempt: Attempt) -> bool:
        """Whether a backend that found the prompt too long is asked once more, with less: nobody else would take all of it."""
        if self._call.fit is None or own.tighter or not attempt.was_sent:
            return False
        others = self._tier + 1 < len(self._tiers) or any(
            each.left > 0 for each in self._tries or () if each is not own
        )
        return attempt.was_cut or not others

    def _enter(self, tier: Tier) -> list[_Try]:
        """Who may be asked in this tier, in order."""
        now = self._clock.monotonic()
        members = in_order(tier.members, tier.balance, dice=self._dice, streamed=self._streamed, now=now)
        if len(members) > 1:
            tokens, prefer = self._call.tokens, self._prefer if self._tier == 0 else None
            if tokens or prefer:
                members.sort(
                    key=lambda each: (
                        _is_short(each, tokens),
                        each.backend.rests_s(now) > 0,
                        each.backend.name != prefer,
                    )
                )
        if tier.choosy and self._needed().tools:
            # Whoever has to be asked in text comes last.
            members.sort(key=lambda each: not each.backend.config.capabilities.tools)
        tries = []
        for member in members:
            backend = member.backend
            if backend in self._asked or (self._too_small and self._is_too_small(backend)):
                continue
            if tier.choosy and (lacking := missing(backend.config, self._needed())) is not None:
                self._lacks.append(lacking)
                self._record.emit("attempt.skipped", backend=backend.name, model=tier.model, reason=lacking)
                continue
            self._asked.add(backend)
            tries.append(_Try(backend, tier.retries + 1, backend.key_count - 1))
        return tries

    async def _from(self, tier: Tier, tries: list[_Try]) -> Attempt | None:
        """The next attempt within a tier; None when the tier is spent."""
        while True:
            now = self._clock.monotonic()
            if now >= self.until:
                self._tier = len(self._tiers)
                return None
            able = [each for each in tries if each.left > 0 and each.backend.breaker.admits(now)]
            if not able:
                self._note_breakers(tier, tries, now)
                return None
            chosen = self._choose(able, now)
            if chosen is None:
                return None
            if chosen.not_before > now:
                self._current = chosen
                await self._sleep(chosen, chosen.not_before - now)
                continue
            taken = chosen if chosen.backend.places.take() else await self._place(tier, able, now)
            if taken is None:
                return None
            now = self._clock.monotonic()
            if not taken.backend.breaker.admits(now) or now >= self.until:
                taken.backend.places.release()
                continue
            self._current = taken
            self._number += 1
            backend, call, ticket = taken.backend, self._within(now), taken.backend.breaker.enter()
            return Attempt(backend, backend.key(now), tier.model, call, now, ticket, self._number, taken.tighter)

    def _choose(self, able: Sequence[_Try], now: float) -> _Try | None:
        """The one that was asked last if its retry is due soon, else the first that may be asked now, else the next."""
        current = self._current
        if current is not None and current in able and current.not_before - now <= _SOON_S:
            chosen = current
        else:
            chosen = min(able, key=lambda each: max(each.not_before, now))
        wait_s = chosen.not_before - now
        return None if wait_s > _LONGEST_WAIT_S or chosen.not_before >= self.until else chosen

    async def _place(self, tier: Tier, able: Sequence[_Try], now: float) -> _Try | None:
        """A place at any of those that may be asked now; None when they are too many who wait, or time is up."""
        ready = [each for each in able if each.not_before <= now]
        for each in ready:
            if each.backend.places.take():
                return each
        waiting = [each for each in ready if not each.backend.places.queue_is_full]
        if not waiting:
            self._last = self._last or QueueFull(
                f"`{self._call.model}` is busy, and too many wait for it already.", retry_after_s=_QUEUE_RETRY_S
            )
            return None
        places = await wait_for_place([each.backend.places for each in waiting], self.until - now)
        if places is None:
            # The time is up, though the clock may say so only in a moment: timers go off up to a millisecond early.
            self._last = self._last or self._busy()
            self._tier = len(self._tiers)
            return None
        taken = next(each for each in waiting if each.backend.places is places)
        self._waited(tier.model, taken.backend, "queue", self._clock.monotonic() - now)
        return taken

    async def _sleep(self, chosen: _Try, seconds: float) -> None:
        await self._clock.sleep(seconds)
        # Timers go off up to a millisecond early: what is left of the wait is no second one.
        chosen.not_before = min(chosen.not_before, self._clock.monotonic())
        self._waited(self._tiers[self._tier].model, chosen.backend, "retry", seconds)

    def _waited(self, model: str, backend: WatchedBackend, reason: str, seconds: float) -> None:
        self._record.emit("attempt.waited", backend=backend.name, model=model, reason=reason, seconds=round(seconds, 4))

    def _within(self, now: float) -> ModelCall:
        call, left_s = self._call, self.until - now
        if left_s >= call.timeout_s:
            return call
        return msgspec.structs.replace(call, timeout_s=max(0.001, left_s))

    def _needed(self) -> Needs:
        if self._needs is None:
            self._needs = needs_of(self._call)
        return self._needs

    def _is_too_small(self, backend: WatchedBackend) -> bool:
        """Whether this backend would say of the prompt what another one has said already."""
        mine = backend.config
        for other in (small.config for small in self._too_small):
            if mine.context_tokens and other.context_tokens:
                if mine.context_tokens <= other.context_tokens:
                    return True
            elif (mine.provider, mine.model, mine.base_url) == (other.provider, other.model, other.base_url):
                return True
        return False

    def _note_breakers(self, tier: Tier, tries: Sequence[_Try], now: float) -> None:
        for each in tries:
            if each.left > 0:
                wait_s = each.backend.breaker.opens_in(now)
                self._opens_in = wait_s if self._opens_in is None else min(wait_s, self._opens_in)
                self._record.emit("attempt.skipped", backend=each.backend.name, model=tier.model, reason="breaker")

    def _busy(self) -> GatewayError:
        """Nobody had a place in time."""
        return UpstreamTimeout(f"`{self._call.model}` was busy until the time was up.")

    def _nobody(self) -> GatewayError:
        """Why nobody was asked at all."""
        model = self._call.model
        if self._clock.monotonic() >= self.until:
            return self._busy()
        if self._opens_in is not None:
            return UpstreamUnavailable(
                f"The upstreams of `{model}` have failed again and again; they are left alone for a moment.",
                status=503,
                retry_after_s=max(1.0, self._opens_in),
            )
        if self._lacks:
            return cannot(self._lacks, model)
        return InvalidRequest(f"The model `{model}` has no backend for this request.")


def _is_short(member: Member, tokens: int) -> bool:
    context = member.backend.config.context_tokens
    return bool(tokens and context and tokens > context)
