"""The Courier: takes one tool call there and brings the result back.

Knows the order of things: the name was offered, the arguments are read and validated, hooks, what is kept, the tool's place,
its ledger entry, its breaker, attempts, the result as the model sees it. Each of these is a guard of its own (`guards/`). Does
not know turns, rounds or who asked; never raises for what a tool does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.chat.blocks import ToolCall
from gateway.clock import Clock
from gateway.observe.events import Recorder
from gateway.store.turn_records import EffectRow
from gateway.tools.guards.attempts import Attempts, TimedOut, TimedOutUnknown, Unreached
from gateway.tools.guards.breakers import Breakers
from gateway.tools.guards.cache import ResultCache
from gateway.tools.guards.condensed import Condense, condensed
from gateway.tools.guards.kept import KeptResults
from gateway.tools.guards.names import UnknownTool, find
from gateway.tools.guards.paging import READ_RESULT, READ_RESULT_ARGUMENTS, page
from gateway.tools.guards.places import Busy, Places
from gateway.tools.guards.presented import presented, read_json
from gateway.tools.guards.remembered import Remembered, repeated
from gateway.tools.hooks import after_tool, before_tool
from gateway.tools.ledger import EffectPlace, Ledger, Probe, effect_key, told_key
from gateway.tools.outcome import Call, CallFailed, Done, Outcome, OutcomeUnknown, words_of
from gateway.tools.registry import Registry
from gateway.tools.result import Shown, Unencodable, failure
from gateway.tools.salvage import read_arguments
from gateway.tools.spec import InvalidArguments, ToolContext, ToolFatal, ToolRetry, ToolSpec
from gateway.tools.validate import ArgumentValidator

__all__ = ["Courier", "Outcome"]

# Most calls of one answer that run at the same time; the others wait for their turn.
MAX_PARALLEL = 16
# Most of a shortened result's whole text that goes into the trace.
MAX_TRACED_CHARS = 262_144
_HEAVY_CHARS = 65_536


class Courier:
    """Executes registry tools. One serves all turns; registries come and go with the versions.

    Args:
        clock: for timeouts and durations.
        ledger: where effects are written down before and after they happen; None where nothing has to be.

    Attributes:
        breakers: which tools are left alone for now.
    """

    def __init__(self, clock: Clock, ledger: Ledger | None = None) -> None:
        self._clock = clock
        self._ledger = ledger
        self.breakers = Breakers(clock)
        self._attempts = Attempts(clock)
        self._places = Places(clock)
        self._cache = ResultCache(clock)
        self._kept = KeptResults(clock)

    @property
    def left_behind(self) -> int:
        """How many calls still run that nobody waits for."""
        return self._attempts.left_behind

    async def execute(
        self,
        calls: Sequence[ToolCall],
        offered: Mapping[str, ToolSpec],
        context_for: Callable[[ToolCall], ToolContext],
        record: Recorder,
        *,
        parallel: bool,
        registry: Registry,
        place_for: Callable[[ToolCall], EffectPlace] | None = None,
        remembered: Remembered | None = None,
        condense: Condense | None = None,
        pictures: bool = False,
    ) -> tuple[Outcome, ...]:
        """Run calls and answer in their order, whatever order they finish in.

        Args:
            calls: as the model asked for them.
            offered: the tools this turn offered, by name; nothing else is run.
            context_for: what the tool may know of the turn.
            record: takes `tool.started`, `tool.finished` and `guard.decided`; its owner is whom results are kept for.
            parallel: whether they may run at the same time.
            registry: the turn's snapshot, which the offered specs come from.
            place_for: where a writing call stands in the ledger.
            remembered: the turn's memory of its calls; without it nothing is told of repetitions, and no result can be read on.
            pictures: whether the model is shown the pictures that tools return, or only their description.
            condense: asks a model for what matters in a long result; None where nobody does.

        Raises:
            StoreUnavailable: the ledger cannot be written; the call was not made.

        Cancelling it cancels the reading tools and waits for them, a second at most; a writing tool that has started goes
        on by itself.
        """
        errand = _Errand(offered, context_for, record, registry, place_for, remembered, condense, pictures)
        if not parallel or len(calls) == 1:
            outcomes = [await self._one(call, errand) for call in calls]
        else:
            slots = asyncio.Semaphore(MAX_PARALLEL)

            async def queued(call: ToolCall) -> Outcome:
                async with slots:
                    return await self._one(call, errand)

            outcomes = await asyncio.gather(*(queued(call) for call in calls))
        return _judged(outcomes, errand)

    async def close(self, grace_s: float = 5.0) -> None:
        """Wait for calls that were left behind, then cancel them."""
        if self._ledger is not None:
            await self._ledger.close(grace_s)
        await self._attempts.close(grace_s)

    async def _one(self, call: ToolCall, errand: _Errand) -> Outcome:
        started = self._clock.monotonic()
        context = errand.context_for(call)
        hooks = errand.registry.hooks
        arguments: dict[str, Any] | None = None
        try:
            spec = find(call.name, errand.offered)
            read, salvaged = read_arguments(call.arguments)
            validator = errand.validator(spec)
            arguments = validator.validate(read)
            if hooks["before_tool"]:
                asked = Call(call.id, call.name, arguments)
                arguments = await before_tool(hooks["before_tool"], asked, context, validator, errand.record)
        except (InvalidArguments, CallFailed, ToolFatal, ToolRetry) as error:
            done = _ended_by(error, call.name, errand.max_bytes)
            if isinstance(error, UnknownTool):
                errand.decided(call, "name", "refused")
            elif isinstance(error, InvalidArguments) and arguments is None:
                errand.refused_arguments(call)
        else:
            if salvaged:
                errand.decided(call, "arguments", "salvaged")
            started_data = {"name": call.name, "call_id": call.id, "arguments": arguments}
            errand.record.emit("tool.started", **started_data, **({"raw": call.arguments} if salvaged else {}))
            done = await self._do(call, spec, arguments, context, errand)
        outcome = Outcome(
            call.id,
            call.name,
            done.ok,
            done.content,
            done.fatal,
            self._clock.monotonic() - started,
            arguments,
            done.error,
            pictures=done.pictures,
        )
        own: Shown | None = None
        if arguments is not None and done.fatal is None and hooks["after_tool"]:
            ran = Call(call.id, call.name, arguments)

            async def show(value: Any) -> Shown:
                return (await presented(value, errand.max_bytes, self._handles(errand))).shown

            outcome, own = await after_tool(hooks["after_tool"], ran, outcome, context, show, errand.record)
        self._keep(own or Shown(done.content, done.whole, done.handle), outcome, errand)
        _emit_finished(errand.record, outcome, done)
        return outcome

    async def _do(
        self, call: ToolCall, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext, errand: _Errand
    ) -> Done:
        if spec is READ_RESULT:
            return await self._read_on(arguments, errand)
        key = self._cache.key(spec, arguments, context, errand.record.owner) if spec.cache_ttl_s else None
        if key is not None and (text := self._cache.get(key)) is not None:
            errand.decided(call, "cache", "hit")
            return await self._shown(await read_json(text), call, spec, errand)
        limit = errand.registry.limit_of(spec)
        if limit is None:
            return await self._placed(call, spec, arguments, context, errand, key)
        try:
            async with self._places.taken(spec.name, limit, spec.timeout_s) as waited_s:
                if waited_s:
                    errand.decided(call, "limit", "waited", seconds=waited_s)
                return await self._placed(call, spec, arguments, context, errand, key)
        except Busy as busy:
            errand.decided(call, "limit", "refused")
            return _ended_by(busy, call.name, errand.max_bytes)

    async def _placed(
        self,
        call: ToolCall,
        spec: ToolSpec,
        arguments: dict[str, Any],
        context: ToolContext,
        errand: _Errand,
        key: bytes | None,
    ) -> Done:
        """A call that has its place: through the ledger where it writes."""
        if not spec.writes or self._ledger is None or errand.place_for is None:
            return await self._run(call, spec, arguments, context, errand, key)
        place = errand.place_for(call)
        try:
            effect = effect_key(place, spec, arguments)
        except Exception as error:  # noqa: BLE001 - the tool's own code: a call that cannot be named is not made
            failed = CallFailed(f"`{spec.name}` was not called: its idempotency key failed: {words_of(error)}")
            return _ended_by(failed, call.name, errand.max_bytes)
        told = told_key(place.owner, effect, place.turn_id, place.round, place.position)
        context = replace(context, idempotency_key=told)

        async def run() -> Done:
            return await self._run(call, spec, arguments, context, errand)

        probe = self._probe_of(spec, context, errand.registry)
        return await self._ledger.perform(place, spec, arguments, effect, run, probe, errand.record)

    def _probe_of(self, spec: ToolSpec, context: ToolContext, registry: Registry) -> Probe | None:
        if not spec.probed:
            return None
        provider = registry.provider(spec)

        async def probe(arguments: Mapping[str, Any]) -> tuple[bool, str]:
            # Asking whether something happened only reads.
            asked = replace(spec, writes=False)
            happened, value = await self._attempts.bounded(
                provider.probe(spec.name, arguments, context), asked, spec.timeout_s
            )
            if not happened:
                return False, ""
            made = await presented(value, registry.max_result_bytes, fields=spec.result_fields)
            return True, made.shown.content

        return probe

    async def repeat(self, seen: EffectRow, context: ToolContext, registry: Registry, record: Recorder) -> Done | None:
        """Run a stored writing call once more; hooks have seen it the first time.

        Returns:
            what came of it, or None where the effect changed since it was seen.

        Raises:
            CallFailed: there is no such tool any more, or it does not take these arguments.
            StoreUnavailable: the ledger cannot be written; the call was not made.
        """
        assert self._ledger is not None, "without a ledger nothing is stored"
        spec = registry.specs.get(seen.tool)
        if spec is None or not spec.writes:
            raise CallFailed(f"There is no writing tool `{seen.tool}` any more.")
        try:
            arguments = registry.validator(spec).validate(msgspec.json.decode(seen.arguments))
        except InvalidArguments as error:
            raise CallFailed(f"`{seen.tool}` does not take the stored arguments any more: {error}") from error
        key = told_key(seen.owner, seen.effect_key, seen.turn_id, seen.round, seen.position)
        context = replace(context, idempotency_key=key)
        call = ToolCall(seen.id, seen.tool, seen.arguments)
        errand = _Errand({}, lambda _: context, record, registry)

        async def run() -> Done:
            return await self._run(call, spec, arguments, context, errand)

        return await self._ledger.repeat(seen, spec, run, self._probe_of(spec, context, registry), record)

    async def _run(
        self,
        call: ToolCall,
        spec: ToolSpec,
        arguments: dict[str, Any],
        context: ToolContext,
        errand: _Errand,
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
            return _ended_by(CallFailed(closed), call.name, errand.max_bytes)
        provider = registry.provider(spec)
        try:
            value = await self._attempts.make(
                spec,
                lambda: provider.call(spec.name, arguments, context),
                registry.config.backoff_s,
                lambda number, wait_s, why: errand.decided(
                    call, "retry", "again", attempt=number, seconds=wait_s, error=why
                ),
            )
        except (ToolFatal, InvalidArguments, ToolRetry, CallFailed) as error:
            if isinstance(error, InvalidArguments):
                errand.refused_arguments(call)
            self._learn(error, call, spec, errand)
            return _ended_by(error, call.name, errand.max_bytes)
        except asyncio.CancelledError:
            self.breakers.left(spec, registry.digest)
            raise
        self.breakers.answered(spec, registry.digest)
        return await self._shown(value, call, spec, errand, key)

    def _learn(self, error: Exception, call: ToolCall, spec: ToolSpec, errand: _Errand) -> None:
        """What a failure says about whether the tool can be reached."""
        digest = errand.registry.digest
        late = isinstance(error, TimedOut | TimedOutUnknown)
        if late:
            errand.decided(call, "timeout", "expired")
        if late or isinstance(error, Unreached | OutcomeUnknown):
            limit = errand.registry.config.breaker_failures
            if self.breakers.failed(spec, digest, limit, server=not late):
                errand.decided(call, "breaker", "opened")
        else:
            self.breakers.answered(spec, digest)

    async def _shown(
        self, value: Any, call: ToolCall, spec: ToolSpec, errand: _Errand, key: bytes | None = None
    ) -> Done:
        """What the model sees of a result that came from the tool, or was kept; `key` keeps it."""
        try:
            made = await presented(
                value,
                errand.max_bytes,
                self._handles(errand),
                fields=spec.result_fields,
                full=key is not None,
                pictures=errand.pictures,
            )
        except (CallFailed, Unencodable) as error:
            return _ended_by(error, call.name, errand.max_bytes)
        if key is not None and made.full is not None:
            self._cache.keep(key, made.full, spec.cache_ttl_s)
            errand.decided(call, "cache", "kept")
        shown = made.shown
        if errand.condense is not None:
            over_bytes = errand.registry.config.extract.over_bytes
            shown, said = await condensed(shown, errand.condense, over_bytes, errand.max_bytes, self._handles(errand))
            if said:
                errand.decided(call, "extract", said)
        if shown.whole is not None:
            errand.decided(call, "size", "shortened", chars=len(shown.whole))
        return Done(True, shown.content, whole=shown.whole, handle=shown.handle, full=made.full, pictures=made.pictures)

    def _handles(self, errand: _Errand) -> Callable[[str], str | None]:
        def handle_of(whole: str) -> str | None:
            if errand.remembered is None or not self._kept.may_keep(whole):
                return None
            return self._kept.handle_of(errand.record.owner, whole)

        return handle_of

    def _keep(self, shown: Shown, outcome: Outcome, errand: _Errand) -> None:
        """Keep the whole of what the model was shown a part of; never what a hook has withheld or replaced."""
        if outcome.ok and shown.handle is not None and shown.whole is not None and errand.remembered is not None:
            self._kept.keep(shown.handle, errand.record.owner, shown.whole)
            errand.remembered.handles.add(shown.handle)

    async def _read_on(self, arguments: dict[str, Any], errand: _Errand) -> Done:
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
            return _ended_by(error, READ_RESULT.name, errand.max_bytes)
        return Done(True, (await presented(part, errand.max_bytes)).shown.content)


class _Errand(msgspec.Struct, frozen=True):
    """What the calls of one answer share."""

    offered: Mapping[str, ToolSpec]
    context_for: Callable[[ToolCall], ToolContext]
    record: Recorder
    registry: Registry
    place_for: Callable[[ToolCall], EffectPlace] | None = None
    remembered: Remembered | None = None
    condense: Condense | None = None
    pictures: bool = False
    corrected: set[str] = msgspec.field(default_factory=set)

    @property
    def max_bytes(self) -> int:
        """Most bytes of a result that the model sees."""
        return self.registry.max_result_bytes

    def validator(self, spec: ToolSpec) -> ArgumentValidator:
        """What validates a tool's arguments."""
        return READ_RESULT_ARGUMENTS if spec is READ_RESULT else self.registry.validator(spec)

    def decided(self, call: ToolCall, guard: str, decision: str, **more: Any) -> None:
        """Leave a guard's decision in the trace."""
        self.record.emit("guard.decided", name=call.name, call_id=call.id, guard=guard, decision=decision, **more)

    def refused_arguments(self, call: ToolCall) -> None:
        """The model is asked to correct a call."""
        self.corrected.add(call.name)
        self.decided(call, "arguments", "refused")


def _judged(outcomes: Sequence[Outcome], errand: _Errand) -> tuple[Outcome, ...]:
    """The outcomes in the light of what the turn has seen before."""
    remembered = errand.remembered
    if remembered is None:
        return tuple(outcomes)
    stuck = remembered.corrected(errand.corrected) if errand.corrected else frozenset()
    judged = []
    for each in outcomes:
        outcome = each
        spec = errand.offered.get(each.name)
        if each.arguments is None and each.name in stuck:
            errand.record.emit(
                "guard.decided", name=each.name, call_id=each.call_id, guard="arguments", decision="escalated"
            )
            outcome = msgspec.structs.replace(each, escalate=True)
        elif each.ok and spec is not None and not spec.writes and remembered.repeats(each):
            errand.record.emit("guard.decided", name=each.name, call_id=each.call_id, guard="repeat", decision="told")
            content = repeated(each.content, errand.max_bytes)
            outcome = msgspec.structs.replace(each, content=content, bare=each.content)
        judged.append(outcome)
    remembered.note(outcomes)
    return tuple(judged)


def _ended_by(error: Exception, name: str, max_bytes: int) -> Done:
    """An error result in words the model can act upon."""
    fatal = None
    match error:
        case ToolFatal():
            fatal = text = str(error) or "the tool ended the turn"
        case InvalidArguments():
            text = f"Invalid arguments for `{name}`: {error}. Correct them and call it again."
        case ToolRetry():
            text = f"{str(error) or 'The tool asks for another attempt'} (correct the call and try again)"
        case _:
            text = str(error)
    return Done(False, failure(text, max_bytes), text, fatal, uncertain=isinstance(error, OutcomeUnknown))


def _emit_finished(record: Recorder, outcome: Outcome, done: Done) -> None:
    whole = done.full or done.whole
    extra: dict[str, Any] = {} if whole is None else {"whole": whole[:MAX_TRACED_CHARS]}
    if done.replayed:
        extra["replayed"] = True
    if done.uncertain:
        extra["uncertain"] = True
    record.emit(
        "tool.finished",
        name=outcome.name,
        call_id=outcome.call_id,
        ok=outcome.ok,
        seconds=outcome.seconds,
        error=outcome.error,
        content=outcome.content,
        **extra,
    )
