"""What a caller is told of limits: what is left, and why a turn was not let in.

Pure. Says nothing of others: no names but the caller's own, no sums of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.errors import BudgetExceeded, GatewayError, RateLimited
from gateway.security.allowances import Allowance, Purse
from gateway.security.counters import Entry, Slot, Take, Verdict
from gateway.turn.context import Left, Standing

# A place is free again when some turn ends, which nobody can foresee.
_PLACE_RETRY_S: Final = 1.0
_WHOSE: Final[Mapping[str, str]] = {
    "caller": "this caller",
    "owner": "this caller",
    "key": "this API key",
    "team": "this key's team",
    "tag": "one of this request's tags",
    "model": "this model",
    "route": "this route",
}


def standing_of(allowed: Allowance, entry: Entry, verdict: Verdict) -> Standing:
    """What is left to the caller where least is left."""
    split = len(allowed.requests)
    return Standing(
        _least(entry.takes[:split], verdict.left[:split]), _least(entry.takes[split:], verdict.left[split:])
    )


def _least(takes: Sequence[Take], left: Sequence[float]) -> Left | None:
    if not takes:
        return None
    found: Left | None = None
    for take, rest in zip(takes, left, strict=True):
        if found is None or rest < found.left:
            found = Left(take.limit, max(0.0, rest), max(0.0, take.limit - rest) * 60 / take.limit)
    return found


def refusal_of(allowed: Allowance, verdict: Verdict) -> GatewayError:
    """Why the turn was not let in, in words for its caller: no names of others, no sums of theirs."""
    if verdict.kind == "hold":
        purse: Purse = allowed.purses[verdict.index]
        return BudgetExceeded(
            f"The {purse.period} budget of {_WHOSE[purse.scope]} is spent, or what is left of it is less than this "
            "request may cost."
        )
    if verdict.kind == "slot":
        place = allowed.slots[verdict.index]
        return RateLimited(
            f"Too many requests at the same time: {_counted(place)} may run {place.limit}.",
            retry_after_s=_PLACE_RETRY_S,
        )
    rate = (*allowed.requests, *allowed.tokens)[verdict.index]
    unit = "requests" if verdict.index < len(allowed.requests) else "tokens"
    return RateLimited(
        f"Rate limit reached: {_counted(rate)} may use {rate.limit} {unit} in a minute.",
        retry_after_s=math.ceil(verdict.wait_ms) / 1000,
    )


def _counted(rate: Take | Slot) -> str:
    return _WHOSE[rate.name.split(":", 2)[1]]
