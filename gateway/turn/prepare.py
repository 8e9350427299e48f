"""From a request to a turn: decide, look up the model, choose the tools, lay the route's settings under the client's.

Knows the order of these steps. Does not know HTTP; `Wishes` is what headers said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import with_system_text
from gateway.chat.parameters import with_defaults
from gateway.chat.request import ChatRequest
from gateway.clock import Clock
from gateway.config.models import CacheConfig, ModelConfig, RouteConfig
from gateway.config.names import WILDCARD, Meant
from gateway.errors import HookFailed, InvalidRequest
from gateway.observe.events import Recorder
from gateway.routing.decision import Decision
from gateway.routing.facts import Facts
from gateway.routing.text import estimate_tokens, routing_texts
from gateway.security.principal import Principal
from gateway.store.kept import KeptRoutes
from gateway.tools.spec import ToolSpec
from gateway.tools.untrusted import OPERATOR_TEXT
from gateway.turn.context import Turn
from gateway.turn.continuity import Continuity
from gateway.turn.snapshot import Snapshot
from gateway.turn.sticky import places

_encode = msgspec.json.Encoder().encode


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
        headers: the request's headers that some tool is handed, lower case.
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
    durable: bool = False


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
        if principal.models is not None and request.model not in principal.models:
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
) -> Turn:
    """Make the turn.

    Raises:
        InvalidRequest: the request contradicts itself.
        NoSuchModel: the name is unknown to this caller.
        StoreUnavailable: the thread's hidden rounds cannot be read.
    """
    if request.n > 1 and snapshot.hooks.on_answer:
        raise InvalidRequest("`n` must be 1 here: this gateway looks at each answer before it is sent.", param="n")
    decision = await decide(request, principal, wishes, snapshot, kept=kept)
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
    )
    explicit = decision.strategy == "explicit"
    meant = _meant(decision, request, snapshot)
    assert meant is not None, "the router and the hooks name models that exist"
    pool = snapshot.pools[meant.model]
    route = snapshot.routes.get(decision.route) if decision.route else None
    max_rounds = snapshot.config.tools.max_rounds
    if route is not None and route.max_rounds is not None:
        max_rounds = route.max_rounds
    able = max_rounds > 0 and pool.takes_tools
    offered = _offer(request, principal, wishes, snapshot, decision, meant.model, route) if able else {}
    if offered:
        record.emit("tools.offered", names=list(offered))
    tools = [tool.wire for tool in request.tools] + [_wire(name, spec) for name, spec in offered.items()]
    choice = _choice(request, route, offered, has_tools=bool(tools))
    settings = {name: msgspec.Raw(_encode(value)) for name, value in (route.params if route else {}).items()}
    fields = dict(with_defaults(request.fields, settings))
    if request.n > 1:
        fields["n"] = msgspec.Raw(_encode(request.n))
    messages = request.messages
    if snapshot.tools.specs:
        messages = await continuity.restored(principal.owner, wishes.session, messages)
        if messages is not request.messages:
            record.emit("hidden.restored", messages=len(messages) - len(request.messages))
    if route is not None and route.system:
        messages = with_system_text(messages, route.system)
    if offered:
        messages = with_system_text(messages, OPERATOR_TEXT)
        offered = {**offered, **snapshot.tools.short_offer(offered, [tool.name for tool in request.tools])}
    limit_s = snapshot.config.server.turn_timeout_s
    if wishes.deadline_s is not None:
        limit_s = min(limit_s, wishes.deadline_s)
    return Turn(
        record=record,
        principal=principal,
        request=request,
        snapshot=snapshot,
        decision=decision,
        pool=pool,
        wanted=meant.wanted,
        fallbacks=wishes.fallbacks,
        shown_model=request.model if explicit else decision.model,
        messages=messages,
        fields=fields,
        offered=offered,
        tools_wire=b"[" + b",".join(tools) + b"]" if tools else None,
        choice=choice,
        parallel=request.parallel_tool_calls is not False,
        max_rounds=max_rounds,
        deadline=clock.monotonic() + limit_s,
        session=wishes.session,
        answer_id=f"chatcmpl-{record.trace_id}",
        created=int(clock.now()),
        cache=_cache(request, messages, snapshot.config.models[meant.model], route) if not tools else None,
        headers=wishes.headers,
    )


def _cache(
    request: ChatRequest, messages: Sequence[Message], model: ModelConfig, route: RouteConfig | None
) -> CacheConfig | None:
    """How an answer may be kept: the route says, else the model. Never where tools play a part, now or earlier."""
    cache = route.cache if route is not None and route.cache is not None else model.cache
    if cache is None or not cache.ttl_s:
        return None
    used = any(message.role == "tool" or message.tool_calls for message in messages)
    return None if used or request.functions else cache


def _meant(decision: Decision, request: ChatRequest, snapshot: Snapshot) -> Meant | None:
    """The model of a decision; what a wildcard stands for is in the name the client asked for."""
    if WILDCARD not in decision.model:
        return snapshot.names.find(decision.model)
    meant = snapshot.names.find(request.model)
    return meant if meant is not None and meant.model == decision.model else None


def _offer(
    request: ChatRequest,
    principal: Principal,
    wishes: Wishes,
    snapshot: Snapshot,
    decision: Decision,
    model: str,
    route: RouteConfig | None,
) -> Mapping[str, ToolSpec]:
    """The registry tools of this turn by the names they are offered under; none with `n > 1` or `tool_choice: none`."""
    config = snapshot.config.tools
    if request.n > 1 or (request.tool_choice is not None and request.tool_choice.mode == "none"):
        return {}
    if route is not None and route.tool_choice == "none":
        return {}
    model_tools = snapshot.config.models[model].tools
    if decision.strategy == "explicit" and config.offer == "routed" and model_tools is None:
        return {}
    names = route.tools if route is not None and route.tools is not None else model_tools
    specs = snapshot.tools.offered(names, principal, wishes.tools)
    taken = {tool.name for tool in request.tools}
    return {(f"gateway__{spec.name}" if spec.name in taken else spec.name): spec for spec in specs}


def _wire(name: str, spec: ToolSpec) -> bytes:
    """The tool as it is offered; under another name where the client has a tool of its own called that."""
    if name == spec.name:
        return spec.wire
    wire = msgspec.json.decode(spec.wire)
    wire["function"]["name"] = name
    return _encode(wire)


def _choice(
    request: ChatRequest, route: RouteConfig | None, offered: Mapping[str, ToolSpec], *, has_tools: bool
) -> bytes | None:
    """The first round's `tool_choice`. A choice without anything to choose from never goes upstream."""
    choice = request.tool_choice
    if choice is not None and choice.mode == "named":
        names = {tool.name for tool in request.tools} | set(offered)
        if choice.name not in names:
            raise InvalidRequest(f"`tool_choice` names {choice.name!r}, which is not offered.", param="tool_choice")
    if not has_tools:
        if choice is not None and choice.mode == "required":
            raise InvalidRequest("`tool_choice` is `required`, but no tools are offered.", param="tool_choice")
        return None
    if choice is not None:
        return choice.wire
    if route is not None and route.tool_choice == "required":
        return b'"required"'
    return None
