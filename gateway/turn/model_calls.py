"""One round's model call: whole or streamed, or the answer that an earlier attempt was given.

Knows how a call is made from a turn, what the client may see of its answer while it comes, and what of it is noted. Does not
know what follows from an answer: that is the loop's.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from typing import Any

from gateway.approvals.confidence import Token, tokens_in
from gateway.backends.backend import ModelCall
from gateway.backends.tap import Tap
from gateway.chat.answer import Answer, Choice
from gateway.chat.blocks import Message, Refusal
from gateway.chat.chunk import Chunk
from gateway.chat.codecs.chat_completions import encode_call
from gateway.chat.usage import Usage
from gateway.clock import Clock
from gateway.ids import new_call_id
from gateway.routing.text import estimate_tokens
from gateway.turn.asking import Asking
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.hidden import call_ids, renamed
from gateway.turn.joining import Joining, RecordedRound
from gateway.turn.round import CUT, Round
from gateway.turn.stream import Sink, StreamedRound, StreamState, whole_chunk


class ModelCalls:
    """Asks models. Holds no state of any turn.

    Args:
        joining: keeps answers for another attempt at the turn.
        continuity: knows which call ids are taken.
        clock: for durations.
    """

    def __init__(self, joining: Joining, continuity: Continuity, clock: Clock) -> None:
        self._joining = joining
        self._continuity = continuity
        self._clock = clock

    def next(
        self, turn: Turn, asked: Asking, sink: Sink | None, state: StreamState | None
    ) -> Coroutine[Any, Any, Round]:
        """The turn's next answer: the one that is recorded of this round, else the model's.

        Args:
            turn: whose.
            asked: what is asked.
            sink: where the answer is streamed to, or None.
            state: what is known of the stream so far; None without a sink.

        Raises:
            GatewayError: no backend answered, or the turn may not go on to a further round.
        """
        if turn.machine.rounds > 1 or turn.joinable is not None:
            return self._further(turn, asked, sink, state)
        if sink is None or state is None:
            return self._ask(turn, asked)
        return self._stream(turn, asked, sink, state)

    async def _further(self, turn: Turn, asked: Asking, sink: Sink | None, state: StreamState | None) -> Round:
        """A round that may be recorded already, has to be let on, or is to be recorded."""
        recorded = _recorded(turn)
        if recorded is not None:
            return await self._again(turn, asked, recorded, sink, state)
        if turn.permit is not None and turn.machine.rounds > 1:
            await turn.permit.next_round(turn, asked.call.messages)
        if sink is None or state is None:
            done = await self._ask(turn, asked)
        else:
            done = await self._stream(turn, asked, sink, state)
        if turn.joinable is not None:
            noted = RecordedRound(done.message, done.finish_reason, done.usage if done.told_usage else None)
            self._joining.note_answer(turn.joinable, turn.machine.rounds, noted, turn.record.trace_id)
        return done

    async def _again(
        self, turn: Turn, asked: Asking, recorded: RecordedRound, sink: Sink | None, state: StreamState | None
    ) -> Round:
        """A round that an earlier attempt has been through: its client sees it, its model is not asked."""
        turn.record.emit("round.recorded", round=turn.machine.rounds, finish_reason=recorded.finish_reason)
        done = _round(asked, recorded.message, recorded.finish_reason, recorded.usage, recorded=recorded)
        if sink is not None and state is not None and not done.withheld:
            view = self._view(turn, state, guarded=True)
            if visible := view.feed([whole_chunk(recorded.message, recorded.finish_reason)]):
                await sink.relay(visible)
        return done

    async def _ask(self, turn: Turn, asked: Asking) -> Round:
        pool, record = asked.pool, turn.record
        name = pool.name
        prefer = turn.stays.get(name)
        record.add("round.started", {"round": turn.machine.rounds, "model": name, "backend": prefer})
        started = self._clock.monotonic()
        try:
            got = await pool.complete(asked.call, record, prefer, fallbacks=turn.fallbacks)
        finally:
            seconds = self._clock.monotonic() - started
            turn.upstream_s += seconds
        turn.answered_from(name, got.backend, got.model)
        answer = got.answer
        message = answer.message
        if turn.offered and turn.client_tools and message.tool_calls:
            ids = [call.id for call in message.tool_calls]
            message = renamed(message, await self._taken(turn, ids))
        done = _round(asked, message, answer.finish_reason, answer.usage, answer)
        self._answered(turn, done, seconds, None, got.attempt)
        return done

    async def _stream(self, turn: Turn, asked: Asking, sink: Sink, state: StreamState) -> Round:
        pool, call, record = asked.pool, asked.call, turn.record
        name = pool.name
        before = state.copy() if asked.held else None
        held: list[Chunk] = []
        view = self._view(turn, state)
        sent = False
        tokens = _Tokens() if turn.tells_tokens else None
        attempt = 0
        prefer = turn.stays.get(name)
        record.add("round.started", {"round": turn.machine.rounds, "model": name, "backend": prefer})
        started = self._clock.monotonic()
        waited = 0.0
        first: float | None = None
        wanted = started
        stream = pool.stream(
            call,
            record,
            prefer,
            fallbacks=turn.fallbacks,
            seen=(lambda: sent) if turn.offered or asked.held else None,
        )
        try:
            async for batch in stream:
                arrived = self._clock.monotonic()
                waited += arrived - wanted
                if batch.attempt != attempt:
                    if attempt:  # the one before failed unseen: what it said is as if it had never been
                        view = self._view(turn, state, view.taken)
                        held.clear()
                        state.restore(before)
                    first = arrived - started
                    attempt = batch.attempt
                    turn.answered_from(name, batch.backend, batch.model)
                    turn.first_token_s = first if turn.first_token_s is None else turn.first_token_s
                if turn.offered and turn.client_tools and (ids := call_ids(batch.chunks)):
                    view.taken |= await self._taken(turn, ids)
                if tokens is not None:
                    tokens.take(batch.attempt, batch.chunks)
                visible = view.feed(batch.chunks)
                if before is not None and not view.calling:
                    held += visible
                elif visible:
                    sent = True
                    await sink.relay([*held, *visible] if held else visible)
                    held.clear()
                    _let_through(turn, asked, batch.tap, sink, view)
                wanted = self._clock.monotonic()
        except BaseException:
            # Whatever ends the round: what the client has got of it was paid for.
            if sent:
                turn.used(view.usage or _estimate(call, view.message()))
                state.broken_off = view.message()
            # What `aclosing` does, without coroutines of its own; a stream that was read to its end is closed.
            await stream.aclose()
            raise
        finally:
            turn.upstream_s += waited
        choices = view.choices() if turn.request.n > 1 else ()
        said = () if tokens is None else tuple(tokens.said)
        done = _round(asked, view.message(), view.finish_reason, view.usage, choices=choices, tokens=said)
        if done.withheld:
            state.restore(before)
        elif held:
            await sink.relay(held)
        self._answered(turn, done, self._clock.monotonic() - started, first, attempt)
        return done

    async def _taken(self, turn: Turn, ids: Collection[str]) -> set[str]:
        """Which of a round's call ids name another call of this owner's: hidden rounds are found by them."""
        here = {call.id for message in turn.request.messages for call in message.tool_calls}
        return {*here.intersection(ids), *await self._continuity.taken(turn.principal.owner, ids)}

    def _view(
        self, turn: Turn, state: StreamState, taken: Collection[str] = (), *, guarded: bool | None = None
    ) -> StreamedRound:
        view = StreamedRound(
            state,
            turn.client_tools,
            guarded=bool(turn.offered) if guarded is None else guarded,
            new_id=new_call_id,
            shown_round=turn.machine.rounds if turn.shows_tools else None,
        )
        if taken:
            view.taken.update(taken)
        return view

    def _answered(self, turn: Turn, done: Round, seconds: float, first_token_s: float | None, attempt: int) -> None:
        window, backend, usage, told = turn.window, turn.backend, done.usage, done.told_usage
        if window is not None and window.estimates and told and backend is not None:
            window.answered(backend, usage)
        turn.record.add(
            "round.answered",
            {
                "round": turn.machine.rounds,
                "backend": backend,
                "model": turn.answered_by,
                "attempt": attempt,
                "finish_reason": done.finish_reason,
                "content": done.message.text,
                "tool_calls": [encode_call(call) for call in done.calls] if done.calls else [],
                "prompt_tokens": usage.prompt_tokens if told else None,
                "completion_tokens": usage.completion_tokens if told else None,
                "seconds": seconds,
                "first_token_s": first_token_s,
            },
        )


class _Tokens:
    """What the attempt that counts has said, token by token, where somebody asks for that."""

    def __init__(self) -> None:
        self.said: list[Token] = []
        self._attempt = 0

    def take(self, attempt: int, chunks: Sequence[Chunk]) -> None:
        """Take in what arrived."""
        if attempt != self._attempt:
            self._attempt = attempt
            self.said.clear()
        for chunk in chunks:
            self.said += tokens_in(chunk.data)


def _round(
    asked: Asking,
    message: Message,
    finish_reason: str | None,
    usage: Usage | None,
    answer: Answer | None = None,
    *,
    recorded: RecordedRound | None = None,
    choices: tuple[Choice, ...] = (),
    tokens: tuple[Token, ...] = (),
) -> Round:
    spent = usage or _estimate(asked.call, message)
    withheld = asked.held and not _counts(message, finish_reason)
    return Round(
        message,
        finish_reason,
        message.tool_calls,
        spent,
        usage is not None,
        answer,
        recorded,
        choices,
        withheld,
        tokens,
    )


def _counts(message: Message, finish_reason: str | None) -> bool:
    """Whether an answer stands although words alone do not: it calls, it was cut, or it refuses."""
    return (
        bool(message.tool_calls) or finish_reason in CUT or any(isinstance(block, Refusal) for block in message.blocks)
    )


def _let_through(turn: Turn, asked: Asking, tap: Tap | None, sink: Sink, view: StreamedRound) -> None:
    """Something of the answer was sent, so no other attempt follows: what only brings more text need not come by here."""
    if tap is None or tap.is_open or asked.held or turn.tells_tokens:
        return
    if (straight := sink.straight()) is not None and (notes := view.straight()) is not None:
        tap.open(straight, notes)


def _recorded(turn: Turn) -> RecordedRound | None:
    return turn.joinable.recorded.get(turn.machine.rounds) if turn.joinable is not None else None


def _estimate(call: ModelCall, answer: Message) -> Usage:
    return Usage(estimate_tokens(call.messages), estimate_tokens((answer,)), estimated=True)
