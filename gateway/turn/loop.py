"""Drives a turn: ask the model, run the tools it asked for, ask again, until there is an answer.

Knows the order of a turn's steps and what follows from an answer. What a round asks is `asking.py`'s, model calls are
`model_calls.py`'s, registry calls `tool_calls.py`'s, the states `state.py`'s, the limits `limits.py`'s, the answer `ending.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
from msgspec import structs

from gateway.approvals.words import pending_message
from gateway.chat.blocks import Message, Refusal, ToolCall
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.deadlines import Deadlines
from gateway.errors import AwaitsApproval, GatewayError, ToolFailed, UpstreamBroken, UpstreamTimeout
from gateway.routing.text import estimate_tokens
from gateway.tools.courier import Courier, Outcome
from gateway.tools.result import noted
from gateway.turn.approving import Approving
from gateway.turn.asking import asking
from gateway.turn.confident import confidences_of
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.ending import Ending, TurnResult
from gateway.turn.joining import JoinElsewhere, Joining
from gateway.turn.limits import Enough, ToolLimits, time_is_over
from gateway.turn.model_calls import ModelCalls
from gateway.turn.progress import Progress
from gateway.turn.reflecting import contents, reason_to_reflect
from gateway.turn.round import CUT
from gateway.turn.state import PLANNING, TERMINATED, State
from gateway.turn.stream import Sink, StreamState
from gateway.turn.tool_calls import ToolCalls
from gateway.turn.undoing import Undoing

__all__ = ["TurnLoop", "TurnResult"]

# Seconds a turn whose time is over may take to keep and to send what it has.
_LAST_S = 5.0
# How close to the deadline a timeout is the turn's own.
_NEARLY_S = 0.05


class TurnLoop:
    """Runs turns. Holds no state of any turn.

    Args:
        courier: runs registry tools.
        joining: keeps what another attempt at the turn needs.
        continuity: keeps the rounds that the client does not see.
        approving: stops calls that a human has to approve.
        undoing: sees to what a turn has done that fails.
        clock: for deadlines and durations.
    """

    def __init__(
        self,
        courier: Courier,
        joining: Joining,
        continuity: Continuity,
        approving: Approving,
        undoing: Undoing,
        clock: Clock,
    ) -> None:
        self._model_calls = ModelCalls(joining, continuity, clock)
        self._tool_calls = ToolCalls(courier, joining, approving, clock)
        self._approving = approving
        self._undoing = undoing
        self._ending = Ending(joining, continuity)
        self._clock = clock
        self._deadlines = Deadlines()

    def run(self, turn: Turn, sink: Sink | None = None) -> Coroutine[Any, Any, TurnResult]:
        """Take the turn to its end; with a sink, streaming on the way.

        Raises:
            GatewayError: the turn failed; what the sink has sent stays sent.
        """
        if turn.joinable is not None or (turn.on_failure != "keep" and self._undoing.wanted(turn)):
            return self._undoable(turn, sink)
        return self._taken(turn, sink)

    async def _undoable(self, turn: Turn, sink: Sink | None) -> TurnResult:
        """Take a turn to its end of which something may have been done before, or may have to be undone."""
        durable = turn.joinable is not None and turn.joinable.asked.durable
        if turn.joinable is not None and turn.joinable.recorded and await self._undoing.is_undone(turn):
            # Its records say of everything that it was done.
            raise ToolFailed("This request failed, and what it had done was undone. Ask anew.")
        if durable or not self._undoing.wanted(turn):
            return await self._taken(turn, sink)
        try:
            return await self._taken(turn, sink)
        except (JoinElsewhere, AwaitsApproval):
            raise
        except GatewayError as error:
            words = await self._undoing.failed(turn, "the request failed")
            if words is not None:
                error.message = f"{error.message} {words}"
            raise
        except asyncio.CancelledError:
            if turn.gone_away:
                self._undoing.soon(turn, "the request was cancelled")
            raise

    async def _taken(self, turn: Turn, sink: Sink | None) -> TurnResult:
        """Take the turn to its end, whatever that leaves behind."""
        progress = Progress(len(turn.messages), turn.messages, None if sink is None else StreamState())
        try:
            if (turn.goes_on or turn.request.approvals or turn.session is not None) and self._approving.carried(turn):
                await self._approving.begin(turn, progress, self._undoing.after_decision)
            if sink is None and not turn.offered and not turn.snapshot.hooks.on_answer:
                # Model calls and nothing else: a backend keeps `ModelCall.timeout_s`, which ends with the turn.
                result = await self._rounds(turn, progress, sink)
            else:
                with self._deadlines.within(self._left_s(turn)):
                    result = await self._rounds(turn, progress, sink)
            if turn.approvals is not None:
                await self._approving.end(turn)
            return result
        except (TimeoutError, UpstreamTimeout) as error:
            ours = isinstance(error, TimeoutError) or self._left_s(turn) <= _NEARLY_S
            nothing = progress.over or progress.last is None
            if isinstance(error, UpstreamTimeout) and (nothing or not ours):
                raise
            if nothing:
                raise UpstreamTimeout("The turn did not end within its time limit.") from error
            return await self._out_of_time(turn, progress, sink)
        finally:
            if turn.machine.state is not TERMINATED:
                turn.step(TERMINATED, "failed")

    async def commit(self, turn: Turn, result: TurnResult, usage: Usage) -> None:
        """Keep an answer that was not the loop's. See `Ending.commit`."""
        await self._ending.commit(turn, result, usage)

    async def _rounds(self, turn: Turn, progress: Progress, sink: Sink | None) -> TurnResult:
        limits: ToolLimits | None = None
        while True:
            turn.step(PLANNING)
            asked = asking(turn, progress, turn.deadline - self._clock.monotonic())
            done = await self._model_calls.next(turn, asked, sink, progress.stream)
            turn.used(done.usage, before=done.recorded is not None)
            if done.withheld:
                _reflect_on_words(turn, progress)
                continue
            mine, theirs = _whose(done.calls, turn) if turn.offered else ((), done.calls)
            progress.answered(done, theirs)
            if not mine or done.finish_reason in CUT or progress.final:
                if progress.enough is not None and (mine or _is_empty(done.message)):
                    progress.stopped = progress.enough.reason
                break
            outcomes = await self._run(turn, progress, mine, sink)
            if turn.approvals is not None and turn.approvals.waiting:
                if undone := await self._undoing.after(turn, progress, outcomes):
                    progress.ran(mine, contents(_with_note(outcomes, undone), turn.offered, None))
                self._close_waiting(turn, progress)
                break
            if theirs:
                break  # ours are done; the turn goes on with the request that brings the client's results
            limits = limits or ToolLimits(
                turn.terms.max_rounds, turn.terms.max_tokens, turn.limit_s, turn.terms.max_cost
            )
            progress.enough = self._enough(turn, progress, limits, mine, outcomes)
            if undone := await self._undoing.after(turn, progress, outcomes):
                outcomes = _with_note(outcomes, undone)
                progress.ran(mine, contents(outcomes, turn.offered, None))
            self._reflect_on_results(turn, progress, mine, outcomes)
            if progress.enough is not None and not progress.enough.last_round:
                progress.stopped = progress.enough.reason
                break
        progress.over = True
        return await self._ending.end(turn, progress, sink)

    async def _run(
        self, turn: Turn, progress: Progress, mine: tuple[ToolCall, ...], sink: Sink | None
    ) -> tuple[Outcome, ...]:
        """Run the registry calls of the last round."""
        assert progress.last is not None, "calls come with a round"
        turn.step(State.EXECUTING)
        await self._tool_calls.before(turn, mine)
        # Only from here on may anything be changed.
        progress.running = mine
        # The client's results have to follow its calls at once: no room for pictures then.
        room = not progress.theirs
        made, confidences = confidences_of(turn, mine, progress.last)
        outcomes = await self._tool_calls.run(
            turn, made, progress.last.recorded, sink, pictures=room, confidences=confidences
        )
        progress.running = ()
        progress.used = True
        if turn.machine.state is State.EXECUTING:
            turn.step(State.OBSERVING)
        elif not turn.waits_for:
            turn.step(State.REFLECTING, "what it asked for was not approved")
        progress.ran(mine, contents(outcomes, turn.offered, None))
        return outcomes

    def _enough(
        self,
        turn: Turn,
        progress: Progress,
        limits: ToolLimits,
        mine: Sequence[ToolCall],
        outcomes: Sequence[Outcome],
    ) -> Enough | None:
        """Why no more tools may be called after this round, or None."""
        ended = limits.round_ended(
            (call.name, call.arguments, outcome.ok, outcome.result)
            for call, outcome in zip(mine, outcomes, strict=True)
        )
        ended = ended or limits.waited(self._left_s(turn))
        if (turn.terms.max_tokens is None and turn.terms.max_cost is None) or progress.last is None:
            return ended
        next_tokens = progress.last.usage.total_tokens + estimate_tokens(progress.results)
        by_tokens = limits.spent(turn.usage.total_tokens, next_tokens)
        if by_tokens is not None or turn.terms.max_cost is None:
            return by_tokens or ended
        prices = turn.snapshot.prices
        next_cost, _ = prices.of([(turn.backend, Usage(next_tokens, 0))])
        return limits.paid(prices.of(turn.spent)[0], next_cost) or ended

    def _reflect_on_results(
        self, turn: Turn, progress: Progress, mine: Sequence[ToolCall], outcomes: Sequence[Outcome]
    ) -> None:
        """Put before the model what it should think about, and go on with what the round brought."""
        ended = progress.enough.reason if progress.enough is not None else None
        reason = ended or reason_to_reflect(outcomes, turn.offered)
        if reason and turn.machine.state is not State.REFLECTING:
            turn.step(State.REFLECTING, reason)
        if ended is not None:
            progress.ran(mine, contents(outcomes, turn.offered, ended))
        progress.show(outcomes)
        progress.carry_on()
        if turn.escalate is not None and any(outcome.escalate for outcome in outcomes):
            turn.record.emit("turn.escalated", **{"from": turn.pool.name, "to": turn.escalate.name})
            turn.pool = turn.answer_pool = turn.escalate
            turn.escalate = None

    def _close_waiting(self, turn: Turn, progress: Progress) -> None:
        """The turn ends here: a plain answer says what waits for a human. The client's own calls go with it."""
        assert turn.approvals is not None, "it waits for something"
        rows = [*turn.approvals.waiting.values()]
        for row in rows:
            turn.record.emit(
                "approval.waiting", approval=row.id, name=row.name, arguments=msgspec.json.decode(row.arguments)
            )
        progress.close_with(pending_message(rows))
        if not progress.theirs:
            progress.carry_on()

    async def _out_of_time(self, turn: Turn, progress: Progress, sink: Sink | None) -> TurnResult:
        """End a turn whose time is over with what it has."""
        reason = time_is_over(turn.limit_s)
        started = {call.name for call in progress.running if call.name in turn.offered}
        if uncertain := [f"`{name}`" for name in sorted(started) if turn.offered[name].writes]:
            reason = f"{reason}; whether {', '.join(uncertain)} took effect is not known"
        progress.stopped = reason
        if progress.stream is not None and progress.stream.broken_off is not None:
            progress.words.append(progress.stream.broken_off.text)
        progress.over = True
        try:
            async with asyncio.timeout(_LAST_S):
                return await self._ending.end(turn, progress, sink)
        except TimeoutError as error:
            raise UpstreamTimeout("The turn did not end within its time limit.") from error

    def _left_s(self, turn: Turn) -> float:
        return turn.deadline - self._clock.monotonic()


def _reflect_on_words(turn: Turn, progress: Progress) -> None:
    """Words alone were not what was asked for: ask again, or ask who writes the answer.

    Raises:
        UpstreamBroken: the model answers without a tool, and was told not to.
    """
    if not turn.requires_tool or progress.used:
        turn.step(State.REFLECTING, f"the tools are done: `{turn.answer_pool.name}` answers")
        progress.answering = True
        return
    if progress.reminded:
        raise UpstreamBroken("The model answered without calling a tool, which it has to here.")
    turn.step(State.REFLECTING, "the model answered without calling a tool")
    progress.reminded = True


def _with_note(outcomes: Sequence[Outcome], note: str) -> tuple[Outcome, ...]:
    """The outcomes with a remark on those that failed."""
    return tuple(each if each.ok else structs.replace(each, content=noted(each.content, note)) for each in outcomes)


def _is_empty(message: Message) -> bool:
    """Whether an answer says nothing and asks for nothing."""
    return not message.text and not any(isinstance(block, (Refusal, ToolCall)) for block in message.blocks)


def _whose(calls: tuple[ToolCall, ...], turn: Turn) -> tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]]:
    """Registry calls and client calls. A name nobody offered is the Courier's to refuse, where the turn has a Courier."""
    client_tools = turn.client_tools
    theirs = tuple([call for call in calls if call.custom or call.name in client_tools])
    return (tuple([call for call in calls if call not in theirs]) if theirs else calls), theirs
