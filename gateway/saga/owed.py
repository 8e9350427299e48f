"""What a failed turn owes: the run that undoes what it has done, and which of its effects that is.

Pure. Knows effects as they are recorded, and what undoes which. Does not know how something is undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal

import msgspec

from gateway.config.approvals import OnFailure
from gateway.store.run_records import RunRow
from gateway.store.turn_records import EffectRow

KIND: Final = "compensation"
# The place of the run that follows the end of a turn; those within a turn are named by their round.
END: Final = "end"

_encode = msgspec.json.Encoder(order="deterministic").encode


class Undo(msgspec.Struct, frozen=True):
    """What such a run's body says.

    Attributes:
        turn: whose effects.
        why: why they are undone.
        mode: whether a human is asked first; None: as the turn's record says.
        expired: the approval that has to have expired, or else nothing is undone; None where that is no matter of time.
        approval: the approval by which a human has let it be undone, which is told what came of it; None where none was asked.
    """

    turn: str
    why: str
    mode: OnFailure | None = "compensate"
    expired: str | None = None
    approval: str | None = None


def undo_run(
    turn_id: str,
    owner: str,
    place: str,
    why: str,
    mode: OnFailure | None,
    now: float,
    *,
    due_at: float | None = None,
    expired: str | None = None,
) -> RunRow:
    """The run that undoes what a turn has done. The same place of the same turn is the same run, whoever records it."""
    trace_id = hashlib.sha256(f"{owner}\0{turn_id}\0{place}\0undo".encode()).hexdigest()[:32]
    return RunRow(
        id=f"run_{trace_id}",
        kind=KIND,
        trace_id=trace_id,
        owner=owner,
        parent_id=f"run_{turn_id}",
        priority="high",
        # Whoever looks after runs queues it within a second, also where the queue cannot be reached now.
        waits_for="time",
        body=msgspec.json.encode(Undo(turn_id, why, mode, expired)),
        created_at=now,
        due_at=now if due_at is None else due_at,
    )


def expired_place(approval_id: str) -> str:
    """The place of the run that follows where nobody has decided in time."""
    return f"{approval_id} expired"


def undo_key(effect_id: str) -> str:
    """What makes the undoing of an effect one effect, whoever begins it: hex SHA-256."""
    return hashlib.sha256(_encode(["undo", effect_id])).hexdigest()


def to_undo(
    effects: Sequence[EffectRow], undoes: Callable[[EffectRow], str | None], owed: Collection[str] = ()
) -> list[EffectRow]:
    """The effects of a turn that are to be undone, the last one first.

    Args:
        effects: all of the turn's, those of undoing something too.
        undoes: the tool that undoes an effect, or None where nothing does.
        owed: ids of those that are owed already.
    """
    own = {undo_key(effect.id) for effect in effects}
    done = [
        effect
        for effect in effects
        if effect.status == "done" and effect.effect_key not in own and effect.id not in owed and undoes(effect)
    ]
    return sorted(done, key=lambda effect: (effect.started_at, effect.round, effect.position), reverse=True)


State = Literal["compensated", "partially_compensated", "failed", "pending"]


def state_of(statuses: Sequence[str]) -> State:
    """What undoing has come to: never `compensated` where one is left."""
    if any(status == "pending" for status in statuses):
        return "pending"
    done = sum(status == "done" for status in statuses)
    return "compensated" if done == len(statuses) else "partially_compensated" if done else "failed"
