"""Which of a model's backends is asked first, second and last.

Pure but for dice. Knows strategies, capabilities and sizes; does not know what went wrong before.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from gateway.backends.backend import ModelCall
from gateway.backends.watched import WatchedBackend
from gateway.config.models import BackendConfig, Balance
from gateway.errors import InvalidRequest


class Member(NamedTuple):
    """A backend in a pool. `weight` counts in `weighted` and `least_busy`; with 0 it is only a last resort there."""

    backend: WatchedBackend
    weight: float = 1.0


class Needs(NamedTuple):
    """What a call asks of a backend."""

    tools: bool = False
    vision: bool = False
    json_schema: bool = False


class _Format(msgspec.Struct):
    type: str | None = None


_format = msgspec.json.Decoder(_Format).decode


def needs_of(call: ModelCall) -> Needs:
    """What this call needs."""
    wanted = call.fields.get("response_format")
    return Needs(
        tools="tools" in call.fields or "functions" in call.fields,
        vision=any(message.has_image for message in call.messages),
        json_schema=wanted is not None and _is_schema(wanted),
    )


def missing(config: BackendConfig, needs: Needs) -> str | None:
    """The first capability that the call needs and the backend lacks. Tools are none: without them they are text."""
    able = config.capabilities
    if needs.vision and not able.vision:
        return "vision"
    if needs.json_schema and not able.json_schema:
        return "json_schema"
    return None


def cannot(needs: Iterable[str], model: str) -> InvalidRequest:
    """The refusal of a call that no backend of a model can serve."""
    words = {
        "vision": ("images", "messages"),
        "json_schema": ("`response_format` with a JSON schema", "response_format"),
    }
    what, param = words[next(iter(needs))]
    return InvalidRequest(f"The model `{model}` does not take {what}.", param=param)


def in_order(
    members: Sequence[Member], balance: Balance, *, dice: random.Random, streamed: bool, now: float
) -> list[Member]:
    """The members in the order they are asked; those whose keys all rest come last."""
    if len(members) == 1:
        return list(members)
    match balance:
        case "ordered":
            found = list(members)
        case "weighted":
            # Drawing without putting back (Efraimidis and Spirakis): the first falls on each by its weight.
            found = sorted(members, key=lambda each: -_draw(each, dice))
        case "least_busy":
            found = sorted(members, key=lambda each: (*_load(each), dice.random()))
        case _:  # fastest
            found = sorted(members, key=lambda each: (_pace(each.backend, now, streamed=streamed), dice.random()))
    found.sort(key=lambda each: each.backend.rests_s(now) > 0)
    return found


def _draw(member: Member, dice: random.Random) -> float:
    return dice.random() ** (1.0 / member.weight) if member.weight else -1.0


def _load(member: Member) -> tuple[bool, float]:
    busy = member.backend.places.busy + member.backend.places.waiting
    return (True, busy) if not member.weight else (False, busy / member.weight)


def _pace(backend: WatchedBackend, now: float, *, streamed: bool) -> float:
    """Seconds it takes; one that nobody knows is found out about, by one call at a time."""
    pace = (backend.first_token if streamed else backend.whole).at(now)
    if pace is not None:
        return pace
    return 0.0 if not backend.places.busy else float("inf")


def _is_schema(wanted: msgspec.Raw) -> bool:
    try:
        return _format(wanted).type == "json_schema"
    except msgspec.DecodeError:
        return False  # the upstream's to refuse
