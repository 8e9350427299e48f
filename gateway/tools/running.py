"""One call of one tool: from its breaker to what the model sees of its result.

Knows what a failure says about whether a tool can be reached, and keeps what was returned. Does not know names, arguments,
hooks or the ledger: who calls has seen to those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.chat.blocks import ToolCall
from gateway.clock import Clock
from gateway.tools.errand import Errand, ended_by
from gateway.tools.guards.attempts import AnsweredUnknown, Attempts, TimedOut, TimedOutUnknown, Unreached
from gateway.tools.guards.breakers import Breakers
from gateway.tools.guards.cache import ResultCache
from gateway.tools.guards.condensed import condensed
from gateway.tools.guards.kept import KeptResults
from gateway.tools.guards.paging import READ_RESULT, page
from gateway.tools.guards.presented import presented
from gateway.tools.outcome import CallFailed, Done, NotBegun, Outcome, OutcomeUnknown
from gateway.tools.result import Shown, Unencodable, success
from gateway.tools.spec import InvalidArguments, ToolContext, ToolFatal, ToolRetry, ToolSpec

_HEAVY_CHARS = 65_536


class Running:
    """Runs calls of all turns.

    Attributes:
        attempts: what makes calls, and holds those that nobody waits for.
        breakers: which tools are left alone for now.
        cache: results that are kept for whoever asks the same.
    """

    def __init__(self, clock: Clock) -> None:
        self.attempts = Attempts(clock)
        self.breakers = Breakers(clock)
        self.cache = ResultCache(clock)
        self._kept = KeptResults(clock)

    async def run(
        self,
        call: ToolCall,
        spec: ToolSpec,
        arguments: dict[str, Any],
        context: ToolContext,
        errand: Errand,
        key: bytes | None = None,
    ) -> Done:
        """Run it, and say how it ended; raises nothing but its own cancellation. `key` is what the result is kept by."""
        registry = errand.registry
        wait_s = self.breakers.enter(spec, registry.digest)
        if wait_s:
            errand.decided(call, "breaker", "refused")
            closed = (
                f"`{spec.name}` was not called: its last calls were not answered. It may be tried in {wait_s:.0f} s."
            )
            return ended_by(CallFailed(closed), call.name, errand.max_bytes)
        provider = registry.provider(spec)
        try:
            value = await self.attempts.make(
                spec,
                # A copy for each attempt: what a tool does to its arguments is neither in the trace nor in the next attempt.
                lambda: provider.call(spec.name, _copied(arguments), context),
                registry.config.backoff_s,
                lambda number, wait_s, why: errand.decided(
                    call, "retry", "again", attempt=number, seconds=wait_s, error=why
                ),
            )
        except (ToolFatal, InvalidArguments, ToolRetry, CallFailed) as error:
            if isinstance(error, InvalidArguments):
                errand.refused_arguments(call)
            self._learn(error, call, spec, errand)
            return ended_by(error, call.name, errand.max_bytes)
        except asyncio.CancelledError:
            self.breakers.left(spec, registry.digest)
            raise
        self.breakers.answered(spec, registry.digest)
        return await self.shown(value, call, spec, errand, key)

    def _learn(self, error: Exception, call: ToolCall, spec: ToolSpec, errand: Errand) -> None:
        """What a failure says about whether the tool can be reached."""
        digest = errand.registry.digest
        late = isinstance(error, TimedOut | TimedOutUnknown)
        if late:
            errand.decided(call, "timeout", "expired")
        if isinstance(error, NotBegun):
            self.breakers.left(spec, digest)
        elif late or (isinstance(error, Unreached | OutcomeUnknown) and not isinstance(error, AnsweredUnknown)):
            limit = errand.registry.config.breaker_failures
            if self.breakers.failed(spec, digest, limit, server=not late):
                errand.decided(call, "breaker", "opened")
        else:
            self.breakers.answered(spec, digest)

    async def shown(self, value: Any, call: ToolCall, spec: ToolSpec, errand: Errand, key: bytes | None = None) -> Done:
        """What the model sees of a result that came from the tool, or was kept; `key` keeps it."""
        try:
            made = await presented(
                value,
                errand.max_bytes,
                self.handles(errand),
                fields=spec.result_fields,
                full=key is not None,
                pictures=errand.pictures,
            )
        except Unencodable as error:
            if not spec.writes:
                return ended_by(error, call.name, errand.max_bytes)
            # What it was called for has happened all the same.
            return Done(True, success(f"It was done. Its result cannot be shown: {error}", errand.max_bytes).content)
        except CallFailed as error:
            return ended_by(error, call.name, errand.max_bytes)
        if key is not None and made.full is not None:
            self.cache.keep(key, made.full, spec.cache_ttl_s)
            errand.decided(call, "cache", "kept")
        shown = made.shown
        if shown.whole is not None:
            errand.decided(call, "size", "shortened", chars=len(shown.whole))
        return Done(True, shown.content, whole=shown.whole, handle=shown.handle, full=made.full, pictures=made.pictures)

    async def condensed(self, shown: Shown, call: ToolCall, errand: Errand) -> Shown:
        """The result condensed by a model, where there is one for it and the result is long."""
        if errand.condense is None:
            return shown
        over_bytes = errand.registry.config.extract.over_bytes
        made, said = await condensed(shown, errand.condense, over_bytes, errand.max_bytes, self.handles(errand))
        if said is not None:
            errand.decided(call, "extract", said)
        return made

    def handles(self, errand: Errand) -> Callable[[str], str | None]:
        """By what handle a whole result can be read on in this turn."""

        def handle_of(whole: str) -> str | None:
            if errand.remembered is None or not self._kept.may_keep(whole):
                return None
            return self._kept.handle_of(errand.record.owner, whole)

        return handle_of

    def keep(self, shown: Shown, outcome: Outcome, errand: Errand) -> None:
        """Keep the whole of what the model was shown a part of; never what a hook has withheld or replaced."""
        if outcome.ok and shown.handle is not None and shown.whole is not None and errand.remembered is not None:
            self._kept.keep(shown.handle, errand.record.owner, shown.whole)
            errand.remembered.handles.add(shown.handle)

    async def read_on(self, arguments: dict[str, Any], errand: Errand) -> Done:
        """A page of a whole result, for its owner in its conversation."""
        handle = arguments["handle"]
        text = None
        if errand.remembered is not None and handle in errand.remembered.handles:
            text = self._kept.get(handle, errand.record.owner)
        try:
            if text is None:
                raise CallFailed(f"There is no result `{handle[:80]}` to read on in any more: call its tool again.")
            heavy = len(text) > _HEAVY_CHARS
            part = (
                await asyncio.to_thread(page, text, arguments, errand.max_bytes)
                if heavy
                else page(text, arguments, errand.max_bytes)
            )
        except (CallFailed, InvalidArguments) as error:
            return ended_by(error, READ_RESULT.name, errand.max_bytes)
        return Done(True, (await presented(part, errand.max_bytes)).shown.content)


def _copied(value: Any) -> Any:
    """JSON values of the caller's own."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
