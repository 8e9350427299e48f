"""Drives a turn: ask the model, run the tools it asked for, ask again, until there is an answer.

Knows the order of a round's steps and when a turn ends. The states are `state.py`'s, the limits `limits.py`'s, the tools'
execution the Courier's, failover the pool's, the client's wire the sink's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import aclosing

import msgspec

from gateway.backends.backend import ModelCall
from gateway.chat.answer import Answer
from gateway.chat.blocks import Message, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_answer import changed_answer, named_answer, whole_answer
from gateway.chat.codecs.chat_completions import encode_call
from gateway.chat.normalise import finish_reason
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.errors import ToolFailed, UpstreamTimeout
from gateway.ids import new_call_id
from gateway.routing.text import estimate_tokens
from gateway.tools.courier import Courier, Outcome
from gateway.tools.ledger import EffectPlace
from gateway.tools.spec import ToolContext
from gateway.turn.context import Turn
from gateway.turn.continuity import Behind, Continuity
from gateway.turn.hidden import call_ids, hidden_rounds, renamed, replayable_message
from gateway.turn.joining import Joining, RecordedRound
from gateway.turn.limits import ToolLimits
from gateway.turn.state import State
from gateway.turn.stream import Sink, StreamedRound, StreamState, whole_chunk

_NO_TOOLS = b'"none"'
_AUTO = b'"auto"'

# Ends behind which a call's arguments may be missing their tail, however well they read.
_CUT = frozenset({"length", "content_filter"})


class Round(msgspec.Struct, frozen=True):
    """What one model call came to. `answer` is the whole body, where the call was not streamed."""

    message: Message
    finish_reason: str | None
    usage: Usage | None
    answer: Answer | None = None


class TurnResult(msgspec.Struct, frozen=True):
    """How a turn ended. `body` is the answer's JSON, where it was not streamed."""

    message: Message
    finish_reason: str | None
    body: bytes | None = None


class TurnLoop:
    """Runs turns. Holds no state of any turn.

    Args:
        courier: runs registry tools.
        joining: keeps what another attempt at the turn needs.
        continuity: keeps the rounds that the client does not see.
        clock: for deadlines and durations.
    """

    def __init__(self, courier: Courier, joining: Joining, continuity: Continuity, clock: Clock) -> None:
        self._courier = courier
        self._joining = joining
        self._continuity = continuity
        self._clock = clock

    async def run(self, turn: Turn, sink: Sink | None = None) -> TurnResult:
        """Take the turn to its end; with a sink, streaming on the way.

        Raises:
            GatewayError: the turn failed; what the sink has sent stays sent.
        """
        try:
            if sink is None and not turn.offered and not turn.snapshot.hooks.on_answer:
                # One model call and nothing else: a backend keeps `ModelCall.timeout_s`, which ends with the turn.
                return await self._rounds(turn, sink)
            async with asyncio.timeout(max(0.0, turn.deadline - self._clock.monotonic())):
                return await self._rounds(turn, sink)
        except TimeoutError as error:
            raise UpstreamTimeout("The turn did not end within its time limit.") from error
        finally:
            if not turn.machine.over:
                turn.step(State.TERMINATED, "failed")

    async def _rounds(self, turn: Turn, sink: Sink | None) -> TurnResult:
        messages = turn.messages
        limits: ToolLimits | None = None
        state = StreamState()
        said: list[str] = []
        results: tuple[Message, ...] = ()
        enough: str | None = None
        while True:
            turn.step(State.PLANNING)
            recorded = _recorded(turn)
            if recorded is not None:
                done = await self._again(turn, recorded, sink, state)
            else:
                call = self._call(turn, messages, final=enough is not None)
                done = await (self._ask(turn, call) if sink is None else self._stream(turn, call, sink, state))
                self._note(turn, done)
            turn.usage += done.usage or _estimate(messages, done.message)
            said.append(done.message.text)
            mine, theirs = _whose(done.message.tool_calls, turn)
            results = ()
            if not mine or done.finish_reason in _CUT or enough is not None:
                break
            turn.step(State.EXECUTING)
            outcomes = await self._execute(turn, mine, recorded)
            turn.step(State.OBSERVING)
            results = tuple(Message("tool", (ToolResult(o.call_id, o.content),)) for o in outcomes)
            if theirs:
                break  # ours are done; the turn goes on with the request that brings the client's results
            limits = limits or ToolLimits(turn.max_rounds)
            enough = limits.round_ended(
                (call.name, call.arguments, outcome.ok, outcome.content)
                for call, outcome in zip(mine, outcomes, strict=True)
            )
            if enough is not None:
                turn.step(State.REFLECTING, enough)
            messages = (*messages, replayable_message(done.message), *results)
        stopped = enough is not None and bool(mine)
        if stopped:
            notice = f"(Stopped: {enough}.)"
            said.append(notice)
            if sink is not None:
                await sink.add(notice)
        reason = "length" if stopped else _reason(done.finish_reason, turn, theirs=bool(theirs))
        result = await self._result(turn, done, said, theirs, reason, plain=sink is None)
        hidden = hidden_rounds(messages[len(turn.messages) :], done.message, result.message, results)
        behind: Behind | None = None
        if hidden:
            behind = Behind(turn.principal.owner, turn.session, turn.request.messages, result.message, hidden)
        joinable = turn.joinable
        at_once = bool(theirs) or (joinable is not None and joinable.begun)
        if behind is not None and at_once:
            # Of a mixed turn the client's next request depends on them, and comes at once.
            await self._continuity.keep(behind)
            turn.record.emit("hidden.kept", messages=len(hidden))
        await self.commit(turn, result, turn.usage)
        if sink is not None:
            # With registry tools offered, the end of a round was held back; without, it went out as it came.
            await sink.finish(None if 0 in state.finished else result.finish_reason, turn.usage)
        if behind is not None and not at_once:
            self._continuity.keep_soon(behind)
            turn.record.emit("hidden.kept", messages=len(hidden))
        turn.step(State.TERMINATED, result.finish_reason or "")
        return result

    async def commit(self, turn: Turn, result: TurnResult, usage: Usage) -> None:
        """Keep the answer for whoever repeats the turn, before its last byte is sent; nothing where nobody would.

        Raises:
            StoreUnavailable: it could not be kept, or the turn is somebody else's by now.
        """
        joinable = turn.joinable
        if joinable is None or not joinable.begun:
            return
        body = result.body or _whole(turn, result.message, result.finish_reason, usage)
        await self._joining.answered(joinable, body, turn.told())

    async def _again(self, turn: Turn, recorded: RecordedRound, sink: Sink | None, state: StreamState) -> Round:
        """A round that an earlier attempt has been through: its client sees it, its model is not asked."""
        turn.record.emit("round.recorded", round=turn.machine.rounds, finish_reason=recorded.finish_reason)
        if sink is None:
            return Round(recorded.message, recorded.finish_reason, recorded.usage, None)
        view = StreamedRound(state, turn.client_tools, guarded=True, new_id=new_call_id)
        if visible := view.feed([whole_chunk(recorded.message, recorded.finish_reason)]):
            await sink.relay(visible)
        return Round(recorded.message, recorded.finish_reason, recorded.usage)

    def _note(self, turn: Turn, done: Round) -> None:
        if turn.joinable is not None:
            recorded = RecordedRound(done.message, done.finish_reason, done.usage)
            self._joining.note_answer(turn.joinable, turn.machine.rounds, recorded, turn.record.trace_id)

    def _call(self, turn: Turn, messages: tuple[Message, ...], *, final: bool) -> ModelCall:
        fields: Mapping[str, msgspec.Raw] = turn.fields
        if turn.tools_wire is not None:
            first = turn.machine.rounds == 1
            choice = _NO_TOOLS if final else turn.choice if first else _later_choice(turn)
            fields = {**fields, "tools": msgspec.Raw(turn.tools_wire)}
            if choice is not None:
                fields["tool_choice"] = msgspec.Raw(choice)
            if turn.request.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = msgspec.Raw(b"true" if turn.parallel else b"false")
        return ModelCall(
            messages,
            fields,
            turn.record.trace_id,
            max(0.001, turn.deadline - self._clock.monotonic()),
            turn.shown_model,
            turn.wanted,
            estimate_tokens(messages) if turn.pool.sized else 0,
        )

    async def _ask(self, turn: Turn, call: ModelCall) -> Round:
        turn.record.emit("round.started", round=turn.machine.rounds, model=turn.decision.model, backend=turn.backend)
        started = self._clock.monotonic()
        try:
            got = await turn.pool.complete(call, turn.record, turn.backend, fallbacks=turn.fallbacks)
        finally:
            turn.upstream_s += self._clock.monotonic() - started
        turn.backend, turn.answered_by = got.backend, got.model
        answer = got.answer
        message = answer.message
        if turn.offered and turn.client_tools and message.tool_calls:
            ids = [call.id for call in message.tool_calls]
            message = renamed(message, await self._taken(turn, ids))
        done = Round(message, answer.finish_reason, answer.usage, answer)
        self._answered(turn, done, started, None, got.attempt)
        return done

    async def _stream(self, turn: Turn, call: ModelCall, sink: Sink, state: StreamState) -> Round:
        turn.record.emit("round.started", round=turn.machine.rounds, model=turn.decision.model, backend=turn.backend)
        view = self._view(turn, state)
        sent = False
        attempt = 0
        started = self._clock.monotonic()
        waited = 0.0
        first: float | None = None
        asked = started
        stream = turn.pool.stream(
            call, turn.record, turn.backend, fallbacks=turn.fallbacks, seen=(lambda: sent) if turn.offered else None
        )
        try:
            async with aclosing(stream) as batches:
                async for batch in batches:
                    arrived = self._clock.monotonic()
                    waited += arrived - asked
                    if batch.attempt != attempt:
                        if attempt:  # the one before failed unseen: what it said is as if it had never been
                            view = self._view(turn, state, view.taken)
                        first = arrived - started
                        attempt, turn.backend, turn.answered_by = batch.attempt, batch.backend, batch.model
                        if turn.first_token_s is None:
                            turn.first_token_s = first
                    if turn.offered and turn.client_tools and (ids := call_ids(batch.chunks)):
                        view.taken |= await self._taken(turn, ids)
                    if visible := view.feed(batch.chunks):
                        sent = True
                        await sink.relay(visible)
                    asked = self._clock.monotonic()
        except BaseException:
            # Whatever ends the round: what the client has got of it was paid for.
            if sent:
                turn.usage += view.usage or _estimate(call.messages, view.message())
            raise
        finally:
            turn.upstream_s += waited
        done = Round(view.message(), view.finish_reason, view.usage)
        self._answered(turn, done, started, first, attempt)
        return done

    async def _taken(self, turn: Turn, ids: Collection[str]) -> set[str]:
        """Which of a round's call ids name another call of this owner's: hidden rounds are found by them."""
        here = {call.id for message in turn.request.messages for call in message.tool_calls}
        return {*here.intersection(ids), *await self._continuity.taken(turn.principal.owner, ids)}

    def _view(self, turn: Turn, state: StreamState, taken: Collection[str] = ()) -> StreamedRound:
        view = StreamedRound(state, turn.client_tools, guarded=bool(turn.offered), new_id=new_call_id)
        view.taken.update(taken)
        return view

    def _answered(self, turn: Turn, done: Round, started: float, first_token_s: float | None, attempt: int) -> None:
        usage = done.usage
        turn.record.emit(
            "round.answered",
            round=turn.machine.rounds,
            backend=turn.backend,
            model=turn.answered_by,
            attempt=attempt,
            finish_reason=done.finish_reason,
            content=done.message.text,
            tool_calls=[encode_call(call) for call in done.message.tool_calls],
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            seconds=self._clock.monotonic() - started,
            first_token_s=first_token_s,
        )

    async def _execute(
        self, turn: Turn, calls: tuple[ToolCall, ...], recorded: RecordedRound | None
    ) -> tuple[Outcome, ...]:
        number = turn.machine.rounds
        joinable = turn.joinable
        if joinable is not None and (
            joinable.asked.durable
            or any(spec.writes for call in calls if (spec := turn.offered.get(call.name)) is not None)
        ):
            await self._joining.before_writes(joinable)
            turn.record.emit("journal.written", round=number)
        positions = {call.id: index for index, call in enumerate(calls)}
        known = recorded.outcomes if recorded is not None else {}
        left = tuple(call for call in calls if positions[call.id] not in known)

        def context_for(call: ToolCall) -> ToolContext:
            return ToolContext(
                user=turn.principal.user,
                key=turn.principal.key_id,
                team=turn.principal.team,
                session=turn.session,
                trace_id=turn.record.trace_id,
                idempotency_key=f"{turn.turn_id}.{number}.{positions[call.id]}",
                headers=_handed(turn, call) if turn.headers else {},
            )

        def place_for(call: ToolCall) -> EffectPlace:
            owner, trace_id = turn.principal.owner, turn.record.trace_id
            return EffectPlace(owner, turn.turn_id, trace_id, number, positions[call.id])

        started = self._clock.monotonic()
        try:
            made = await self._courier.execute(
                left,
                turn.offered,
                context_for,
                turn.record,
                parallel=turn.parallel,
                registry=turn.snapshot.tools,
                place_for=place_for,
            )
        finally:
            turn.tool_s += self._clock.monotonic() - started
        fresh = iter(made)
        outcomes = tuple(known[positions[call.id]] if positions[call.id] in known else next(fresh) for call in calls)
        fatal = next((outcome.fatal for outcome in outcomes if outcome.fatal is not None), None)
        if fatal is not None:
            raise ToolFailed(fatal)
        if joinable is not None and not known:
            self._joining.note_outcomes(joinable, number, outcomes, turn.record.trace_id)
            if joinable.asked.durable:
                await self._joining.before_writes(joinable)
        return outcomes

    async def _result(
        self,
        turn: Turn,
        done: Round,
        said: list[str],
        theirs: tuple[ToolCall, ...],
        reason: str | None,
        *,
        plain: bool,
    ) -> TurnResult:
        text = "".join(said)
        hidden = len(done.message.tool_calls) != len(theirs)
        message = done.message
        if hidden or text != done.message.text:
            rest = tuple(b for b in done.message.blocks if not isinstance(b, (Text, ToolCall)))
            message = Message("assistant", (*rest, *((Text(text),) if text else ()), *theirs))
        hooked = message
        if turn.snapshot.hooks.on_answer:
            hooked = await turn.snapshot.hooks.answer(message, turn.principal)
            if hooked is not message:
                turn.record.emit("hook.changed", hook="on_answer")
        if not plain:
            return TurnResult(hooked, reason)
        if done.answer is None:
            return TurnResult(hooked, reason, _whole(turn, hooked, reason, turn.usage))
        # Its own message, or one in which a call has got another id.
        unchanged = turn.machine.rounds == 1 and hooked is done.answer.message and reason == done.answer.said_finish
        if unchanged and done.usage is not None:
            named = named_answer(done.answer.body, turn.answer_id, turn.created, turn.shown_model)
            return TurnResult(message, reason, named)
        body = changed_answer(
            done.answer.body,
            turn.answer_id,
            turn.created,
            turn.shown_model,
            message=hooked,
            finish_reason=reason,
            usage=turn.usage,
        )
        return TurnResult(hooked, reason, body)


def _whole(turn: Turn, message: Message, reason: str | None, usage: Usage) -> bytes:
    """The body of an answer that no upstream wrote whole."""
    return whole_answer(
        turn.answer_id, turn.created, turn.shown_model, message=message, finish_reason=reason, usage=usage
    )


def _recorded(turn: Turn) -> RecordedRound | None:
    return turn.joinable.recorded.get(turn.machine.rounds) if turn.joinable is not None else None


def _handed(turn: Turn, call: ToolCall) -> Mapping[str, str]:
    """The client's headers that this tool is configured to get, and no other."""
    spec = turn.offered.get(call.name)
    names = spec.forward_headers if spec is not None else ()
    return {name: turn.headers[name] for name in names if name in turn.headers}


def _whose(calls: tuple[ToolCall, ...], turn: Turn) -> tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]]:
    """Registry calls and client calls. A name nobody offered is the Courier's to refuse, where the turn has a Courier."""
    client_tools = turn.client_tools
    if not turn.offered:
        return (), calls
    theirs = tuple(call for call in calls if call.custom or call.name in client_tools)
    return tuple(call for call in calls if call not in theirs), theirs


def _estimate(messages: tuple[Message, ...], answer: Message) -> Usage:
    return Usage(estimate_tokens(messages), estimate_tokens((answer,)), estimated=True)


def _later_choice(turn: Turn) -> bytes | None:
    """A forced choice holds for the first round only: forced again, the model could never answer."""
    choice = turn.choice
    return _AUTO if choice is not None and choice != _NO_TOOLS else choice


def _reason(said: str | None, turn: Turn, *, theirs: bool) -> str:
    """The finish reason of the turn. Calls that were ours are not the client's to wait for."""
    reason = finish_reason(said or "stop", has_calls=theirs)
    return "stop" if reason is None or (reason == "tool_calls" and turn.offered and not theirs) else reason
