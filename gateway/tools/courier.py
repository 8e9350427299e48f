"""The Courier: takes one tool call there and brings the result back.

Knows the order of things: the name was offered, the arguments are read and validated, hooks, timeout, retries, the result
as the model sees it. Does not know turns, rounds or who asked; never raises for what a tool does.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.chat.blocks import ToolCall
from gateway.clock import Clock
from gateway.observe.events import Recorder
from gateway.store.turn_records import EffectRow
from gateway.tools.hooks import after_tool, before_tool
from gateway.tools.ledger import EffectPlace, Ledger, Probe, effect_key, told_key
from gateway.tools.outcome import Call, CallFailed, Done, Outcome, OutcomeUnknown, TransportFailed, words_of
from gateway.tools.registry import Registry
from gateway.tools.result import Unencodable, content_of, failure
from gateway.tools.salvage import read_arguments
from gateway.tools.spec import InvalidArguments, ToolContext, ToolFatal, ToolRetry, ToolSpec

__all__ = ["Courier", "Outcome"]

# How long a tool may take to notice that it was cancelled; after that it is left behind, and nobody waits for it.
CANCEL_GRACE_S = 1.0
# Most calls of one answer that run at the same time; the others wait for their turn.
MAX_PARALLEL = 16
# Between two attempts: a quarter of a second, then twice as long each time.
FIRST_BACKOFF_S = 0.25
# Most of a shortened result's whole text that goes into the trace.
MAX_TRACED_CHARS = 262_144

_TRANSIENT = (ConnectionError, TimeoutError)


class Courier:
    """Executes registry tools. One serves all turns; registries come and go with the versions.

    Args:
        clock: for timeouts and durations.
        ledger: where effects are written down before and after they happen; None where nothing has to be.
    """

    def __init__(self, clock: Clock, ledger: Ledger | None = None) -> None:
        self._clock = clock
        self._ledger = ledger
        # Calls nobody waits for any more: tools that ignore their cancellation, writing tools whose client has gone.
        self._left_behind: set[asyncio.Task[Any]] = set()

    @property
    def left_behind(self) -> int:
        """How many calls still run that nobody waits for."""
        return len(self._left_behind)

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
    ) -> tuple[Outcome, ...]:
        """Run calls and answer in their order, whatever order they finish in.

        Args:
            calls: as the model asked for them.
            offered: the tools this turn offered, by name; nothing else is run.
            context_for: what the tool may know of the turn.
            record: takes `tool.started` and `tool.finished`.
            parallel: whether they may run at the same time.
            registry: the turn's snapshot, which the offered specs come from.
            place_for: where a writing call stands in the ledger.

        Raises:
            StoreUnavailable: the ledger cannot be written; the call was not made.

        Cancelling it cancels the reading tools and waits for them, a second at most; a writing tool that has started goes
        on by itself.
        """
        errand = _Errand(offered, context_for, record, registry, place_for)
        if not parallel or len(calls) == 1:
            return tuple([await self._one(call, errand) for call in calls])
        slots = asyncio.Semaphore(MAX_PARALLEL)

        async def queued(call: ToolCall) -> Outcome:
            async with slots:
                return await self._one(call, errand)

        return tuple(await asyncio.gather(*(queued(call) for call in calls)))

    async def close(self, grace_s: float = 5.0) -> None:
        """Wait for calls that were left behind, then cancel them."""
        if self._ledger is not None:
            await self._ledger.close(grace_s)
        if self._left_behind:
            _, late = await asyncio.wait(self._left_behind, timeout=grace_s)
            for task in late:
                task.cancel()

    async def _one(self, call: ToolCall, errand: _Errand) -> Outcome:
        started = self._clock.monotonic()
        context = errand.context_for(call)
        max_bytes = errand.registry.max_result_bytes
        arguments: dict[str, Any] | None = None
        try:
            spec = _find(call.name, errand.offered)
            read, salvaged = read_arguments(call.arguments)
            arguments = errand.registry.validator(spec).validate(read)
            arguments = await before_tool(
                errand.registry.hooks["before_tool"],
                Call(call.id, call.name, arguments),
                context,
                errand.registry.validator(spec),
                errand.record,
            )
        except (InvalidArguments, CallFailed, ToolFatal, ToolRetry) as error:
            done = _ended_by(error, call.name, max_bytes)
        else:
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
        )
        if arguments is not None and done.fatal is None:
            ran = Call(call.id, call.name, arguments)
            outcome = await after_tool(
                errand.registry.hooks["after_tool"], ran, outcome, context, max_bytes, errand.record
            )
        _emit_finished(errand.record, outcome, done)
        return outcome

    async def _do(
        self, call: ToolCall, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext, errand: _Errand
    ) -> Done:
        async def run() -> Done:
            return await self._run(call.name, spec, arguments, context, errand.registry)

        if not spec.writes or self._ledger is None or errand.place_for is None:
            return await run()
        place = errand.place_for(call)
        try:
            key = effect_key(place, spec, arguments)
        except Exception as error:  # noqa: BLE001 - the tool's own code: a call that cannot be named is not made
            failed = CallFailed(f"`{spec.name}` was not called: its idempotency key failed: {words_of(error)}")
            return _ended_by(failed, call.name, errand.registry.max_result_bytes)
        context = replace(
            context, idempotency_key=told_key(place.owner, key, place.turn_id, place.round, place.position)
        )
        probe = self._probe_of(spec, context, errand.registry)
        return await self._ledger.perform(place, spec, arguments, key, run, probe, errand.record)

    def _probe_of(self, spec: ToolSpec, context: ToolContext, registry: Registry) -> Probe | None:
        if not spec.probed:
            return None
        provider = registry.provider(spec)

        async def probe(arguments: Mapping[str, Any]) -> tuple[bool, str]:
            asked = asyncio.ensure_future(provider.probe(spec.name, arguments, context))
            happened, value = await self._within(asked, spec.timeout_s)
            return (True, (await content_of(value, registry.max_result_bytes))[0]) if happened else (False, "")

        return probe

    async def _within(self, task: asyncio.Future[Any], timeout_s: float) -> Any:
        """Wait for something that only reads."""
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        if not done:
            await self._stop(task)
            raise CallFailed(f"it did not answer within {timeout_s:g} s")
        return task.result()

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

        async def run() -> Done:
            return await self._run(seen.tool, spec, arguments, context, registry)

        return await self._ledger.repeat(seen, spec, run, self._probe_of(spec, context, registry), record)

    async def _run(
        self, name: str, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext, registry: Registry
    ) -> Done:
        """Run it, and say how it ended; raises nothing but its own cancellation."""
        try:
            value = await self._attempts(spec, arguments, context, registry)
            content, whole = await content_of(value, registry.max_result_bytes)
        except (ToolFatal, InvalidArguments, ToolRetry, CallFailed, Unencodable) as error:
            return _ended_by(error, name, registry.max_result_bytes)
        return Done(True, content, whole=whole)

    async def _attempts(
        self, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext, registry: Registry
    ) -> Any:
        provider = registry.provider(spec)
        deadline = self._clock.monotonic() + spec.timeout_s
        backoff = FIRST_BACKOFF_S
        for left in range(spec.retries, -1, -1):
            remaining = deadline - self._clock.monotonic()
            try:
                return await self._bounded(provider.call(spec.name, arguments, context), spec, remaining)
            except _TRANSIENT as error:
                if spec.writes and _may_have_happened(error):
                    said = f"the connection failed: {words_of(error)}"
                    raise OutcomeUnknown(f"{said}; whether it took effect is not known") from error
                if not left or self._clock.monotonic() + backoff >= deadline:
                    raise CallFailed(words_of(error)) from error
            except (ToolFatal, ToolRetry, InvalidArguments, CallFailed):
                raise
            except Exception as error:
                raise CallFailed(words_of(error)) from error
            await self._clock.sleep(backoff)
            backoff *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _bounded(self, running: Awaitable[Any], spec: ToolSpec, timeout_s: float) -> Any:
        """Wait for a call, `timeout_s` at most, whether or not it heeds its cancellation."""
        task = asyncio.ensure_future(running)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            if spec.writes:
                self._leave(task)
            else:
                await self._stop(task)
            raise
        if not done:
            await self._stop(task)
            said = f"`{spec.name}` did not answer within {spec.timeout_s:g} s"
            if spec.writes:
                raise OutcomeUnknown(f"{said}; whether it took effect is not known")
            raise CallFailed(said)
        if task.cancelled():
            raise CallFailed(f"`{spec.name}` was cancelled from within")
        return task.result()

    async def _stop(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        finally:
            self._leave(task)

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


class _Errand(msgspec.Struct, frozen=True):
    """What the calls of one answer share."""

    offered: Mapping[str, ToolSpec]
    context_for: Callable[[ToolCall], ToolContext]
    record: Recorder
    registry: Registry
    place_for: Callable[[ToolCall], EffectPlace] | None


def _find(name: str, offered: Mapping[str, ToolSpec]) -> ToolSpec:
    """The offered tool of exactly this name; a name that is nearly right is a suggestion, never a match."""
    spec = offered.get(name)
    if spec is not None:
        return spec
    bare = name.rsplit(".", 1)[-1].lower()
    by_case = {known.lower(): known for known in offered}
    close = [by_case[each] for each in difflib.get_close_matches(bare, by_case, n=3, cutoff=0.5)]
    known = ", ".join(f"`{each}`" for each in close or list(offered)[:10])
    hint = f"did you mean {known}?" if close else f"there are {known}" if known else "no tools are offered"
    raise CallFailed(f"There is no tool `{name[:80]}`: {hint}")


def _may_have_happened(error: Exception) -> bool:
    """Whether what a broken connection was asked for may have been done all the same."""
    if isinstance(error, TransportFailed):
        return error.processed
    return not isinstance(error, ConnectionRefusedError)


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
    extra: dict[str, Any] = {} if done.whole is None else {"whole": done.whole[:MAX_TRACED_CHARS]}
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
