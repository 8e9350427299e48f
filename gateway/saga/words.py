"""What clients and models are told of what was undone, and of what was not.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.saga.owed import state_of
from gateway.store.compensation_records import CompensationRow


def undone_words(rows: Sequence[CompensationRow], why: str) -> str:
    """One sentence or more, in brackets: what was undone of a turn, what was not, and why it had to be."""
    state = state_of([row.status for row in rows])
    undone = [row.undoes for row in rows if row.status == "done"]
    left = [_left(row) for row in rows if row.status in ("failed", "unknown")]
    waits = [row.undoes for row in rows if row.status == "pending"]
    match state:
        case "compensated":
            return f"(Because {why}, what had been done was undone: {_names(undone)}.)"
        case "partially_compensated":
            text = f"Partially compensated, because {why}. Undone: {_names(undone)}. Not undone: {'; '.join(left)}."
        case "failed":
            text = f"Not compensated, although {why}. Not undone: {'; '.join(left)}."
        case _:
            parts = [f"Because {why}, what had been done is being undone: {_names(waits)}."]
            parts += [f"Undone by now: {_names(undone)}."] if undone else []
            parts += [f"Not undone: {'; '.join(left)}."] if left else []
            return f"({' '.join(parts)})"
    return f"({text} An operator has to look at it.)"


def ask_words(names: Sequence[str], why: str, approval_id: str) -> str:
    """Where a human is asked whether it is to be undone."""
    return (
        f"(Although {why}, what had been done before still stands: {_names(names)}. To undo it an approver decides "
        f"{approval_id}: `hermes-gateway approvals approve {approval_id}`.)"
    )


def steps_of(rows: Sequence[CompensationRow]) -> list[dict[str, Any]]:
    """Every step as the run shows it."""
    return [
        {
            "effect": row.effect_id,
            "undoes": row.undoes,
            "tool": row.tool,
            "status": row.status,
            "attempts": row.attempts,
            "error": row.error,
            "undone_by": row.made_id,
        }
        for row in rows
    ]


def _left(row: CompensationRow) -> str:
    if row.status == "unknown":
        return f"`{row.undoes}` (whether `{row.tool}` took effect is not known)"
    return f"`{row.undoes}` (`{row.tool}` failed)"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
