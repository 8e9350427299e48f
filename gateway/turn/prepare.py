"""From a request to a turn: decide, look up the model, choose the tools, lay the route's settings under the client's.

Knows the order of these steps. Does not know HTTP; `Wishes` is what headers said.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from gateway.chat.blocks import Message, ToolResult, role_of
from gateway.chat.codecs.chat_completions import with_system_text
from gateway.chat.parameters import with_defaults
from gateway.chat.request import ChatRequest, tool_name_of, tool_wire_of
from gateway.clock import Clock, within
from gateway.config.models import CacheConfig
from gateway.config.names import Meant
from gateway.errors import HookFailed, InvalidRequest, StoreUnavailable
from gateway.observe.events import Recorder
from gateway.routing.conditions import UsedFacts
from gateway.routing.decision import Decision
from gateway.routing.facts import Facts
from gateway.routing.text import estimate_tokens, routing_texts
from gateway.security.masking.messages import Conversation
from gateway.security.masking.privacy import Privacy
from gateway.security.principal import Principal
from gateway.store.kept import KeptRoutes
from gateway.tools.guards.remembered import handles_in
from gateway.tools.untrusted import OPERATOR_TEXT
from gateway.tools.wires import ToolWires
from gateway.turn.choice import first_choice, requires_tool
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.offering import NOTHING, Asked, Offer, Offering
from gateway.turn.pinned import Held, Pin, held, pinned
from gateway.turn.snapshot import Snapshot, may_use
from gateway.turn.sticky import places
from gateway.turn.terms import Terms, terms_of
from gateway.turn.waiting import ids_in

_Result = TypeVar("_Result")

_encode = msgspec.json.Encoder().encode
_LOGPROBS: Final = {"logprobs": msgspec.Raw(b"true")}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the request's headers ask for.

    Attributes:
        tags: routing tags beside the key's own.
        session: the session's name.
        tools: registry tools the offer is narrowed to, or None.
        deadline_s: seconds the client is willing to wait, or None.
        fallbacks: whether other models may stand in for the chosen one.
        key: the `Idempotency-Key`, or None.
        retried: whether the SDK says that it asks again.
        events: whether the stream is to show registry calls too.
        headers: the request's headers that some tool is handed, lower case.
        whole: whether the request's messages are the whole conversation, hidden rounds included.
        stored: whether the conversation is kept with its responses, and not as a session.
        durable: whether every step is recorded before the next begins, so that a run can go on from there.
    """

    tags: frozenset[str] = frozenset()
    session: str | None = None
    tools: frozenset[str] | None = None
    deadline_s: float | None = None
    fallbacks: bool = True
    key: str | None = None
    retried: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    events: bool = False
    durable: bool = False
    whole: bool = False
    stored: bool = False


NO_WISHES: Final = Wishes()


def facts_of(
    request: ChatRequest, principal: Principal, wishes: Wishes, used: UsedFacts, kept: str | None = None
) -> Facts:
    """What the router may look at, of what takes time only what is `used`. `kept` is the route the conversation is on."""
    text, before = routing_texts(request.messages)
    return Facts(
        text=text,
        model=request.model,
        tags=principal.tags | wishes.tags if wishes.tags else principal.tags,
        has_tools=bool(request.tools),
        has_image=used.image and request.has_image,
        tokens=estimate_tokens(request.messages) if used.tokens else 0,
        allowed_routes=principal.routes,
        before=before,
        kept=kept,
    )


def decide(
    request: ChatRequest,
    principal: Principal,
    wishes: Wishes,
    snapshot: Snapshot,
    *,
    kept: KeptRoutes | None = None,
    explain: bool = False,
) -> Coroutine[Any, Any, Decision]:
    """Where a request goes; with `explain`, at more length and leaving nothing behind.

    `kept` is what `router.sticky` asks for the conversation's route; without it every request begins a conversation.

    Raises:
        NoSuchModel: the name is unknown to this caller.
    """
    if request.model == snapshot.routed and principal.models is None:  # nearly all requests
        return snapshot.router.decide(facts_of(request, principal, wishes, snapshot.used), explain=explain)
    return _decide(request, principal, wishes, snapshot, kept, explain)


async def _decide(
    request: ChatRequest,
    principal: Principal,
    wishes: Wishes,
    snapshot: Snapshot,
    kept: KeptRoutes | None,
    explain: bool,
) -> Decision:
    """The same, with all that may have a say."""
    place: str | None = None
    router = snapshot.config.router
    if request.model == router.model:
        if principal.models is not None and not may_use(principal, request.model):
            snapshot.meant_by(request.model, principal)  # raises
        on: str | None = None
        if router.sticky and kept is not None:
            conversation = places(principal.owner, wishes.session, request.messages)
            on, place = await kept.find(conversation.earlier), conversation.here
        decision = await snapshot.router.decide(
            facts_of(request, principal, wishes, snapshot.used, on), explain=explain
        )
    else:
        meant = snapshot.meant_by(request.model, principal)
        decision = Decision(None, meant.model, "explicit", str(snapshot.version), reason="the request names its model")
    if snapshot.hooks.on_decision:
        hooked = snapshot.hooks.decision(decision, request, principal)
        decision = await hook_in_time(limit_of(snapshot.turn_timeout_s, wishes), hooked)
        if snapshot.meant_of(decision, request.model) is None:
            raise HookFailed(f"An `on_decision` hook chose the model `{decision.model}`, which does not exist.")
    if kept is not None and place and decision.route is not None and not explain:
        await kept.keep(place, decision.route)
    return decision


class Preparing:
    """Makes turns of requests.

    Args:
        clock: time.
        continuity: knows the rounds that clients do not see.
        kept: the route each conversation is on, or None where nobody remembers.
        offering: computes which tools a turn is offered.
    """

    def __init__(
        self, clock: Clock, continuity: Continuity, kept: KeptRoutes | None = None, offering: Offering | None = None
    ) -> None:
        self._clock = clock
        self._continuity = continuity
        self._kept = kept
        self._offering = offering or Offering()

    async def turn(
        self,
        request: ChatRequest,
        principal: Principal,
        wishes: Wishes,
        snapshot: Snapshot,
        record: Recorder,
        pin: Pin | None = None,
    ) -> Turn:
        """Make the turn; with a `pin`, as it was decided when its run began.

        Raises:
            InvalidRequest: the request contradicts itself.
            NoSuchModel: the name is unknown to this caller.
            StoreUnavailable: the thread's hidden rounds cannot be read, or what was said in confidence before.
        """
        several = request.n > 1
        if several and snapshot.hooks.on_answer:
            raise InvalidRequest("`n` must be 1 here: this gateway looks at each answer before it is sent.", param="n")
        limit_s = snapshot.turn_timeout_s
        deadline = self._clock.monotonic() + limit_s
        before = held(pin, snapshot) if pin is not None else None
        decision = (
            pin.decision if pin is not None else await decide(request, principal, wishes, snapshot, kept=self._kept)
        )
        told = {
            "route": decision.route,
            "model": decision.model,
            "strategy": decision.strategy,
            "score": decision.score,
            "margin": decision.margin,
            "cached": decision.cached,
            "reason": decision.reason,
            "version": decision.version,
        }
        if before is None:
            record.add("decision.made", told)
            way = snapshot.way(decision, request.model)
            assert way is not None, "the router and the hooks name models that exist"
            meant, terms = way
        else:
            record.add("decision.made", {**told, "pinned": True})
            meant = before.meant
            terms = terms_of(snapshot.config, snapshot.names, snapshot.pools, meant.model, before.route)
        explicit = decision.strategy == "explicit"

        # The conversation: as its client sent it, and what the gateway knows of it besides.
        private: Conversation | None = None
        if snapshot.privacy is not None:
            private = record.private = _private(snapshot.privacy, principal, terms)
        messages = request.messages
        goes_on = "assistant" in map(role_of, messages)
        bare = True
        if goes_on:
            bare = self._continuity.is_bare(record.owner, wishes.session, messages)
            if not (bare or wishes.whole) and snapshot.tools.specs:
                restoring = _restored(request, principal, wishes, record, self._continuity)
                messages = await self._of_the_store(restoring, wishes, limit_s, deadline)
        if private is not None and snapshot.privacy is not None:
            # What tools told the caller in confidence before is private in this turn too.
            recalling = snapshot.privacy.recall(principal.owner, private, messages)
            await self._of_the_store(recalling, wishes, limit_s, deadline)
        if terms.system:
            messages = with_system_text(messages, terms.system)

        fields = with_defaults(request.fields, terms.params) if terms.params else request.fields
        if several:
            fields = {**fields, "n": msgspec.Raw(_encode(request.n))}
        # Of what counts for more than thirty here, a name for two, Python makes a dict first.
        turn = Turn(
            record,
            principal,
            request,
            snapshot,
            decision,
            terms,
            terms.answering,
            terms.answering,
            shown_model=request.model if explicit else decision.model,
            messages=messages,
            fields=fields,
            limit_s=limit_s,
            deadline=deadline,
            answer_id=f"chatcmpl-{record.trace_id}",
            created=int(self._clock.now()),
            tags=principal.tags,
            goes_on=goes_on,
            bare=bare,
            on_failure=terms.on_failure,
        )
        if wishes is not NO_WISHES:
            _heed(wishes, turn)
        turn.wanted = meant.wanted
        turn.private = private

        # What may be called in it.
        named = terms.tools_by_name if explicit else terms.tools
        if named or request.tools or request.tool_choice is not None or wishes.durable:
            await _equip(turn, wishes, named, before, self._offering)
        if terms.cache is not None and turn.tools_wire is None:
            turn.cache = _cache(request, messages, terms.cache)
        return turn

    def _of_the_store(
        self, work: Coroutine[Any, Any, _Result], wishes: Wishes, limit_s: float, deadline: float
    ) -> Coroutine[Any, Any, _Result]:
        """What work that asks the store comes to, in the time of a turn that may take `limit_s`, up to `deadline`, or less."""
        least_s = limit_of(limit_s, wishes)
        return in_time(deadline - limit_s + least_s - self._clock.monotonic(), least_s, work)


def limit_of(limit_s: float, wishes: Wishes) -> float:
    """Seconds a request may take, of which the gateway allows so many."""
    return limit_s if wishes.deadline_s is None else min(limit_s, wishes.deadline_s)


async def in_time(left_s: float, limit_s: float, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What work comes to that asks the store for a turn, where that takes no longer than what is left of the turn's time.

    Args:
        left_s: what is left.
        limit_s: what the turn had.
        work: costs nothing more where it need not wait.

    Raises:
        StoreUnavailable: it took longer.
    """
    try:
        return await within(left_s, work)
    except TimeoutError as error:
        raise StoreUnavailable(
            f"The store did not answer within the {limit_s:g} s that the request may take."
        ) from error


async def hook_in_time(limit_s: float, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What hooks that a turn waits for come to, where that takes no longer than the turn may.

    Raises:
        HookFailed: it took longer.
    """
    try:
        return await within(limit_s, work)
    except TimeoutError as error:
        raise HookFailed(f"A hook did not let the turn begin within {limit_s:g} s.") from error


def _heed(wishes: Wishes, turn: Turn) -> None:
    """Make the turn as the request's headers ask for."""
    turn.tags |= wishes.tags
    turn.session = wishes.session
    turn.headers = wishes.headers
    turn.fallbacks = wishes.fallbacks
    limit_s = limit_of(turn.limit_s, wishes)
    turn.deadline += limit_s - turn.limit_s
    turn.limit_s = limit_s
    if wishes.durable:
        turn.on_failure = turn.terms.on_failure_of_runs


async def _equip(turn: Turn, wishes: Wishes, named: tuple[str, ...], before: Held | None, offering: Offering) -> None:
    """Give the turn its tools: the client's, and those of the registry that it is offered.

    Args:
        turn: whose.
        wishes: what the request's headers ask for.
        named: registry tools that model and route name.
        before: what was decided when its run began, or None.
        offering: computes offers.

    Raises:
        InvalidRequest: the client chose what is not there.
    """
    request, snapshot = turn.request, turn.snapshot
    offer = before.offer if before is not None else NOTHING
    declined = request.tool_choice is not None and request.tool_choice.mode == "none"
    if before is None and named and snapshot.tools.specs and not declined:
        asked = Asked(request, turn.principal, named, wishes.tools, wishes.session, turn.messages)
        offer = await offering.offer(asked, snapshot)
    offer = _told(offer, turn)
    if before is not None:
        turn.changed, turn.gone = before.changed, before.gone
    elif wishes.durable:
        meant = Meant(turn.terms.model, turn.wanted)
        turn.pin = pinned(turn.decision, meant, turn.terms.route, offer)
    offer, confidence = _confident(offer, snapshot)
    offered = offer.tools
    wires = ToolWires(tuple(map(tool_wire_of, request.tools)), tuple(offered.items()))
    whole = wires.whole
    has_tools = whole is not None
    turn.choice = first_choice(request, turn.terms.route, offered, has_tools=has_tools)
    if not has_tools:
        return
    turn.wires, turn.tools_wire = wires, whole
    turn.pool, turn.escalate = turn.terms.working, turn.terms.escalate
    turn.requires_tool = requires_tool(request, turn.terms.route)
    turn.parallel = request.parallel_tool_calls is not False
    if confidence == "logprobs":
        # They show how sure the model is of its calls.
        turn.tells_tokens = True
        turn.fields = with_defaults(turn.fields, _LOGPROBS)
    turn.waiting, turn.done = offer.waiting, offer.done
    if offered:
        turn.shows_tools = wishes.events
        turn.messages = with_system_text(turn.messages, OPERATOR_TEXT)
        turn.offered = {**offered, **snapshot.tools.short_offer(offered, [*map(tool_name_of, request.tools)])}
        turn.may_read(handles_in(_results_in(turn.messages)))


def _private(privacy: Privacy, principal: Principal, terms: Terms) -> Conversation | None:
    """What is private in a turn on these terms."""
    return privacy.begin(principal.owner, terms.route.route if terms.route is not None else None)


async def _restored(
    request: ChatRequest, principal: Principal, wishes: Wishes, record: Recorder, continuity: Continuity
) -> tuple[Message, ...]:
    """The conversation with the rounds that its client never saw."""
    messages = await continuity.restored(principal.owner, wishes.session, request.messages)
    if messages is not request.messages:
        record.emit("hidden.restored", messages=len(messages) - len(request.messages))
    return messages


def _told(offer: Offer, turn: Turn) -> Offer:
    """The offer, as the trace tells of it; nothing, where the request cannot be offered anything."""
    if offer.tools and turn.request.n > 1:
        # Each of several answers could ask for calls of its own, and there is one conversation to go on with.
        turn.record.emit("tools.withheld", names=list(offer.tools), reason="the request asks for more than one answer")
        return NOTHING
    if offer.tools or offer.left_out:
        turn.record.emit("tools.offered", names=list(offer.tools), **offer.told)
    return offer


def _results_in(messages: Sequence[Message]) -> Iterator[str]:
    return (
        block.text
        for message in messages
        if message.role == "tool"
        for block in message.blocks
        if isinstance(block, ToolResult)
    )


def _confident(offer: Offer, snapshot: Snapshot) -> tuple[Offer, str]:
    """The offer as a model is told of it that has to be sure of some calls, and where that is read; `none` where of none."""
    confidence = snapshot.config.approvals.confidence
    asking = snapshot.tools.asking
    if confidence == "none" or not any(
        spec.confidence_gate for spec in (*offer.tools.values(), *offer.waiting.values())
    ):
        return offer, "none"
    if confidence == "argument":
        tools = {name: asking.get(spec.name, spec) for name, spec in offer.tools.items()}
        waiting = {name: asking.get(spec.name, spec) for name, spec in offer.waiting.items()}
        offer = msgspec.structs.replace(offer, tools=tools, waiting=waiting)
    return offer, confidence


def _cache(request: ChatRequest, messages: Sequence[Message], cache: CacheConfig) -> CacheConfig | None:
    """How an answer may be kept: not at all where tools play a part, now or earlier."""
    used = any(message.role == "tool" or message.tool_calls for message in messages) or bool(ids_in(messages))
    return None if used or request.functions else cache
