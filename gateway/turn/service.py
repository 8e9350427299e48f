"""Every turn of this process: begun with one version, recorded, and accounted for however it ends.

Knows the frame around a turn: lease, trace, summary. The inside is the loop's, the outside the API's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import encode_messages
from gateway.chat.normalise import read_answer, read_choices
from gateway.chat.request import ChatRequest, tool_name_of
from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.ids import new_call_id
from gateway.observe.audience import Audience
from gateway.observe.events import LiveSubscriber, Recorder
from gateway.security.principal import NOWHERE, Origin, Principal
from gateway.store.kept import KeptRoutes
from gateway.tools.spec import ToolSpec
from gateway.turn.answers import AnswerCache
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.guarded import GuardedSink
from gateway.turn.joining import Asked, Joinable, JoinElsewhere, Joining, Replay
from gateway.turn.loop import TurnLoop, TurnResult
from gateway.turn.offering import Offering
from gateway.turn.permits import Permit, Permits
from gateway.turn.pinned import Pin, read_pin, refuse_changed
from gateway.turn.prepare import NO_WISHES, Preparing, Wishes, hook_in_time, in_time, limit_of
from gateway.turn.scribing import Scribe
from gateway.turn.snapshot import Snapshot
from gateway.turn.state import State
from gateway.turn.stream import Sink

_canonical = msgspec.json.Encoder(order="deterministic").encode

Begun = Callable[[Turn], Sink | None]
Deliver = Callable[[TurnResult], Awaitable[None]]


class Turns:
    """Runs turns and tells subscribers how they ended.

    Args:
        versions: where the active version is.
        loop: drives a turn.
        clock: time.
        continuity: keeps the rounds that clients do not see.
        joining: finds the turn that a request repeats.
        audience: is told of finished traces.
        live: get every event at once.
        status_of: the HTTP status and code an error will be answered with, for the summary.
        answers: drives the turns whose answers may be kept.
        permits: lets turns in, and counts what came of them.
        kept: the route each conversation is on, or None where nobody remembers.
        offering: computes which tools a turn is offered.
        scribe: keeps conversations short.

    Attributes:
        running: turns under way by trace id.
        continuity: as given.
        joining: as given.
    """

    def __init__(
        self,
        versions: Versioned[Snapshot],
        loop: TurnLoop,
        clock: Clock,
        continuity: Continuity,
        joining: Joining,
        audience: Audience,
        live: tuple[LiveSubscriber, ...],
        status_of: Callable[[GatewayError], tuple[int, str | None]],
        answers: AnswerCache,
        permits: Permits,
        kept: KeptRoutes | None = None,
        offering: Offering | None = None,
        scribe: Scribe | None = None,
    ) -> None:
        self.running: dict[str, Turn] = {}
        self._versions = versions
        self._loop = loop
        self._answers = answers
        self._permits = permits
        self._preparing = Preparing(clock, continuity, kept, offering)
        self._scribe = scribe or Scribe()
        self._clock = clock
        self.continuity = continuity
        self.joining = joining
        self._audience = audience
        self._live = live
        self._status_of = status_of

    async def answer(
        self,
        trace_id: str,
        principal: Principal,
        request: ChatRequest,
        wishes: Wishes,
        endpoint: str,
        begun: Begun,
        body: bytes,
        origin: Origin = NOWHERE,
        deliver: Deliver | None = None,
    ) -> TurnResult:
        """Run one turn, or join the one that this request repeats.

        `begun` is called once it is prepared and says where a streamed answer goes; `body` is the request as it came, `origin`
        says where from. `deliver` gets the result as soon as there is one, before it is paid and accounted for: nobody's answer
        waits for what is written down of it.

        Raises:
            GatewayError: the turn failed or was refused.
        """
        record = Recorder(trace_id, principal.owner, self._clock, self._live)
        asked = {
            "endpoint": endpoint,
            "peer": origin.peer,
            "address": origin.address,
            "model": request.model,
            "stream": request.stream,
            "messages": [*map(msgspec.Raw, encode_messages(request.messages))],
            "tools": [*map(tool_name_of, request.tools)] if request.tools else [],
            "fields": request.fields,
        }
        record.add("request.received", asked)
        started = self._clock.monotonic()
        try:
            lease = self._versions.acquire()
        except GatewayError as error:
            status, code = self._status_of(error)
            summary = _summary(request, principal, None, self._clock.monotonic() - started, status)
            record.add("turn.failed", {**summary, "code": code, "message": error.message})
            self._tell(record)
            raise
        told = self._audience.of_all
        turn: Turn | None = None
        try:
            snapshot = lease.value
            wishing = wishes is not NO_WISHES
            if not (wishing or snapshot.hooks.at_begin):
                turn = await self._preparing.turn(request, principal, wishes, snapshot, record)
            else:
                turn = await self._prepared(request, principal, wishes, snapshot, record)
            turn.window = self._scribe.window(turn, wishes)
            if turn.terms.recalls:
                await in_time(turn.deadline - self._clock.monotonic(), turn.limit_s, self._scribe.recall(turn))
            self.running[trace_id] = turn
            sink = begun(turn)
            if sink is not None and snapshot.hooks.on_answer:
                sink = GuardedSink(sink, snapshot.hooks, principal)
            repeats = wishing and (wishes.key is not None or wishes.retried)
            joins = repeats or (turn.offered and _acts(turn.offered))
            answered = False
            try:
                result = await (self._joined(turn, wishes, sink, body) if joins else self._run(turn, sink))
                answered = True
                ended = self._clock.monotonic()
                if deliver is not None:
                    await deliver(result)
            finally:
                self._let_out(turn, answered)
        except asyncio.CancelledError:
            record.add("turn.cancelled", _summary(request, principal, turn, self._clock.monotonic() - started, 499))
            raise
        except GatewayError as error:
            status, code = self._status_of(error)
            summary = _summary(request, principal, turn, self._clock.monotonic() - started, status)
            record.add("turn.failed", {**summary, "code": code, "message": error.message})
            raise
        except Exception:
            summary = _summary(request, principal, turn, self._clock.monotonic() - started, 500)
            record.add("turn.failed", {**summary, "code": "internal_error", "message": "a defect of the gateway"})
            raise
        else:
            summary = _summary(request, principal, turn, ended - started, 200)
            summary["finish_reason"] = result.finish_reason
            record.add("turn.finished", summary)
            told = self._audience.of_answered
            self._remember(turn, result.message)
        finally:
            if turn is not None and turn.stay is not None:
                turn.stay.leave(None)
            self.running.pop(trace_id, None)
            self._versions.release(lease)
            for finished in told:
                finished(record)
        return result

    async def _prepared(
        self, request: ChatRequest, principal: Principal, wishes: Wishes, snapshot: Snapshot, record: Recorder
    ) -> Turn:
        """The turn, as hooks let it begin, and in its session where it has one that is kept."""
        pin: Pin | None = None
        if wishes.durable:  # a run, which was asked for a while ago
            await snapshot.keys.still(principal, self._clock.now(), lasting=True)
            recorded = await self.joining.pin_of(record.trace_id, principal.owner)
            pin = None if recorded is None else read_pin(recorded)
        stay = await self._scribe.enter(request, principal, wishes, snapshot, record) if wishes.session else None
        try:
            if stay is not None:
                request, wishes = stay.request, stay.wishes
            if snapshot.hooks.on_request:
                turn = await self._hooked(request, principal, wishes, snapshot, record, pin)
            else:
                turn = await self._preparing.turn(request, principal, wishes, snapshot, record, pin)
        except BaseException:
            if stay is not None:
                stay.leave(record)
            raise
        if stay is not None:
            turn.stay, turn.cache = stay, None
        return turn

    async def _hooked(
        self,
        request: ChatRequest,
        principal: Principal,
        wishes: Wishes,
        snapshot: Snapshot,
        record: Recorder,
        pin: Pin | None,
    ) -> Turn:
        """The turn, as hooks let it begin."""
        limit_s = limit_of(snapshot.turn_timeout_s, wishes)
        changed = await hook_in_time(limit_s, snapshot.hooks.request(request, principal))
        if changed is not request:
            record.emit("hook.changed", hook="on_request")
        return await self._preparing.turn(changed, principal, wishes, snapshot, record, pin)

    def _run(self, turn: Turn, sink: Sink | None) -> Coroutine[Any, Any, TurnResult]:
        """The turn's answer: one that was kept for equal questions, or the loop's. Behind it, it is to be let out."""
        runner = self._loop if turn.cache is None else self._answers
        permit = self._permits.begin(turn)
        if permit is not None or turn.terms.sums_up:
            return self._run_once_let_in(permit, turn, sink, runner)
        return runner.run(turn, sink)

    async def _run_once_let_in(
        self, permit: Permit | None, turn: Turn, sink: Sink | None, runner: TurnLoop | AnswerCache
    ) -> TurnResult:
        if permit is not None:
            await self._permits.enter(permit, turn)
        if turn.terms.sums_up:
            await self._scribe.before(turn)
        return await runner.run(turn, sink)

    def _let_out(self, turn: Turn, answered: bool) -> None:
        """The turn's run is over, if it was let in to one."""
        if turn.permit is None:
            return
        if turn.stay is not None:
            turn.stay.leave(turn.record)
        self._permits.leave(turn, ok=answered)

    def _remember(self, turn: Turn, answer: Message) -> None:
        """The answer is out: keep in mind what only the turns behind it want to know."""
        if turn.gives_bare:
            self.continuity.bare(turn.record.owner, turn.session, turn.request.messages, answer)
        if turn.terms.looks_back and turn.window is not None:
            self._scribe.behind(turn, answer)

    async def _joined(self, turn: Turn, wishes: Wishes, sink: Sink | None, body: bytes) -> TurnResult:
        """The turn's answer, this attempt's or another's."""
        asked = Asked(
            turn.principal.owner,
            _decisive(body, turn, wishes),
            wishes.key,
            wishes.retried,
            durable=wishes.durable,
            pin=turn.pin,
        )
        idempotency = turn.snapshot.config.idempotency
        while True:
            found = await self.joining.enter(asked, turn.record.trace_id, idempotency, turn.deadline)
            turn.joined(found.turn_id)
            if isinstance(found, Replay):
                turn.record.emit("turn.joined", turn=found.turn_id, how="replayed")
                if asked.key is None:
                    # Once it is delivered, the same words are a turn of their own.
                    turn.joinable = Joinable(found.turn_id, asked, asked.digest(), "", begun=True, ended=True)
                return _replayed(turn, found)
            if found.recorded:
                turn.record.emit("turn.joined", turn=found.turn_id, how="resumed", rounds=len(found.recorded))
            turn.joinable = found
            status = 499
            try:
                refuse_changed(turn.changed, turn.gone)
                return await self._run(turn, sink)
            except JoinElsewhere as error:
                self._let_out(turn, answered=False)
                if sink is not None and sink.started:
                    # What was said cannot be unsaid; asked once more, the client gets the other attempt's answer.
                    raise UpstreamUnavailable("This turn is being answered already; ask again.") from error
                turn.begin_again()
            except GatewayError as error:
                status, _ = self._status_of(error)
                raise
            finally:
                self.joining.leave(found, status)

    def refuse(
        self,
        trace_id: str,
        principal: Principal | None,
        endpoint: str,
        error: GatewayError,
        origin: Origin = NOWHERE,
    ) -> None:
        """Record a request that never became a turn."""
        record = Recorder(trace_id, principal.owner if principal else "-", self._clock, self._live)
        status, code = self._status_of(error)
        record.emit(
            "request.refused",
            endpoint=endpoint,
            peer=origin.peer,
            address=origin.address,
            status=status,
            code=code,
            message=error.message,
        )
        self._tell(record)

    def _tell(self, record: Recorder) -> None:
        for finished in self._audience.of_all:
            finished(record)


def _summary(
    request: ChatRequest, principal: Principal, turn: Turn | None, seconds: float, status: int
) -> dict[str, Any]:
    """What the last event says of the whole turn."""
    if turn is None:
        return {
            "status": status,
            "key": principal.key_id,
            "user": principal.user,
            "stream": request.stream,
            "seconds": seconds,
        }
    decision, usage = turn.decision, turn.usage
    summary = {
        "status": status,
        "key": principal.key_id,
        "user": principal.user,
        "stream": turn.request.stream,
        "seconds": seconds,
        "response_id": turn.answer_id,
        "model": decision.model,
        "route": decision.route,
        "strategy": decision.strategy,
        "version": decision.version,
        "backend": turn.backend,
        "rounds": turn.machine.rounds,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "upstream_s": turn.upstream_s,
    }
    # Beside: of more than fifteen entries, Python adds each to the dict by itself.
    summary["tool_s"] = turn.tool_s
    summary["first_token_s"] = turn.first_token_s
    return summary


def _acts(offered: Mapping[str, ToolSpec]) -> bool:
    """Whether doing it twice may do harm."""
    return any(spec.writes or spec.gated for spec in offered.values())


def _decisive(body: bytes, turn: Turn, wishes: Wishes) -> bytes:
    """Everything that makes two requests the same one; the order of JSON keys and spaces do not."""
    tags = ",".join(sorted(wishes.tags))
    tools = "-" if wishes.tools is None else ",".join(sorted(wishes.tools))
    # What tools are handed decides as much as the body does: another tenant's answer is no answer.
    handed = "".join(f"\0{name}:{value}" for name, value in sorted(wishes.headers.items()))
    asked = _canonical(msgspec.json.decode(body))
    alone = "" if wishes.fallbacks else "\0no fallbacks"
    return b"\0".join([asked, f"{turn.session or ''}\0{tags}\0{tools}{handed}{alone}".encode()])


def _replayed(turn: Turn, found: Replay) -> TurnResult:
    """An answer that was given before, as this turn's result; what it cost was paid then."""
    answer = read_answer(found.body, new_call_id)
    told = found.meta or {}
    turn.replayed = told
    turn.created = told.get("created", turn.created)
    turn.shown_model = told.get("shown_model", turn.shown_model)
    turn.step(State.TERMINATED, "replayed")
    turn.replayed_usage = answer.usage
    choices = read_choices(found.body, new_call_id) if turn.request.n > 1 else ()
    return TurnResult(answer.message, answer.finish_reason, found.body, choices)
