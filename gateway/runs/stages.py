"""From where a run goes on that is begun again: the stages it has been through, and which of them may be gone through anew.

Knows what is recorded of a run, and that behind an effect there is no way back: who goes through a round again may call its tools
in another order, and nobody could tell then which call was which. Does not change anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.errors import InvalidRequest
from gateway.store.run_records import STEP, RunRow
from gateway.store.store import Journal, JournalEntry
from gateway.store.turn_records import Effects

START: Final = "start"
LAST: Final = "last"


class Stages:
    """Reads what runs have been through.

    Args:
        journal: their steps.
        effects: what their writing tools did.
    """

    def __init__(self, journal: Journal, effects: Effects) -> None:
        self._journal = journal
        self._effects = effects

    async def of(self, run: RunRow) -> Sequence[str]:
        """Every stage a run can go on from, the first first: `start`, its rounds by number or its steps by name, `last`."""
        return _stages(await self._journal.of_turn(run.trace_id, run.owner))

    async def first_forgotten(self, run: RunRow, stage: str) -> int | None:
        """The number of the first recorded step that is to be gone through again; None where all that is recorded stays.

        Raises:
            InvalidRequest: the run has no such stage, or an effect was made since.
            StoreUnavailable: it cannot be read.
        """
        if stage == LAST:
            return None
        entries = await self._journal.of_turn(run.trace_id, run.owner)
        known = _stages(entries)
        if stage not in known:
            raise InvalidRequest(f"`from` is {stage!r}; this run has the stages {', '.join(known)}.", param="from")
        first = 0 if stage == START else next(number for number, name in _steps(entries) if name == stage)
        effects = await self._effects.of_turn(run.trace_id, run.owner)
        made = [effect for effect in effects if effect.round >= first and effect.status != "failed"]
        if made:
            last = made[-1]
            raise InvalidRequest(
                f"`from` is {stage!r}, and `{last.tool}` has been called in round {last.round} since ({last.id} is "
                f"{last.status}): effects are not made again. Go on from a later stage, or from `{LAST}`.",
                param="from",
            )
        return first


def _stages(entries: Sequence[JournalEntry]) -> list[str]:
    return [START, *(name for _, name in _steps(entries)), LAST]


def _steps(entries: Sequence[JournalEntry]) -> list[tuple[int, str]]:
    """Numbers and names of the steps, in order. A round is called by its number."""
    return [
        (entry.round, str(entry.content["name"]) if entry.kind == STEP else str(entry.round))
        for entry in entries
        if entry.kind in ("answer", STEP)
    ]
