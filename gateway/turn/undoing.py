"""What becomes of a turn's effects when a later step of it fails: they stay, are undone, or a human is asked.

Knows turns, and when a failure is for good. What undoes something is a run (`gateway/runs/compensation.py`), which this waits for as
long as a client would. A background run that ends without an answer is seen to by what follows its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

import structlog

from gateway.approvals.desk import Asking, Desk
from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.saga.owed import END, expired_place, to_undo, undo_run
from gateway.saga.words import ask_words, undone_words
from gateway.store.approval_records import ApprovalRow
from gateway.store.compensation_records import CompensationRow, Compensations
from gateway.store.run_records import RunRecords
from gateway.store.turn_records import EffectRow, Effects
from gateway.tools.outcome import Outcome
from gateway.tools.registry import Registry
from gateway.turn.context import Turn
from gateway.turn.progress import Progress

# Seconds that an answer waits for what is being undone, and what it leaves of the turn's time.
_WAIT_S: Final = 20.0
_ANSWER_S: Final = 5.0
# Seconds within which a run is begun that is recorded.
_BEGIN_S: Final = 3.0
_LOOK_S: Final = 0.2
_LOOK_MOST_S: Final = 1.0
_CLOSE_S: Final = 5.0

_log: Any = structlog.get_logger("gateway.turns")


class Undoing:
    """Sees to the effects of turns that fail. Holds no state of any turn.

    Args:
        effects: the ledger's records.
        compensations: what is owed.
        records: where the runs are recorded that undo something.
        desk: where a human is asked.
        clock: for times and waits.
    """

    def __init__(
        self,
        effects: Effects,
        compensations: Compensations,
        records: RunRecords,
        desk: Desk,
        clock: Clock,
    ) -> None:
        self._effects = effects
        self._compensations = compensations
        self._records = records
        self._desk = desk
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def wanted(self, turn: Turn) -> bool:
        """Whether anything of this turn may have to be undone."""
        return turn.snapshot.tools.compensated and turn.on_failure != "keep"

    async def after(self, turn: Turn, progress: Progress, outcomes: Sequence[Outcome]) -> str | None:
        """A round's calls have ended: where one has failed for good, what became of what was done before, in words.

        The words are the answer's too.
        """
        if not self.wanted(turn):
            return None
        failed = [each for each in outcomes if _for_good(each, turn)]
        if not failed:
            return None
        why = f"`{failed[0].name}` {'was not approved' if _refused(failed[0]) else 'failed'}"
        # Whoever decides about a call has that undone which was done before it, maybe by now: it is the same run.
        approvals = turn.approvals.known.values() if turn.approvals is not None else ()
        calls = {each.call_id for each in failed}
        decided = [row.id for row in approvals if row.turn_id == turn.turn_id and row.call_id in calls]
        words = await self._undone(turn, (*decided, str(turn.machine.rounds)), why)
        if words is not None:
            progress.close_with(words)
        return words

    async def after_decision(self, turn: Turn, progress: Progress, row: ApprovalRow) -> str | None:
        """What became of what an earlier turn had done before a call that was not approved, or has failed, in words.

        The words are the answer's too.
        """
        if row.kind != "call" or row.on_failure != "compensate" or row.ok:
            return None
        places = (row.id, expired_place(row.id))
        runs = {undo_run(row.turn_id, row.owner, place, "", None, 0).id for place in places}
        known = {each.effect_id for each in await self._compensations.of_turn(row.turn_id, row.owner)}
        effects = await self._effects.of_turn(row.turn_id, row.owner)
        fresh = to_undo(effects, lambda effect: _undoer(effect, turn.snapshot.tools), known)
        # Decided a moment ago, it may not have begun.
        owed = await self._awaited(turn, row.turn_id, runs, empty_s=_BEGIN_S if fresh else 0.0)
        if not owed:
            return None
        words = undone_words(owed, f"`{row.name}` {'failed' if row.status == 'approved' else 'was not approved'}")
        progress.close_with(words)
        return words

    async def failed(self, turn: Turn, why: str) -> str | None:
        """The turn has failed: what became of what it had done, in words."""
        return await self._undone(turn, (END,), why) if self.wanted(turn) else None

    def soon(self, turn: Turn, why: str) -> None:
        """As `failed`, behind a turn that nobody waits for any more."""
        if not self.wanted(turn):
            return

        async def undo() -> None:
            try:
                await self._begin(turn, END, why)
            except StoreUnavailable as error:
                _log.error("what a turn had done could not be undone", turn=turn.turn_id, reason=error.message)

        task = asyncio.get_running_loop().create_task(undo(), name="undo")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def is_undone(self, turn: Turn) -> bool:
        """Whether what an earlier attempt at this turn has done was undone at its end: it cannot be gone on with."""
        if not turn.snapshot.tools.compensated:
            return False
        end = undo_run(turn.turn_id, turn.principal.owner, END, "", None, 0).id
        rows = await self._compensations.of_turn(turn.turn_id, turn.principal.owner)
        return any(row.run_id == end for row in rows)

    async def close(self) -> None:
        """Wait for what is still to be written down."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    async def _undone(self, turn: Turn, places: Sequence[str], why: str) -> str | None:
        """Have it undone, or ask whether it is to be; what came of it, in words, or None where there was nothing."""
        if turn.on_failure == "ask":
            return await self._ask(turn, why)
        rows: list[CompensationRow] = []
        begun = False
        for place in places:
            run_id = await self._begin(turn, place, why)
            if run_id is None:
                continue
            begun = True
            found = await self._awaited(turn, turn.turn_id, {run_id})
            if found:
                turn.record.emit("compensation.told", run=run_id, steps={row.undoes: row.status for row in found})
            rows += found
        if not begun:
            return None
        return undone_words(rows, why) if rows else f"(Because {why}, what had been done is being undone.)"

    async def _begin(self, turn: Turn, place: str, why: str) -> str | None:
        """Record the run that undoes the turn's effects; its id, or None where there are none."""
        owner = turn.principal.owner
        row = undo_run(turn.turn_id, owner, place, why, "compensate", self._clock.now())
        known = await self._compensations.of_turn(turn.turn_id, owner)
        if any(each.run_id == row.id for each in known):
            return row.id
        if not await self._owed(turn, {each.effect_id for each in known}, begun=True):
            return None
        await self._records.add([row])
        turn.record.emit("compensation.recorded", run=row.id, reason=why)
        return row.id

    async def _owed(self, turn: Turn, known: set[str], *, begun: bool = False) -> list[EffectRow]:
        effects = await self._effects.of_turn(turn.turn_id, turn.principal.owner)
        registry = turn.snapshot.tools
        found = to_undo(effects, lambda effect: _undoer(effect, registry), known)
        if begun:
            # A writing call that has begun ends by itself: whoever undoes it waits for that.
            found += [each for each in effects if each.status == "started" and _undoer(each, registry)]
        return found

    async def _awaited(
        self, turn: Turn, of_turn: str, runs: Collection[str], *, empty_s: float = _WAIT_S
    ) -> Sequence[CompensationRow]:
        """Every step of runs, once all have come to something, or as they are when nobody would wait any longer.

        Args:
            turn: who waits.
            of_turn: whose effects are undone.
            runs: that undo them.
            empty_s: how long is waited where nothing is owed by then.
        """
        now = self._clock.monotonic()
        left_s = max(0.0, min(_WAIT_S, turn.deadline - now - _ANSWER_S))
        until, until_owed = now + left_s, now + min(left_s, empty_s)
        wait_s = _LOOK_S
        while True:
            rows = await self._compensations.of_turn(of_turn, turn.principal.owner)
            rows = [row for row in rows if row.run_id in runs]
            over = not any(row.status == "pending" for row in rows)
            if (rows and over) or self._clock.monotonic() >= (until if rows else until_owed):
                return rows
            await self._clock.sleep(wait_s)
            wait_s = min(_LOOK_MOST_S, wait_s * 1.3)

    async def _ask(self, turn: Turn, why: str) -> str | None:
        known = await self._compensations.of_turn(turn.turn_id, turn.principal.owner)
        owed = await self._owed(turn, {each.effect_id for each in known})
        if not owed:
            return None
        asking = Asking(
            kind="compensation",
            principal=turn.principal,
            session=turn.session,
            turn_id=turn.turn_id,
            trace_id=turn.record.trace_id,
            # As where nobody waits: whoever asks first has asked.
            round=owed[0].round,
            # No call's place.
            position=-1,
            call_id=f"call_undo_{turn.turn_id}",
            tool="compensate",
            name="compensate",
            spec_hash="",
            arguments={"turn": turn.turn_id, "why": why, "effects": [f"{each.tool} ({each.id})" for each in owed]},
            headers={},
            why=("on_failure",),
            double=False,
            route=turn.decision.route,
            version=turn.decision.version,
        )
        row = await self._desk.ask(asking)
        turn.record.emit(
            "approval.requested",
            approval=row.id,
            name=row.name,
            call_id=row.call_id,
            arguments=asking.arguments,
            why=list(row.why),
            expires_at=row.expires_at,
        )
        return ask_words([each.tool for each in owed], why, row.id)


def _for_good(outcome: Outcome, turn: Turn) -> bool:
    """Whether a step has failed, and neither its model nor anybody's patience can mend it.

    Of one whose outcome is not known nobody can say that it failed: nothing is undone for it.
    """
    if outcome.ok or outcome.approval is not None or outcome.mendable or outcome.uncertain:
        return False
    spec = turn.offered.get(outcome.name)
    return outcome.fatal is not None or (spec is not None and spec.writes)


def _refused(outcome: Outcome) -> bool:
    return '"approval":"apr_' in outcome.content


def _undoer(effect: EffectRow, registry: Registry) -> str | None:
    spec = registry.find(effect.tool)
    return spec.compensate or None if spec is not None else None
