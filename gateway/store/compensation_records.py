"""What is owed to undo, as it is recorded, and what its store promises.

Knows the record. Does not know SQL, nor how something is undone: that is `gateway/saga/` and `gateway/runs/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

CompensationStatus = Literal["pending", "done", "failed", "unknown"]


class CompensationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One effect that is undone, or could not be. Times are seconds since the epoch.

    Attributes:
        effect_id: the effect that is undone; each at most once.
        run_id: the run that undoes it.
        position: counts the effects of a turn that are undone, the last one first.
        tool: what undoes it, and `undoes` what made it.
        arguments: JSON text of what the tool is called with; empty where it could not be filled in.
        made_id: the effect of undoing it, once that is begun.
        status: `failed` and `unknown` wait for an operator.
        attempts: how often it was tried.
        error: what went wrong last, or None.
    """

    effect_id: str
    owner: str
    turn_id: str
    run_id: str
    position: int
    tool: str
    undoes: str
    arguments: str
    made_id: str | None = None
    status: CompensationStatus = "pending"
    attempts: int = 0
    error: str | None = None
    created_at: float
    finished_at: float | None = None


class Compensations(Protocol):
    """What is owed. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def owe(self, rows: Sequence[CompensationRow]) -> None:
        """Record these; those whose effect is owed already stay as they are."""
        ...

    async def of_turn(self, turn_id: str, owner: str | None) -> Sequence[CompensationRow]:
        """What is owed for a turn, in the order in which it is undone."""
        ...

    async def of_effects(self, effects: Sequence[str]) -> Sequence[CompensationRow]:
        """Those that undo one of these effects, or are one of them."""
        ...

    async def change(self, row: CompensationRow) -> None:
        """Write down how far an undoing is."""
        ...

    async def settle(self, made_id: str, *, status: CompensationStatus, error: str | None, now: float) -> bool:
        """Write down what came of an undoing by its own effect; False where that effect undoes nothing."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget what was undone before then; how many went. What could not be undone stays."""
        ...
