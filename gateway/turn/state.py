"""The states of a turn and the ways between them.

Pure: no await, no clock, no I/O. The machine, not the model, says what may come next.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class State(StrEnum):
    """Where a turn is."""

    IDLE = "idle"
    PLANNING = "planning"
    EXECUTING = "executing"
    OBSERVING = "observing"
    REFLECTING = "reflecting"
    WAITING_APPROVAL = "waiting_approval"
    TERMINATED = "terminated"


# Those that every turn enters: looked up in their class, each takes as long as the step itself.
PLANNING: Final = State.PLANNING
TERMINATED: Final = State.TERMINATED


WAYS: dict[State, frozenset[State]] = {
    State.IDLE: frozenset({State.PLANNING, State.TERMINATED}),
    # To REFLECTING from here: words alone were no answer.
    State.PLANNING: frozenset({State.EXECUTING, State.REFLECTING, State.TERMINATED}),
    State.EXECUTING: frozenset({State.OBSERVING, State.WAITING_APPROVAL, State.TERMINATED}),
    State.OBSERVING: frozenset({State.PLANNING, State.REFLECTING, State.TERMINATED}),
    State.REFLECTING: frozenset({State.PLANNING, State.TERMINATED}),
    State.WAITING_APPROVAL: frozenset({State.EXECUTING, State.REFLECTING, State.TERMINATED}),
    State.TERMINATED: frozenset(),
}


class IllegalStep(RuntimeError):
    """A step the machine does not know: a defect of the loop that asked for it."""


class Machine(msgspec.Struct, gc=False):
    """One turn's state. `rounds` counts model calls: every entry into PLANNING is one."""

    state: State = State.IDLE
    rounds: int = 0

    def to(self, state: State) -> State:
        """Take a step and return the state that was left.

        Raises:
            IllegalStep: there is no such way.
        """
        before = self.state
        if state not in WAYS[before]:
            raise IllegalStep(f"a turn cannot go from {before} to {state}")
        if state is PLANNING:
            self.rounds += 1
        self.state = state
        return before

    @property
    def over(self) -> bool:
        """Whether the turn has ended."""
        return self.state is State.TERMINATED
