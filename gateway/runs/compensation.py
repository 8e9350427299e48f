"""What a failed turn has done, undone: a run of its own, begun again until every step has come to something.

Knows the order of the steps, how often one is tried, and what becomes of one that fails: the others go on, it waits for an operator.
Each step is an effect in the ledger: made once, whoever begins it; where nobody knows what came of it, it is not repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.approvals.desk import Asking, Desk
from gateway.approvals.masking import masked_arguments
from gateway.clock import Clock
from gateway.config.approvals import OnFailure
from gateway.config.versions import Versioned
from gateway.errors import CompensationFailed, NotFound
from gateway.observe.events import Recorder, Subscriber
from gateway.runs.run import Attempt, Done
from gateway.saga.owed import KIND, Undo, state_of, to_undo, undo_key
from gateway.saga.words import steps_of, undone_words
from gateway.security.principal import Principal
from gateway.store.audit_records import Audit, AuditAction, AuditEntry
from gateway.store.compensation_records import CompensationRow, Compensations
from gateway.store.run_records import RunRow
from gateway.store.turn_records import EffectRow, Effects
from gateway.tools.courier import Courier
from gateway.tools.outcome import CallFailed
from gateway.tools.outcome import Done as Made
from gateway.tools.registry import Registry
from gateway.tools.result import failure, success
from gateway.tools.spec import ToolContext, ToolSpec
from gateway.tools.undo import shown_result, undo_arguments
from gateway.turn.snapshot import Snapshot

__all__ = ["KIND", "CompensationHandler"]

# How often a step is tried, and the seconds before the second time; doubled from then on.
ATTEMPTS: Final = 4
BACKOFF_S: Final = 0.5
_LOOK_S: Final = 0.2
_MOST_ERROR: Final = 500
_MOST_BYTES: Final = 8192


class CompensationHandler:
    """Undoes what failed turns have done.

    Args:
        effects: the ledger's records.
        compensations: what is owed.
        courier: runs tools.
        versions: where the active version is.
        desk: where a human is asked first, if that is wanted.
        audit: the audit log.
        mode_of: what a background run's own record says is to be done: its trace id and its owner.
        alive: whether a holder may still be at work.
        subscribers: get the finished trace.
        clock: time.
    """

    def __init__(
        self,
        effects: Effects,
        compensations: Compensations,
        courier: Courier,
        versions: Versioned[Snapshot],
        desk: Desk,
        audit: Audit,
        mode_of: Callable[[str, str], Awaitable[OnFailure]],
        alive: Callable[[str], bool],
        subscribers: Sequence[Subscriber],
        clock: Clock,
    ) -> None:
        self._alive = alive
        self._effects = effects
        self._compensations = compensations
        self._courier = courier
        self._versions = versions
        self._desk = desk
        self._audit = audit
        self._mode_of = mode_of
        self._subscribers = subscribers
        self._clock = clock

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:  # noqa: ARG002 - the seam's
        """Undo everything that is owed, or go on with it.

        Raises:
            CompensationFailed: something could not be undone; operators see it among the effects.
        """
        asked = msgspec.json.decode(run.body, type=Undo)
        if asked.expired is not None and not await self._has_expired(asked.expired, run.owner):
            return _nothing()
        mode = asked.mode or await self._mode_of(asked.turn, run.owner)
        lease = self._versions.acquire()
        try:
            registry = lease.value.tools
            known = await self._compensations.of_turn(asked.turn, run.owner)
            if mode == "keep":
                return _nothing()
            effects = await self._settled(asked.turn, run.owner, registry)
            fresh = to_undo(effects, lambda effect: _undoer(effect, registry), {row.effect_id for row in known})
            if mode == "ask" and fresh:
                return await self._ask(run, asked, fresh)
            await self._owe(run, asked, fresh, registry, len(known))
            return await self._undo_all(run, asked, {effect.id: effect for effect in effects}, registry)
        finally:
            self._versions.release(lease)

    async def _has_expired(self, approval_id: str, owner: str) -> bool:
        try:
            row = await self._desk.get(approval_id, owner)
        except NotFound:
            return False
        return self._desk.status_of(row) == "expired"

    async def _settled(self, turn_id: str, owner: str, registry: Registry) -> Sequence[EffectRow]:
        """The turn's effects once those that are being made have ended; one whose maker is gone is not waited for."""
        while True:
            effects = await self._effects.of_turn(turn_id, owner)
            now = self._clock.now()
            if not any(
                effect.status == "started"
                and _undoer(effect, registry) is not None
                and effect.held_until > now
                and self._alive(effect.holder)
                for effect in effects
            ):
                return effects
            await self._clock.sleep(_LOOK_S)

    async def _ask(self, run: RunRow, asked: Undo, fresh: Sequence[EffectRow]) -> Done:
        key, _, user = run.owner.partition("/")
        row = await self._desk.ask(asking_to_undo(asked, Principal(key, user=user or None), fresh, run.trace_id))
        return Done(msgspec.json.encode({"object": "compensation", "status": "asked", "approval": row.id}))

    async def _owe(self, run: RunRow, asked: Undo, fresh: Sequence[EffectRow], registry: Registry, known: int) -> None:
        now = self._clock.now()
        rows = []
        for position, effect in enumerate(fresh, known):
            name = _undoer(effect, registry) or ""
            rows.append(
                CompensationRow(
                    effect_id=effect.id,
                    owner=effect.owner,
                    turn_id=asked.turn,
                    run_id=run.id,
                    position=position,
                    tool=name,
                    undoes=effect.tool,
                    arguments=_filled(effect, registry.find(name)),
                    created_at=now,
                )
            )
        await self._compensations.owe(rows)

    async def _undo_all(self, run: RunRow, asked: Undo, effects: Mapping[str, EffectRow], registry: Registry) -> Done:
        record = Recorder(run.trace_id, run.owner, self._clock)
        started = self._clock.monotonic()
        owed = [row for row in await self._compensations.of_turn(asked.turn, run.owner) if row.run_id == run.id]
        if not owed:
            await self._tell(run, asked, ())
            return _nothing()
        try:
            for row in owed:
                if row.status == "pending" and row.effect_id in effects:
                    await self._undo(row, effects[row.effect_id], registry, record)
            rows = [row for row in await self._compensations.of_turn(asked.turn, run.owner) if row.run_id == run.id]
            state = state_of([row.status for row in rows])
            record.emit(
                "compensation.ended",
                turn=asked.turn,
                reason=asked.why,
                state=state,
                status=200 if state == "compensated" else 502,
                key=run.owner.partition("/")[0],
                seconds=self._clock.monotonic() - started,
            )
        finally:
            for subscriber in self._subscribers:
                subscriber.finished(record)
        await self._tell(run, asked, rows)
        answer = {"object": "compensation", "turn": asked.turn, "status": state, "steps": steps_of(rows)}
        if state != "compensated":
            raise CompensationFailed(undone_words(rows, asked.why))
        return Done(msgspec.json.encode(answer))

    async def _tell(self, run: RunRow, asked: Undo, rows: Sequence[CompensationRow]) -> None:
        """Whoever has let it be undone, and the conversation it is about, is told what came of it."""
        if asked.approval is None:
            return
        try:
            approval = await self._desk.get(asked.approval, run.owner)
        except NotFound:
            return
        words = undone_words(rows, asked.why) if rows else "Nothing was left that could be undone."
        ok = all(row.status == "done" for row in rows)
        content = success(words, _MOST_BYTES).content if ok else failure(words, _MOST_BYTES)
        state = state_of([row.status for row in rows])
        await self._desk.finish(approval, ok=ok, content=content, outcome=state, trace_id=run.trace_id)

    async def _undo(self, owed: CompensationRow, effect: EffectRow, registry: Registry, record: Recorder) -> None:
        """One step, until it is done or given up."""
        row = owed
        while row.status == "pending":
            record.emit(
                "compensation.begun", effect=effect.id, undoes=effect.tool, tool=row.tool, attempt=row.attempts + 1
            )
            done = await self._made(row, effect, registry, record)
            made = await self._made_by(effect)
            row = msgspec.structs.replace(
                row,
                made_id=made.id if made is not None else row.made_id,
                attempts=row.attempts + 1,
                error=None if done.ok else (done.error or "it failed")[:_MOST_ERROR],
            )
            if done.ok or done.uncertain or row.attempts >= ATTEMPTS or made is None:
                status: Any = "done" if done.ok else "unknown" if done.uncertain else "failed"
                row = msgspec.structs.replace(row, status=status, finished_at=self._clock.now())
            await self._compensations.change(row)
            if row.status == "pending":
                await self._clock.sleep(BACKOFF_S * 2 ** (row.attempts - 1))
        record.emit(
            "compensation.finished",
            effect=effect.id,
            undoes=effect.tool,
            tool=row.tool,
            status=row.status,
            attempts=row.attempts,
            error=row.error,
        )
        action: AuditAction = "compensation.done" if row.status == "done" else "compensation.failed"
        await self._audit.append(
            AuditEntry(
                at=self._clock.now(),
                actor="gateway",
                owner=row.owner,
                action=action,
                subject=effect.id,
                tool=row.tool,
                arguments=masked_arguments(row.arguments or "{}", self._versions.current.tools.secrets_of(row.tool)),
                outcome=row.status if row.error is None else f"{row.status}: {row.error}",
            )
        )

    async def _made(self, row: CompensationRow, effect: EffectRow, registry: Registry, record: Recorder) -> Made:
        """One attempt: the effect of undoing, begun, found, or begun again where it certainly did not happen."""
        spec = registry.find(row.tool)
        try:
            if spec is None:
                raise CallFailed(f"There is no tool `{row.tool}` any more.")
            text = row.arguments or _filled(effect, spec)
            if not text:
                # Said once more, for its words.
                undo_arguments(spec, shown_result(effect.content or ""), msgspec.json.decode(effect.arguments))
            made = await self._made_by(effect)
            if made is None or made.status != "failed":
                return await self._courier.undo(effect, spec, msgspec.json.decode(text), registry, record)
            key, _, user = effect.owner.partition("/")
            context = ToolContext(user or None, key, None, None, record.trace_id, "")
            again = await self._courier.repeat(made, context, registry, record)
        except CallFailed as error:
            return Made(False, "", str(error))
        return again if again is not None else Made(False, "", "somebody else is at it", uncertain=True)

    async def _made_by(self, effect: EffectRow) -> EffectRow | None:
        """The effect of undoing this one, where it was begun."""
        key = undo_key(effect.id)
        rows = await self._effects.of_turn(effect.turn_id, effect.owner)
        return next((row for row in rows if row.effect_key == key), None)


def asking_to_undo(asked: Undo, principal: Principal, effects: Sequence[EffectRow], trace_id: str) -> Asking:
    """The approval that asks whether this is to be undone."""
    first = effects[0]
    return Asking(
        kind="compensation",
        principal=principal,
        session=None,
        turn_id=asked.turn,
        trace_id=trace_id,
        round=first.round,
        # No call's place.
        position=-1,
        call_id=f"call_undo_{first.id.removeprefix('eff_')}",
        tool="compensate",
        name="compensate",
        spec_hash="",
        arguments={"turn": asked.turn, "why": asked.why, "effects": [f"{each.tool} ({each.id})" for each in effects]},
        headers={},
        why=("on_failure",),
        double=False,
        route=None,
        version="",
    )


def _undoer(effect: EffectRow, registry: Registry) -> str | None:
    spec = registry.find(effect.tool)
    return spec.compensate or None if spec is not None else None


def _filled(effect: EffectRow, spec: ToolSpec | None) -> str:
    """What the undoing tool is called with, as it was known when the effect was made; else from what is stored of it."""
    if effect.undo is not None:
        return effect.undo
    if spec is None:
        return ""
    try:
        filled = undo_arguments(spec, shown_result(effect.content or ""), msgspec.json.decode(effect.arguments))
    except CallFailed:
        return ""
    return msgspec.json.encode(filled).decode()


def _nothing() -> Done:
    return Done(msgspec.json.encode({"object": "compensation", "status": "nothing", "steps": []}))
