"""`POST /v1/chat/completions`: plain ASGI, because it is the hot path.

Knows one request from bytes to bytes. What happens in between is the turn's.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from msgspec.structs import replace as replaced
from starlette.types import Receive, Scope, Send

from gateway.api.address import origin_of
from gateway.api.auth import for_user, read_before, read_headers
from gateway.api.cycle import CYCLE, ClientGone, Cycle
from gateway.api.errors import describe, internal
from gateway.api.http import read_body
from gateway.api.services import Drain
from gateway.api.sse import SILENCE_S, ChatStream
from gateway.api.standing import standing_headers
from gateway.api.told import answer_lines
from gateway.chat.answer import Choice
from gateway.chat.codecs.chat_completions import decode_request
from gateway.chat.codecs.functions import FunctionsWriter, functions_answer
from gateway.chat.relay import StreamWriter
from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.errors import Draining, GatewayError
from gateway.runs.chat import chat_run, wants_background
from gateway.runs.seam import Runs
from gateway.runs.view import summary
from gateway.security.principal import NOWHERE, Principal
from gateway.store.run_records import RunRow
from gateway.turn.context import Turn
from gateway.turn.foreseen import refuse_hopeless
from gateway.turn.loop import TurnResult
from gateway.turn.service import Turns
from gateway.turn.snapshot import Snapshot
from gateway.turn.stream import end_chunk, whole_chunk

ENDPOINT = "/v1/chat/completions"
# Seconds a client that does not read may keep a stopping gateway from stopping.
_LAST_WORD_S = 1.0


class ChatCompletions:
    """The endpoint.

    Args:
        turns: runs turns.
        versions: where the active version is.
        clock: time.
        runs: takes on what is asked for as a background run.
        drain: whether this process is about to stop.
        silence_s: seconds without a byte after which a stream gets a comment.
    """

    def __init__(
        self,
        turns: Turns,
        versions: Versioned[Snapshot],
        clock: Clock,
        runs: Runs,
        drain: Drain,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._turns = turns
        self._versions = versions
        self._clock = clock
        self._runs = runs
        self._drain = drain
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, _: Receive, __: Send) -> None:
        """Answer one request."""
        cycle: Cycle = scope[CYCLE]
        trace_id = cycle.trace_id
        principal: Principal | None = None
        origin = NOWHERE
        try:
            snapshot = self._versions.serving
            keys, now, forward = snapshot.keys, self._clock.now(), snapshot.tools.forward_headers
            origin = origin_of(scope, keys.trusted_proxies)
            # What a client says with all of its requests is read with the first of them.
            said = cycle.said
            known = None if said is None else read_before(said, keys, now, forward)
            principal, wishes = known or await read_headers(scope, keys, now, forward, said)
            if said is not None and cycle.received:
                body = cycle.whole(snapshot.body_limit_bytes)
            else:
                body = await read_body(scope, snapshot.body_limit_bytes)
            # What a session goes on from is not in the request.
            kept = wishes.session is not None and snapshot.config.context.sessions.store
            request = decode_request(body, paired=not kept)
            if request.user is not None:
                principal = for_user(principal, request.user)
            if "metadata" in request.fields and wants_background(request):
                self._drain.refuse()
                new = chat_run(request, body, principal, wishes, trace_id, self._clock.now(), origin)
                refuse_hopeless(request, principal, snapshot)
                cycle.answer(202, _taken_on(await self._runs.submit(new), request.model))
                return
        except ClientGone:
            return
        except GatewayError as error:
            self._turns.refuse(trace_id, principal, ENDPOINT, error, origin)
            cycle.fail(describe(error))
            return
        exchange = _Exchange(cycle, self._silence_s)
        cycle.on_gone = exchange.left
        try:
            await self._turns.answer(
                trace_id, principal, request, wishes, ENDPOINT, exchange.begun, body, origin, exchange.deliver
            )
            if (turn := exchange.turn) is not None and turn.joinable is not None:
                self._turns.joining.delivered(turn.joinable)
        except GatewayError as error:
            await exchange.fail(error)
        except Exception:
            await exchange.break_off()
            raise
        except asyncio.CancelledError:
            if not exchange.gone:
                await exchange.cut_off()
                raise
            # Nobody is left to answer; the turn is over and recorded.
            assert cycle.task is not None
            cycle.task.uncancel()
        finally:
            cycle.on_gone = None
            if exchange.stream is not None:
                exchange.close()


class _Exchange(msgspec.Struct, eq=False):
    """One request and its answer, until one of both sides has had enough.

    Attributes:
        turn: what answers it, once that is prepared.
        stream: where its answer goes, if that is streamed.
        gone: whether the client has left before it was answered.
    """

    _cycle: Cycle
    _silence_s: float
    turn: Turn | None = None
    stream: ChatStream | None = None
    _answered: bool = False
    gone: bool = False

    async def fail(self, error: GatewayError) -> None:
        """There is no answer, or not all of it: tell the client why."""
        answer = describe(error)
        if self.turn is not None and self.turn.standing is not None:
            answer = replaced(answer, headers=(*answer.headers, *standing_headers(self.turn.standing)))
        self._answered = True
        if self.stream is not None and self.stream.started:
            await self.stream.fail(answer)
        else:
            self.close()
            self._cycle.fail(answer)

    async def break_off(self) -> None:
        """A defect. The status of a stream is spent: the client learns of it in there, the log from whoever catches it."""
        self._answered = True
        if self.stream is not None and self.stream.started and not self.stream.ended:
            await self.stream.fail(internal())

    def close(self) -> None:
        """Stop what still would be sent. Needed once, however it ended."""
        if self.stream is not None and not self.stream.ended:
            self.stream.close()

    async def cut_off(self) -> None:
        """The gateway stops and can wait no longer: whoever still listens is told, so that nobody takes half for whole."""
        if self._answered or (self.stream is not None and self.stream.ended):
            return
        answer = describe(Draining("The gateway stopped before the answer was complete."))
        if self.stream is None or not self.stream.started:
            self._cycle.fail(answer)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await self.stream.fail(answer)

    def begun(self, turn: Turn) -> ChatStream | None:
        """The turn is prepared: where its answer goes, if it is streamed."""
        self.turn = turn
        if not turn.request.stream:
            return None
        written = FunctionsWriter if turn.request.functions else StreamWriter
        # What the answer is called is known once it is known whose turn this is.
        self.stream = ChatStream(
            self._cycle,
            lambda: written(turn.answer_id, turn.created, turn.shown_model, with_usage=turn.request.include_usage),
            lambda: answer_lines(turn),
            include_usage=turn.request.include_usage,
            silence_s=self._silence_s,
        )
        # A hook that may change an answer has to see all of it first: then the turn runs unstreamed.
        return None if turn.snapshot.hooks.reach is None else self.stream

    async def deliver(self, result: TurnResult) -> None:
        """Send what has not been streamed."""
        turn, stream, body = self.turn, self.stream, result.body
        assert turn is not None
        self._answered = True
        if stream is None:
            assert body is not None
            if turn.request.functions:
                body = functions_answer(body)
            # The transport writes at once: what is left to do for the turn delays nobody.
            self._cycle.answer(200, body, answer_lines(turn))
        elif not stream.ended:
            await _send_whole(stream, result, turn)

    def left(self) -> None:
        """The client has gone away: nobody waits for the answer any more."""
        if self._answered or (self.stream is not None and self.stream.ended):
            return
        self.gone = True
        if self.turn is not None:
            self.turn.gone_away = True
        assert self._cycle.task is not None
        self._cycle.task.cancel()


async def _send_whole(stream: ChatStream, result: TurnResult, turn: Turn) -> None:
    """A finished answer as a stream: one chunk for what each choice says, one for its end."""
    choices = result.choices or (Choice(0, result.message, result.finish_reason),)
    for choice in choices:
        await stream.relay([whole_chunk(choice.message, None, choice.index)])
    ends = [end_chunk(choice.finish_reason or "stop", choice.index) for choice in choices]
    await stream.relay(ends)
    await stream.finish(None, turn.replayed_usage or turn.usage)


def _taken_on(run: RunRow, model: str) -> bytes:
    """What a client gets that asked for a run: an answer without choices, under the run's id."""
    shown: dict[str, Any] = {
        **summary(run),
        "created": int(run.created_at),
        "model": model,
        "choices": [],
    }
    return msgspec.json.encode(shown)
