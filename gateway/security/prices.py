"""What tokens cost.

Pure. Knows a backend's price and adds up; an unknown price stays unknown. Money is in billionths of the currency, whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from gateway.chat.usage import Usage
from gateway.config.limits import PriceConfig
from gateway.config.models import BackendConfig
from gateway.store.usage_records import NANO

# Providers that run on this machine and send no bill.
_OWN = frozenset({"demo", "llamacpp"})


class Price(msgspec.Struct, frozen=True):
    """Billionths of the currency for one token."""

    prompt: float
    completion: float
    cached: float

    def of(self, usage: Usage) -> int:
        """What this usage costs."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        fresh = usage.prompt_tokens - cached
        return round(fresh * self.prompt + cached * self.cached + usage.completion_tokens * self.completion)


FREE = Price(0, 0, 0)


def price_of(config: BackendConfig, listed: Price | None) -> Price | None:
    """A backend's price: its own, or that of the list; None where nobody knows."""
    if config.price == "free" or (config.price is None and config.provider in _OWN):
        return FREE
    if isinstance(config.price, PriceConfig):
        said = config.price
        cached = said.input_per_mtok if said.cached_input_per_mtok is None else said.cached_input_per_mtok
        return Price(*(each * NANO / 1_000_000 for each in (said.input_per_mtok, said.output_per_mtok, cached)))
    return listed


class Bound(msgspec.Struct, frozen=True):
    """What a token costs at most, whichever of several backends answers. `known`: whether all of them have a price."""

    prompt: float = 0
    completion: float = 0
    known: bool = True

    def of(self, prompt_tokens: int, completion_tokens: int) -> int:
        """What so many tokens cost at most."""
        return math.ceil(prompt_tokens * self.prompt + completion_tokens * self.completion)


class Prices:
    """The prices of one version's backends.

    Args:
        prices: by the backend's name; None where nobody knows.
    """

    def __init__(self, prices: Mapping[str, Price | None] | None = None) -> None:
        self._prices = dict(prices or {})

    def of(self, spent: Iterable[tuple[str | None, Usage]]) -> tuple[int, bool]:
        """What was used at these backends costs, as far as prices are known, and whether they all are."""
        cost, known = 0, True
        for backend, usage in spent:
            one, priced = self.of_one(backend, usage)
            cost += one
            known = known and priced
        return cost, known

    def of_one(self, backend: str | None, usage: Usage) -> tuple[int, bool]:
        """The same of what was used at one backend."""
        price = self._prices.get(backend or "")
        if price is None:
            return 0, not (usage.prompt_tokens or usage.completion_tokens)
        return price.of(usage), True

    def bound(self, backends: Iterable[str]) -> Bound:
        """The highest price among these backends."""
        prices = [self._prices.get(name) for name in backends]
        known = [price for price in prices if price is not None]
        return Bound(
            max((max(price.prompt, price.cached) for price in known), default=0),
            max((price.completion for price in known), default=0),
            len(known) == len(prices),
        )
