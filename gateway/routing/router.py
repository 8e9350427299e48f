"""The seam every router fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.routing.decision import Decision
from gateway.routing.facts import Facts


class Router(Protocol):
    """Facts in, decision out. Never raises for any text; a failing part means falling through."""

    async def decide(self, facts: Facts, *, explain: bool = False) -> Decision:
        """Decide. With `explain`, every candidate is filled in; route, model, strategy and score stay the same."""
        ...

    async def read_ahead(self, many: Sequence[Facts]) -> None:
        """Make what `decide` will need for all of these, at once and without haste. Changes no decision; never raises."""
        ...

    async def prepare(self) -> None:
        """Load what deciding by meaning needs. Never raises: without it, decisions fall through and say so."""
        ...

    async def close(self) -> None:
        """Stop what still computes."""
        ...
