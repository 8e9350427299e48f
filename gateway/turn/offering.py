"""Which registry tools a turn is offered.

Knows route, model, key, header, prerequisites, breakers, relevance, and what the thread was offered before. Does not know how a
tool is run. Within a thread the offer only grows, and in an order that does not change: providers keep what they have read of
a prompt, and its tools stand at its very beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import field

from gateway.chat.blocks import Message
from gateway.chat.request import ChatRequest
from gateway.config.models import GatewayConfig, RouteConfig
from gateway.routing.text import routing_texts
from gateway.security.principal import Principal
from gateway.store.kept import KeptRoutes
from gateway.tools.guards.breakers import Breakers
from gateway.tools.prerequisites import succeeded
from gateway.tools.registry import Registry
from gateway.tools.spec import ToolSpec
from gateway.turn.snapshot import Snapshot
from gateway.turn.sticky import Places, places

# What OpenAI takes at most. A thread that went through many routes lets go of what it was offered first.
MAX_TOOLS: Final = 128
_BETWEEN: Final = "\n"
# Of what was not offered, this much is told.
_MOST_TOLD: Final = 50


class Offer(msgspec.Struct, frozen=True):
    """The registry tools of a turn.

    Attributes:
        tools: by the names they are offered under, in order.
        waiting: tools that follow as soon as what they require has succeeded, by the names they will be offered under.
        done: the tools that have succeeded in the thread.
        left_out: why tools that the route or model names are not offered, by name.
        chosen_by: what chose among more tools than are offered: `encoder` or `words`; empty where nothing was chosen.
    """

    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    waiting: Mapping[str, ToolSpec] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    left_out: Mapping[str, str] = field(default_factory=dict)
    chosen_by: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """What the trace says beside the names."""
        some = dict(list(self.left_out.items())[:_MOST_TOLD])
        return {**({"left_out": some} if some else {}), **({"chosen_by": self.chosen_by} if self.chosen_by else {})}


NOTHING: Final = Offer()


class Asked(msgspec.Struct, frozen=True):
    """What an offer depends on.

    Attributes:
        named: the tools that route or model name.
        narrowed: what the request wants to be left with, or None.
        session: the name the client gave its conversation.
        messages: the conversation with the rounds that its client never saw.
    """

    request: ChatRequest
    principal: Principal
    named: tuple[str, ...]
    narrowed: frozenset[str] | None
    session: str | None
    messages: Sequence[Message]


class Offering:
    """Computes offers. One serves all versions.

    Args:
        breakers: which tools are left alone for now.
        kept: what threads were offered before, or None where nobody remembers.
    """

    def __init__(self, breakers: Breakers | None = None, kept: KeptRoutes | None = None) -> None:
        self._breakers = breakers
        self._kept = kept

    async def offer(self, asked: Asked, snapshot: Snapshot) -> Offer:
        """The registry tools of a turn."""
        registry = snapshot.tools
        fitting = {spec.name: spec for spec in registry.fitting(asked.named, asked.principal, asked.narrowed)}
        place = self._place(asked, snapshot)
        known = await self._known(place, asked, snapshot)
        if known is None:
            # Nobody remembers a thread that was offered everything, as it would be now.
            goes_on = place is not None and not snapshot.offers_vary and _goes_on(asked)
            known = [*fitting.values()] if goes_on else []
        before = {spec.name: spec for spec in known if registry.fits(spec, asked.principal, asked.narrowed)}
        fresh = {name: spec for name, spec in fitting.items() if name not in before}
        left_out: dict[str, str] = {}
        done: frozenset[str] = frozenset()
        waiting: dict[str, ToolSpec] = {}
        if any(spec.requires for spec in fresh.values()):
            done = _done(asked, snapshot)
            waiting = {name: spec for name, spec in fresh.items() if not registry.required(spec) <= done}
            left_out.update(dict.fromkeys(waiting, "it waits for what it requires"))
        ready = {name: spec for name, spec in fresh.items() if name not in waiting}
        if self._breakers is not None and self._breakers.any_failing:
            opened = [name for name, spec in ready.items() if self._breakers.open_s(spec, registry.digest) > 0]
            left_out.update(dict.fromkeys(opened, "its breaker is open"))
            ready = {name: spec for name, spec in ready.items() if name not in opened}
        room = max(0, snapshot.config.tools.max_offered - sum(name in fitting for name in before))
        chosen_by = ""
        if len(ready) > room:
            best, chosen_by = await _best(asked, snapshot, [*ready], room)
            left_out.update({name: "others are more relevant" for name in ready if name not in best})
            ready = {name: spec for name, spec in ready.items() if name in best}
        offered = {**before, **ready}
        gone = [name for name in before if name not in fitting][: max(0, len(offered) - MAX_TOOLS)]
        offered = {name: spec for name, spec in offered.items() if name not in gone}
        if place is not None and self._kept is not None and offered:
            told = dict.fromkeys([*(spec.name for spec in known if spec.name not in gone), *offered])
            await self._kept.keep(place.here, _BETWEEN.join(told))
        return Offer(_under_names(offered, asked), _under_names(waiting, asked), done, left_out, chosen_by)

    def _place(self, asked: Asked, snapshot: Snapshot) -> Places | None:
        """Where the thread's offers are kept; None where every request of it is offered the same in any case."""
        if self._kept is None or not (
            snapshot.offers_vary or (self._breakers is not None and self._breakers.any_failing)
        ):
            return None
        return places(f"offer\0{asked.principal.owner}", asked.session, asked.request.messages)

    async def _known(self, place: Places | None, asked: Asked, snapshot: Snapshot) -> list[ToolSpec] | None:
        """What the thread was offered, as far as its owner still may be; None where nothing is known of it."""
        found = await self._kept.find(place.earlier) if self._kept is not None and place is not None else None
        if found is None:
            return None
        registry = snapshot.tools
        specs = (registry.specs.get(name) for name in found.split(_BETWEEN))
        return [spec for spec in specs if spec is not None and registry.allowed(spec, asked.principal)]


def described_as(spec: ToolSpec) -> str:
    """What a tool is about, in words that can be compared with a question."""
    parameters = spec.parameters.get("properties")
    words = spec.name.replace("_", " ").replace("-", " ")
    return f"{words}. {spec.description} {' '.join(parameters) if isinstance(parameters, Mapping) else ''}"


def offers_vary(config: GatewayConfig, routes: Sequence[RouteConfig], registry: Registry) -> bool:
    """Whether requests of one thread may be offered different tools although nothing has failed."""
    named = [route.tools for route in routes] + [model.tools for model in config.models.values()]
    different = {frozenset(tools) for tools in (*named, config.tools.default) if tools is not None}
    return (
        len(different) > 1
        or any(len(tools) > config.tools.max_offered for tools in different)
        or any(spec.requires for spec in registry.specs.values())
    )


async def _best(asked: Asked, snapshot: Snapshot, names: Sequence[str], room: int) -> tuple[frozenset[str], str]:
    """As many of these tools as there is room for, and what chose them."""
    if not room or snapshot.relevance is None:
        return frozenset(names[:room]), ""
    ranked = await snapshot.relevance.rank(routing_texts(asked.request.messages)[0], names)
    return frozenset(ranked.names[:room]), ranked.by


def _done(asked: Asked, snapshot: Snapshot) -> frozenset[str]:
    """What has succeeded in the thread, by what the gateway itself has written of it: a client's word proves nothing."""
    client = {id(message) for message in asked.request.messages}
    return succeeded([message for message in asked.messages if id(message) not in client], snapshot.tools.find)


def _goes_on(asked: Asked) -> bool:
    return any(message.role == "assistant" for message in asked.request.messages)


def _under_names(specs: Mapping[str, ToolSpec], asked: Asked) -> dict[str, ToolSpec]:
    """A client's tool keeps its name; ours of that name is offered under another."""
    taken = {tool.name for tool in asked.request.tools}
    return {(f"gateway__{name}" if name in taken else name): spec for name, spec in specs.items()}
