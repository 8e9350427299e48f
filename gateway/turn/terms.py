"""What a model and a route settle for every turn on them, before any request is looked at.

Pure, and made once a version for each pair that is met: a turn asks one value where it would ask the gateway's file, the model
and the route in turn. Knows which of the three has the last word. Does not know requests.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.backends.pool import Pool
from gateway.config.approvals import OnFailure
from gateway.config.models import CacheConfig, GatewayConfig, RouteConfig
from gateway.config.names import ModelNames
from gateway.store.usage_records import NANO
from gateway.turn.windowing import Windowing, windowing

_encode = msgspec.json.Encoder().encode


class Terms(msgspec.Struct, frozen=True):
    """The terms of a turn: the route's word, else the model's, else the gateway's.

    Attributes:
        model: the model's name in the configuration.
        route: or None without a route.
        answering: who answers without tools.
        working: who does tool work.
        escalate: who goes on once arguments have failed twice, or None.
        params: request fields that hold where the client says nothing, encoded.
        system: what the operator says to the model on this route.
        tools: registry tools that are offered; empty where none are.
        tools_by_name: the same for a request that names its model itself.
        max_rounds: rounds with registry tool calls that are allowed.
        max_tokens: tokens that all rounds together may take, or None.
        max_cost: what they may cost together, in billionths of the currency, or None.
        cache: how answers may be kept, or None where none are.
        on_failure: what becomes of a turn's effects when a later step fails.
        on_failure_of_runs: the same of a run, whose steps are all recorded: nothing that fails is left half done unless that is said.
        requires_tool: whether a tool has to be called where the client leaves that open.
        window: how conversations are made to fit, or None where they are sent as they are.
        sums_up: whether what is cut off of conversations is summed up before the model is asked.
        recalls: whether the model is told what is remembered of the caller.
        looks_back: whether there is anything to do with the conversation once the turn has been answered.
    """

    model: str
    route: RouteConfig | None
    answering: Pool
    working: Pool
    escalate: Pool | None
    params: Mapping[str, msgspec.Raw]
    system: str | None
    tools: tuple[str, ...]
    tools_by_name: tuple[str, ...]
    max_rounds: int
    max_tokens: int | None
    max_cost: int | None
    cache: CacheConfig | None
    on_failure: OnFailure
    on_failure_of_runs: OnFailure
    requires_tool: bool
    window: Windowing | None
    sums_up: bool
    recalls: bool
    looks_back: bool


def terms_of(
    config: GatewayConfig, names: ModelNames, pools: Mapping[str, Pool], model: str, route: RouteConfig | None
) -> Terms:
    """The terms of turns that go to this model, by this route where there is one."""
    own = config.models[model]

    def named(name: str | None) -> Pool | None:
        meant = names.find(name) if name is not None else None
        return pools[meant.model] if meant is not None else None

    answering = named(own.answer_model) or pools[model]
    tools = own.tools
    if route is not None and route.tools is not None:
        tools = route.tools
    if tools is None:
        tools = config.tools.default
    max_rounds, max_tokens, max_cost = config.tools.max_rounds, config.tools.max_turn_tokens, config.tools.max_turn_cost
    if route is not None:
        max_rounds = max_rounds if route.max_rounds is None else route.max_rounds
        max_tokens = max_tokens if route.max_turn_tokens is None else route.max_turn_tokens
        max_cost = max_cost if route.max_turn_cost is None else route.max_turn_cost
    if not max_rounds or (route is not None and route.tool_choice == "none"):
        tools = ()
    cache = route.cache if route is not None and route.cache is not None else own.cache
    said = (route.on_failure if route is not None else None) or config.on_failure
    window = windowing(config.context, route.context if route is not None else None)
    return Terms(
        model=model,
        route=route,
        answering=answering,
        working=named(own.tool_model) or pools[model],
        escalate=named(own.escalate),
        params={name: msgspec.Raw(_encode(value)) for name, value in (route.params if route else {}).items()},
        system=route.system if route is not None else None,
        tools=tuple(tools),
        tools_by_name=() if config.tools.offer == "routed" and own.tools is None else tuple(tools),
        max_rounds=max_rounds,
        max_tokens=max_tokens,
        max_cost=None if max_cost is None else round(max_cost * NANO),
        cache=cache if cache is not None and cache.ttl_s else None,
        on_failure=said or "keep",
        on_failure_of_runs=said or "compensate",
        requires_tool=route is not None and route.tool_choice == "required",
        window=window if window.strategy != "none" else None,
        sums_up=window.sums_up,
        recalls=config.context.memory.enabled,
        looks_back=config.context.memory.enabled or config.context.summary.model is not None,
    )
