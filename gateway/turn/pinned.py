"""What decides a run, by value: recorded when it is first executed, held to by whoever goes on with it.

Knows what is recorded, and what of it a later version no longer has. Does not know where it is recorded. Limits, budgets and
backends are not part of it: those of the active version hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.config.models import RouteConfig
from gateway.config.names import Meant
from gateway.errors import NoSuchModel, StoreUnavailable, ToolChanged
from gateway.routing.decision import Decision
from gateway.tools.registry import Registry
from gateway.tools.spec import ToolSpec
from gateway.turn.offering import Offer
from gateway.turn.snapshot import Snapshot


class PinnedTool(msgspec.Struct, frozen=True, array_like=True):
    """A tool by its name in the registry and the hash of its spec."""

    name: str
    spec_hash: str


class Pin(msgspec.Struct, frozen=True):
    """What was decided.

    Attributes:
        decision: where the request goes.
        model: the configured model, and `wanted` what stood in the place of its `*`.
        route: the route's file, or None without a route.
        tools: the tools it is offered, by the names they are offered under.
        waiting: the tools that follow once what they require has succeeded.
        done: the tools that had succeeded in the thread before.
    """

    decision: Decision
    model: str
    wanted: str
    route: dict[str, Any] | None
    tools: dict[str, PinnedTool]
    waiting: dict[str, PinnedTool]
    done: tuple[str, ...]


class Held(NamedTuple):
    """What a pin is in the active version. `changed`: tools that are others by now; `gone`: tools that it does not have."""

    meant: Meant
    route: RouteConfig | None
    offer: Offer
    changed: tuple[str, ...]
    gone: tuple[str, ...]


def pinned(decision: Decision, meant: Meant, route: RouteConfig | None, offer: Offer) -> Any:
    """What is recorded, as a JSON value."""
    pin = Pin(
        decision,
        meant.model,
        meant.wanted,
        route.model_dump(mode="json", exclude_defaults=True) if route is not None else None,
        _hashes(offer.tools),
        _hashes(offer.waiting),
        tuple(sorted(offer.done)),
    )
    # As it will be read: lists, not tuples.
    return msgspec.json.decode(msgspec.json.encode(pin))


def read_pin(recorded: Any) -> Pin:
    """What was recorded. Raises `StoreUnavailable` where another version of this program wrote it."""
    try:
        return msgspec.convert(recorded, Pin)
    except msgspec.ValidationError as error:
        raise _unreadable() from error


def held(pin: Pin, snapshot: Snapshot) -> Held:
    """What a pin is in this version.

    Raises:
        NoSuchModel: the model is gone.
        StoreUnavailable: the route was recorded by another version of this program.
    """
    if pin.model not in snapshot.config.models:
        raise NoSuchModel(pin.model)
    try:
        route = RouteConfig.model_validate(pin.route) if pin.route is not None else None
    except ValueError as error:
        raise _unreadable() from error
    both = {**pin.tools, **pin.waiting}.values()
    specs = snapshot.tools.specs
    return Held(
        Meant(pin.model, pin.wanted),
        route,
        Offer(_specs(pin.tools, snapshot.tools), _specs(pin.waiting, snapshot.tools), frozenset(pin.done)),
        tuple(tool.name for tool in both if tool.name in specs and specs[tool.name].spec_hash != tool.spec_hash),
        tuple(tool.name for tool in both if tool.name not in specs),
    )


def refuse_changed(changed: tuple[str, ...], gone: tuple[str, ...]) -> None:
    """Let a run take no further step with other tools than it was begun with.

    Raises:
        ToolChanged: some are others. Where some are merely gone, their server may be away for a moment: that is tried again.
    """
    if changed or gone:
        names = ", ".join(f"`{name}`" for name in (*changed, *gone))
        raise ToolChanged(f"Not the tools that this run began with any more: {names}.", retryable=not changed)


def _hashes(specs: Mapping[str, ToolSpec]) -> dict[str, PinnedTool]:
    return {name: PinnedTool(spec.name, spec.spec_hash) for name, spec in specs.items()}


def _specs(tools: Mapping[str, PinnedTool], registry: Registry) -> dict[str, ToolSpec]:
    return {name: registry.specs[tool.name] for name, tool in tools.items() if tool.name in registry.specs}


def _unreadable() -> StoreUnavailable:
    return StoreUnavailable("What decided this run was written by another version.", retryable=False)
