"""The calls of one answer on their way: what they share, and how each of them ends.

Knows the words a model is told. Does not run anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.chat.blocks import ToolCall
from gateway.observe.events import Recorder
from gateway.tools.guards.condensed import Condense
from gateway.tools.guards.paging import READ_RESULT, READ_RESULT_ARGUMENTS
from gateway.tools.guards.remembered import Remembered, repeated
from gateway.tools.guards.withdraw import WITHDRAW, WITHDRAW_ARGUMENTS
from gateway.tools.ledger import EffectPlace
from gateway.tools.outcome import Done, Outcome, OutcomeUnknown
from gateway.tools.registry import Registry
from gateway.tools.result import Shown, failure
from gateway.tools.spec import InvalidArguments, ToolContext, ToolFatal, ToolRetry, ToolSpec
from gateway.tools.validate import ArgumentValidator

# What a call has to pass before it is made: its tool, its arguments, and how sure the model is of it. What comes of a call that is stopped.
Gate = Callable[[ToolCall, ToolSpec, dict[str, Any], float | None], Awaitable[Done | None]]

# Most of a shortened result's whole text that goes into the trace.
MAX_TRACED_CHARS = 262_144


class Errand(msgspec.Struct, frozen=True):
    """What the calls of one answer share.

    The attributes are what `Courier.execute` was given, and:
        corrected: calls whose arguments were wrong, by id, and their names.
    """

    offered: Mapping[str, ToolSpec]
    context_for: Callable[[ToolCall], ToolContext]
    record: Recorder
    registry: Registry
    place_for: Callable[[ToolCall], EffectPlace] | None = None
    remembered: Remembered | None = None
    condense: Condense | None = None
    pictures: bool = False
    gate: Gate | None = None
    confidences: Mapping[str, float | None] = {}
    hooked: bool = False
    corrected: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def max_bytes(self) -> int:
        """Most bytes of a result that the model sees."""
        return self.registry.max_result_bytes

    def validator(self, spec: ToolSpec) -> ArgumentValidator:
        """What validates a tool's arguments."""
        if spec.provider == READ_RESULT.provider:
            return WITHDRAW_ARGUMENTS if spec is WITHDRAW else READ_RESULT_ARGUMENTS
        return self.registry.validator(spec)

    def decided(self, call: ToolCall, guard: str, decision: str, **more: Any) -> None:
        """Leave a guard's decision in the trace."""
        self.record.emit("guard.decided", name=call.name, call_id=call.id, guard=guard, decision=decision, **more)

    def refused_arguments(self, call: ToolCall) -> None:
        """The model is asked to correct a call."""
        self.corrected[call.id] = call.name
        self.decided(call, "arguments", "refused")


def judged(outcomes: Sequence[Outcome], errand: Errand) -> tuple[Outcome, ...]:
    """The outcomes in the light of what the turn has seen before."""
    remembered = errand.remembered
    if remembered is None:
        return tuple(outcomes)
    stuck = remembered.corrected(errand.corrected.values()) if errand.corrected else frozenset()
    seen = []
    for each in outcomes:
        outcome = each
        spec = errand.offered.get(each.name)
        if each.name in stuck and each.call_id in errand.corrected:
            errand.record.emit(
                "guard.decided", name=each.name, call_id=each.call_id, guard="arguments", decision="escalated"
            )
            outcome = msgspec.structs.replace(each, escalate=True)
        elif each.ok and spec is not None and not spec.writes and remembered.repeats(each):
            errand.record.emit("guard.decided", name=each.name, call_id=each.call_id, guard="repeat", decision="told")
            content = repeated(each.content, errand.max_bytes)
            outcome = msgspec.structs.replace(each, content=content, bare=each.content)
        seen.append(outcome)
    remembered.note(outcomes)
    return tuple(seen)


def ended_by(error: Exception, name: str, max_bytes: int) -> Done:
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
    mendable = isinstance(error, (InvalidArguments, ToolRetry))
    uncertain = isinstance(error, OutcomeUnknown)
    return Done(False, failure(text, max_bytes), text, fatal, uncertain=uncertain, mendable=mendable)


def emit_finished(record: Recorder, outcome: Outcome, done: Done, shown: Shown) -> None:
    """Leave the end of a call in the trace, with all of a result that the model sees a part of."""
    whole = done.full or done.whole or shown.whole
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
