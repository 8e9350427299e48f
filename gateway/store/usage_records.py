"""What was used, as records: tokens, turns and money, added up.

Knows the records and what their store promises. Money is in billionths of the currency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec

NANO = 1_000_000_000
Dimension = Literal["day", "key", "user", "team", "route", "model", "backend"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner used on one day in one way, or a sum of such. Empty text where there is none, or where it was summed over.

    Attributes:
        day: as in 2025-01-31.
        tags: a sorted JSON list.
        turns: how many, `failed` ones among them.
        cached_tokens: part of `prompt_tokens`.
        cost: billionths of the currency, of what has a price.
        unpriced: turns in which the price of some tokens was not known.
    """

    day: str = ""
    owner: str = ""
    key: str = ""
    user: str = ""
    team: str = ""
    tags: str = "[]"
    route: str = ""
    model: str = ""
    backend: str = ""
    turns: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0
    unpriced: int = 0


class Usages(Protocol):
    """What was used. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def add(self, rows: Sequence[UsageRow]) -> None:
        """Add these to what is there, all or none."""
        ...

    async def sums(
        self, by: Sequence[Dimension], *, owner: str | None = None, since: str | None = None, until: str | None = None
    ) -> Sequence[UsageRow]:
        """Sums by these dimensions, in their order.

        Args:
            by: what is told apart.
            owner: whose; None for everybody's.
            since: the first day.
            until: the last day.
        """
        ...

    async def spent(self, scope: str, name: str, *, since: str | None = None, until: str | None = None) -> int:
        """The cost of these days. `scope` is `owner`, `key`, `team` or `tag`, `name` whose."""
        ...

    async def prune(self, *, before: str) -> int:
        """Forget days before this one; how many rows went."""
        ...
