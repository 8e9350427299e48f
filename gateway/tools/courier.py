"""The Courier: takes one tool call there and brings the result back.

Knows the order of things: the name was offered, the arguments are read and validated, hooks, what is kept, the tool's place,
its ledger entry, the call itself (`running.py`), hooks again. Each guard has a file of its own (`guards/`). Does not know turns,
rounds or who asked; never raises for what a tool does.
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
from gateway.saga.owed import undo_key
from gateway.store.turn_records import EffectRow
from gateway.tools.errand import Errand, Gate, emit_finished, ended_by, judged
from gateway.tools.guards.condensed import Condense
from gateway.tools.guards.names import UnknownTool, find
from gateway.tools.guards.paging import READ_RESULT
from gateway.tools.guards.places import Busy, Places
from gateway.tools.guards.presented import presented, read_json
from gateway.tools.guards.remembered import Remembered
from gateway.tools.hooks import after_tool, before_tool
from gateway.tools.ledger import EffectPlace, Ledger, Probe, effect_key, told_key
from gateway.tools.outcome import Call, CallFailed, Done, Outcome, words_of
from gateway.tools.registry import Registry
from gateway.tools.result import Shown
from gateway.tools.running import Running
from gateway.tools.salvage import read_arguments
from gateway.tools.spec import InvalidArguments, ToolContext, ToolFatal, ToolRetry, ToolSpec
from gateway.tools.undo import result_of, undo_arguments

__all__ = ["Courier", "Outcome"]

# Most calls of one answer that run at the same time; the others wait for their turn.
MAX_PARALLEL = 16


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
        self._running = Running(clock)
        self._places = Places(clock)
        self.breakers = self._running.breakers

    @property
    def left_behind(self) -> int:
        """How many calls still run that nobody waits for."""
        return self._running.attempts.left_behind

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
        gate: Gate | None = None,
        confidences: Mapping[str, float | None] | None = None,
        hooked: bool = False,
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
            gate: what every call has to pass before it is made; None where nothing stops any.
            confidences: how sure the model is of calls, by id.
            hooked: whether `before_tool` hooks have seen these calls already.

        Raises:
            StoreUnavailable: the ledger cannot be written; the call was not made.

        Cancelling it cancels the reading tools and waits for them, a second at most; a writing tool that has started goes
        on by itself.
        """
        errand = Errand(
            offered,
            context_for,
            record,
            registry,
            place_for,
            remembered,
            condense,
            pictures,
            gate,
            confidences or {},
            hooked,
        )
        if not parallel or len(calls) == 1:
            outcomes = [await self._one(call, errand) for call in calls]
        else:
            slots = asyncio.Semaphore(MAX_PARALLEL)

            async def queued(call: ToolCall) -> Outcome:
                async with slots:
                    return await self._one(call, errand)

            outcomes = await asyncio.gather(*(queued(call) for call in calls))
        return judged(outcomes, errand)

    async def close(self, grace_s: float = 5.0) -> None:
        """Wait for calls that were left behind, then cancel them."""
        if self._ledger is not None:
            await self._ledger.close(grace_s)
        await self._running.attempts.close(grace_s)

    async def _one(self, call: ToolCall, errand: Errand) -> Outcome:
        started = self._clock.monotonic()
        context = errand.context_for(call)
        hooks = errand.registry.hooks
        arguments: dict[str, Any] | None = None
        try:
            spec = find(call.name, errand.offered)
            read, salvaged = read_arguments(call.arguments)
            validator = errand.validator(spec)
            arguments = validator.validate(read)
            if hooks["before_tool"] and not errand.hooked:
                asked = Call(call.id, call.name, arguments)
                arguments = await before_tool(hooks["before_tool"], asked, context, validator, errand.record)
        except (InvalidArguments, CallFailed, ToolFatal, ToolRetry) as error:
            done = ended_by(error, call.name, errand.max_bytes)
            if isinstance(error, UnknownTool):
                errand.decided(call, "name", "refused")
            elif isinstance(error, InvalidArguments) and arguments is None:
                errand.refused_arguments(call)
        else:
            if salvaged:
                errand.decided(call, "arguments", "salvaged")
            if errand.gate is not None:
                stopped = await errand.gate(call, spec, arguments, errand.confidences.get(call.id))
                if stopped is not None:
                    return self._stopped(call, arguments, stopped, started, errand)
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
            mendable=done.mendable,
            uncertain=done.uncertain,
        )
        own: Shown | None = None
        if arguments is not None and done.fatal is None and hooks["after_tool"]:
            ran = Call(call.id, call.name, arguments)

            async def show(value: Any) -> Shown:
                return (await presented(value, errand.max_bytes, self._running.handles(errand))).shown

            outcome, own = await after_tool(hooks["after_tool"], ran, outcome, context, show, errand.record)
        shown = own or Shown(done.content, done.whole, done.handle)
        if outcome.ok and errand.condense is not None and errand.offered.get(call.name) is not READ_RESULT:
            # Behind the hooks: what they withhold reaches no model at all.
            shown = await self._running.condensed(shown, call, errand)
            outcome = msgspec.structs.replace(outcome, content=shown.content)
        self._running.keep(shown, outcome, errand)
        emit_finished(errand.record, outcome, done, shown)
        return outcome

    def _stopped(
        self, call: ToolCall, arguments: dict[str, Any], done: Done, started: float, errand: Errand
    ) -> Outcome:
        """The outcome of a call that a gate has stopped; what was done of it was seen by hooks then."""
        seconds = self._clock.monotonic() - started
        outcome = Outcome(
            call.id, call.name, done.ok, done.content, None, seconds, arguments, done.error, approval=done.approval
        )
        if done.approval is None:
            emit_finished(errand.record, outcome, done, Shown(done.content))
        return outcome

    async def _do(
        self, call: ToolCall, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext, errand: Errand
    ) -> Done:
        if spec is READ_RESULT:
            return await self._running.read_on(arguments, errand)
        key = self._running.cache.key(spec, arguments, context, errand.record.owner) if spec.cache_ttl_s else None
        if key is not None and (text := self._running.cache.get(key)) is not None:
            errand.decided(call, "cache", "hit")
            return await self._running.shown(await read_json(text), call, spec, errand)
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
            return ended_by(busy, call.name, errand.max_bytes)

    async def _placed(
        self,
        call: ToolCall,
        spec: ToolSpec,
        arguments: dict[str, Any],
        context: ToolContext,
        errand: Errand,
        key: bytes | None,
    ) -> Done:
        """A call that has its place: through the ledger where it writes."""
        if not spec.writes or self._ledger is None or errand.place_for is None:
            return await self._running.run(call, spec, arguments, context, errand, key)
        place = errand.place_for(call)
        try:
            effect = effect_key(place, spec, arguments)
        except Exception as error:  # noqa: BLE001 - the tool's own code: a call that cannot be named is not made
            failed = CallFailed(f"`{spec.name}` was not called: its idempotency key failed: {words_of(error)}")
            return ended_by(failed, call.name, errand.max_bytes)
        told = told_key(place.owner, effect, place.turn_id, place.round, place.position)
        context = replace(context, idempotency_key=told)

        async def run() -> Done:
            done = await self._running.run(call, spec, arguments, context, errand)
            return _undoable(done, spec, arguments, errand.registry) if spec.compensate and done.ok else done

        probe = self._probe_of(spec, context, errand.registry)
        return await self._ledger.perform(place, spec, arguments, effect, run, probe, errand.record)

    def _probe_of(self, spec: ToolSpec, context: ToolContext, registry: Registry) -> Probe | None:
        if not spec.probed:
            return None
        provider = registry.provider(spec)

        async def probe(arguments: Mapping[str, Any]) -> tuple[bool, str]:
            # Asking whether something happened only reads.
            asked = replace(spec, writes=False)
            happened, value = await self._running.attempts.bounded(
                provider.probe(spec.name, arguments, context), asked, spec.timeout_s
            )
            if not happened:
                return False, ""
            made = await presented(value, registry.max_result_bytes, fields=spec.result_fields)
            return True, made.shown.content

        return probe

    async def undo(
        self, effect: EffectRow, spec: ToolSpec, arguments: Mapping[str, Any], registry: Registry, record: Recorder
    ) -> Done:
        """Undo an effect by a call of `spec`: an effect itself, once, whoever begins it and however often.

        Raises:
            CallFailed: the tool does not take these arguments.
            StoreUnavailable: the ledger cannot be written; the call was not made.
        """
        assert self._ledger is not None, "without a ledger nothing is undone"
        try:
            checked = registry.validator(spec).validate(dict(arguments))
        except InvalidArguments as error:
            raise CallFailed(f"`{spec.name}` does not take what the result says: {error}") from error
        place = EffectPlace(effect.owner, effect.turn_id, record.trace_id, effect.round, effect.position)
        key = undo_key(effect.id)
        told = told_key(effect.owner, key, effect.turn_id, effect.round, effect.position)
        owner, _, user = effect.owner.partition("/")
        context = ToolContext(user or None, owner, None, None, record.trace_id, told)
        call = ToolCall(effect.id, spec.name, "{}")
        errand = Errand({}, lambda _: context, record, registry)

        async def run() -> Done:
            return await self._running.run(call, spec, checked, context, errand)

        probe = self._probe_of(spec, context, registry)
        return await self._ledger.perform(place, spec, checked, key, run, probe, record)

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
        errand = Errand({}, lambda _: context, record, registry)

        async def run() -> Done:
            return await self._running.run(call, spec, arguments, context, errand)

        return await self._ledger.repeat(seen, spec, run, self._probe_of(spec, context, registry), record)


def _undoable(done: Done, spec: ToolSpec, arguments: Mapping[str, Any], registry: Registry) -> Done:
    """The same with what undoes it is called with; without, where that cannot be said: then it is said when it is undone."""
    undo = registry.find(spec.compensate)
    if undo is None:
        return done
    try:
        filled = undo_arguments(undo, result_of(done), arguments)
    except CallFailed:
        return done
    return msgspec.structs.replace(done, undo=msgspec.json.encode(filled).decode())
