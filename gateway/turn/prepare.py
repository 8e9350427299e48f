"""From a request to a turn: decide, look up the model, choose the tools, lay the route's settings under the client's.

Knows the order of these steps. Does not know HTTP; `Wishes` is what headers said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gateway.backends.pool import Pool
from gateway.chat.blocks import Message, ToolResult
from gateway.chat.codecs.chat_completions import with_system_text
from gateway.chat.parameters import with_defaults
from gateway.chat.request import ChatRequest
from gateway.clock import Clock
from gateway.config.approvals import OnFailure
from gateway.config.models import CacheConfig, ModelConfig, RouteConfig
from gateway.config.names import WILDCARD, Meant
from gateway.errors import HookFailed, InvalidRequest
from gateway.observe.events import Recorder
from gateway.routing.decision import Decision
from gateway.routing.facts import Facts
from gateway.routing.text import estimate_tokens, routing_texts
from gateway.security.masking.messages import Conversation
from gateway.security.principal import Principal
from gateway.store.kept import KeptRoutes
from gateway.store.usage_records import NANO
from gateway.tools.guards.remembered import handles_in
from gateway.tools.untrusted import OPERATOR_TEXT
from gateway.tools.wires import ToolWires
from gateway.turn.choice import first_choice, requires_tool
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.offering import NOTHING, Asked, Offer, Offering
from gateway.turn.pinned import Pin, held, pinned
from gateway.turn.snapshot import Snapshot, may_use
from gateway.turn.sticky import places
from gateway.turn.waiting import ids_in

_encode = msgspec.json.Encoder().encode
# What is asked of a backend to see how sure its model is of its calls.
_ASKED: Final[Mapping[str, Mapping[str, msgspec.Raw]]] = {
    "none": {},
    "argument": {},
    "logprobs": {"logprobs": msgspec.Raw(b"true")},
}


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


def facts_of(request: ChatRequest, principal: Principal, wishes: Wishes, kept: str | None = None) -> Facts:
    """What the router may look at. `kept` is the route the conversation is on."""
    text, before = routing_texts(request.messages)
    return Facts(
        text=text,
        model=request.model,
        tags=principal.tags | wishes.tags if wishes.tags else principal.tags,
        has_tools=bool(request.tools),
        has_image=request.has_image,
        tokens=estimate_tokens(request.messages),
        allowed_routes=principal.routes,
        before=before,
        kept=kept,
    )


async def decide(
    request: ChatRequest,
    principal: Principal,
    wishes: Wishes,
    snapshot: Snapshot,
    *,
    kept: KeptRoutes | None = None,
    explain: bool = False,
) -> Decision:
    """Where a request goes; with `explain`, at more length and leaving nothing behind.

    `kept` is what `router.sticky` asks for the conversation's route; without it every request begins a conversation.

    Raises:
        NoSuchModel: the name is unknown to this caller.
    """
    place: str | None = None
    if request.model == snapshot.config.router.model:
        if not may_use(principal, request.model):
            snapshot.meant_by(request.model, principal)  # raises
        on: str | None = None
        if snapshot.config.router.sticky and kept is not None:
            conversation = places(principal.owner, wishes.session, request.messages)
            on, place = await kept.find(conversation.earlier), conversation.here
        decision = await snapshot.router.decide(facts_of(request, principal, wishes, on), explain=explain)
    else:
        meant = snapshot.meant_by(request.model, principal)
        decision = Decision(None, meant.model, "explicit", str(snapshot.version), reason="the request names its model")
    if snapshot.hooks.on_decision:
        decision = await snapshot.hooks.decision(decision, request, principal)
        if _meant(decision, request, snapshot) is None:
            raise HookFailed(f"An `on_decision` hook chose the model `{decision.model}`, which does not exist.")
    if kept is not None and place and decision.route is not None and not explain:
        await kept.keep(place, decision.route)
    return decision


async def prepare(
    request: ChatRequest,
    principal: Principal,
    wishes: Wishes,
    snapshot: Snapshot,
    record: Recorder,
    clock: Clock,
    continuity: Continuity,
    kept: KeptRoutes | None = None,
    offering: Offering | None = None,
    pin: Pin | None = None,
) -> Turn:
    """Make the turn; with a `pin`, as it was decided when its run began.

    Raises:
        InvalidRequest: the request contradicts itself.
        NoSuchModel: the name is unknown to this caller.
        StoreUnavailable: the thread's hidden rounds cannot be read, or what was said in confidence before.
    """
    if request.n > 1 and snapshot.hooks.on_answer:
        raise InvalidRequest("`n` must be 1 here: this gateway looks at each answer before it is sent.", param="n")
    before = held(pin, snapshot) if pin is not None else None
    decision = pin.decision if pin is not None else await decide(request, principal, wishes, snapshot, kept=kept)
    record.emit(
        "decision.made",
        route=decision.route,
        model=decision.model,
        strategy=decision.strategy,
        score=decision.score,
        margin=decision.margin,
        cached=decision.cached,
        reason=decision.reason,
        version=decision.version,
        **({"pinned": True} if before is not None else {}),
    )
    explicit = decision.strategy == "explicit"
    meant = before.meant if before is not None else _meant(decision, request, snapshot)
    assert meant is not None, "the router and the hooks name models that exist"
    route = snapshot.routes.get(decision.route) if decision.route else None
    if before is not None:
        route = before.route
    record.private = _private(snapshot, principal, route)
    max_rounds = snapshot.config.tools.max_rounds
    if route is not None and route.max_rounds is not None:
        max_rounds = route.max_rounds
    messages = await _restored(request, principal, wishes, snapshot, record, continuity)
    await _recalled(snapshot, principal, record.private, messages)
    offer = before.offer if before is not None else NOTHING
    if before is None and snapshot.tools.specs and max_rounds > 0:
        asked = Asked(request, principal, decision, meant.model, route, wishes.tools, wishes.session, messages)
        offer = await (offering or Offering()).offer(asked, snapshot)
    offered = offer.tools
    if offered and request.n > 1:
        # Each of several answers could ask for calls of its own, and there is one conversation to go on with.
        record.emit("tools.withheld", names=list(offered), reason="the request asks for more than one answer")
        offer, offered = NOTHING, {}
    if offered or offer.left_out:
        record.emit("tools.offered", names=list(offered), **offer.told)
    to_record = pinned(decision, meant, route, offer) if wishes.durable and before is None else None
    offer, confidence = _confident(offer, snapshot)
    offered = offer.tools
    tools = ToolWires(tuple(tool.wire for tool in request.tools), tuple(offered.items()))
    tools_wire = tools.whole
    has_tools = tools_wire is not None
    choice = first_choice(request, route, offered, has_tools=has_tools)
    settings = {name: msgspec.Raw(_encode(value)) for name, value in (route.params if route else {}).items()}
    settings = {**_ASKED[confidence], **settings}
    fields = dict(with_defaults(request.fields, settings))
    if request.n > 1:
        fields["n"] = msgspec.Raw(_encode(request.n))
    if route is not None and route.system:
        messages = with_system_text(messages, route.system)
    if offered:
        messages = with_system_text(messages, OPERATOR_TEXT)
        offered = {**offered, **snapshot.tools.short_offer(offered, [tool.name for tool in request.tools])}
    limit_s = snapshot.config.server.turn_timeout_s
    if wishes.deadline_s is not None:
        limit_s = min(limit_s, wishes.deadline_s)
    tool_pool, answer_pool, escalate = _pools(snapshot, meant.model, has_tools=has_tools)
    turn = Turn(
        record=record,
        principal=principal,
        request=request,
        snapshot=snapshot,
        decision=decision,
        model=meant.model,
        pool=tool_pool,
        answer_pool=answer_pool,
        escalate=escalate,
        wanted=meant.wanted,
        fallbacks=wishes.fallbacks,
        shown_model=request.model if explicit else decision.model,
        messages=messages,
        fields=fields,
        offered=offered,
        waiting=dict(offer.waiting),
        done=set(offer.done),
        wires=tools,
        tools_wire=tools_wire,
        choice=choice,
        requires_tool=has_tools and requires_tool(request, route),
        parallel=request.parallel_tool_calls is not False,
        max_rounds=max_rounds,
        max_tokens=_max_tokens(snapshot, route),
        max_cost=_max_cost(snapshot, route),
        limit_s=limit_s,
        deadline=clock.monotonic() + limit_s,
        session=wishes.session,
        answer_id=f"chatcmpl-{record.trace_id}",
        created=int(clock.now()),
        cache=_cache(request, messages, snapshot.config.models[meant.model], route) if not has_tools else None,
        headers=wishes.headers,
        shows_tools=wishes.events and bool(offered),
        tags=principal.tags | wishes.tags if wishes.tags else principal.tags,
        pin=to_record,
        tells_tokens=confidence == "logprobs",
        on_failure=on_failure(snapshot.config.on_failure, route, lasting=wishes.durable),
        private=record.private,
        changed=before.changed if before is not None else (),
        gone=before.gone if before is not None else (),
    )
    if offered:
        turn.may_read(handles_in(_results_in(messages)))
    return turn


async def _restored(
    request: ChatRequest,
    principal: Principal,
    wishes: Wishes,
    snapshot: Snapshot,
    record: Recorder,
    continuity: Continuity,
) -> tuple[Message, ...]:
    """The conversation with the rounds that its client never saw; without tools there are none."""
    if not snapshot.tools.specs or wishes.whole:
        return request.messages
    messages = await continuity.restored(principal.owner, wishes.session, request.messages)
    if messages is not request.messages:
        record.emit("hidden.restored", messages=len(messages) - len(request.messages))
    return messages


def _private(snapshot: Snapshot, principal: Principal, route: RouteConfig | None) -> Conversation | None:
    """What is private in a turn on this route."""
    if snapshot.privacy is None:
        return None
    return snapshot.privacy.begin(principal.owner, route.route if route is not None else None)


async def _recalled(
    snapshot: Snapshot, principal: Principal, private: Conversation | None, messages: Sequence[Message]
) -> None:
    """What tools told the caller in confidence before is private in this turn too."""
    if private is not None and snapshot.privacy is not None:
        await snapshot.privacy.recall(principal.owner, private, messages)


def _results_in(messages: Sequence[Message]) -> Iterator[str]:
    return (
        block.text
        for message in messages
        if message.role == "tool"
        for block in message.blocks
        if isinstance(block, ToolResult)
    )


def _pools(snapshot: Snapshot, model: str, *, has_tools: bool) -> tuple[Pool, Pool, Pool | None]:
    """Who does tool work, who answers without tools, and who goes on once arguments have failed twice."""
    config = snapshot.config.models[model]

    def named(name: str | None) -> Pool | None:
        meant = snapshot.names.find(name) if name is not None else None
        return snapshot.pools[meant.model] if meant is not None else None

    own = snapshot.pools[model]
    answering = named(config.answer_model) or own
    return (named(config.tool_model) or own) if has_tools else answering, answering, named(config.escalate)


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


def on_failure(said: OnFailure | None, route: RouteConfig | None, *, lasting: bool) -> OnFailure:
    """What becomes of a turn's effects when a later step fails: the route says, else the configuration, else its kind."""
    own = route.on_failure if route is not None else None
    return own or said or ("compensate" if lasting else "keep")


def _max_tokens(snapshot: Snapshot, route: RouteConfig | None) -> int | None:
    """Tokens that a turn's rounds may take: the route says, else the configuration."""
    own = route.max_turn_tokens if route is not None else None
    return snapshot.config.tools.max_turn_tokens if own is None else own


def _max_cost(snapshot: Snapshot, route: RouteConfig | None) -> int | None:
    """What a turn's rounds may cost, in billionths of the currency: the route says, else the configuration."""
    own = route.max_turn_cost if route is not None else None
    said = snapshot.config.tools.max_turn_cost if own is None else own
    return None if said is None else round(said * NANO)


def _cache(
    request: ChatRequest, messages: Sequence[Message], model: ModelConfig, route: RouteConfig | None
) -> CacheConfig | None:
    """How an answer may be kept: the route says, else the model. Never where tools play a part, now or earlier."""
    cache = route.cache if route is not None and route.cache is not None else model.cache
    if cache is None or not cache.ttl_s:
        return None
    used = any(message.role == "tool" or message.tool_calls for message in messages) or bool(ids_in(messages))
    return None if used or request.functions else cache


def _meant(decision: Decision, request: ChatRequest, snapshot: Snapshot) -> Meant | None:
    """The model of a decision; what a wildcard stands for is in the name the client asked for."""
    if WILDCARD not in decision.model:
        return snapshot.names.find(decision.model)
    meant = snapshot.names.find(request.model)
    return meant if meant is not None and meant.model == decision.model else None
