"""Approvals in a turn: which of its calls wait, how long, and what its model is told of those of earlier turns.

Knows turns and the desk. Which gates there are is `gateway/approvals/`'s; what was approved is executed as a run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.approvals.desk import Asking, Desk
from gateway.approvals.gates import gates_of
from gateway.approvals.words import (
    not_there,
    pending_result,
    refused_again,
    settled_result,
    why_not,
    withdrawn,
)
from gateway.chat.blocks import Message, ToolCall, ToolResult
from gateway.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.store.approval_records import ApprovalRow
from gateway.tools.errand import Gate
from gateway.tools.guards.withdraw import WITHDRAW
from gateway.tools.outcome import Done
from gateway.tools.spec import ToolSpec
from gateway.turn.context import Turn
from gateway.turn.progress import Progress
from gateway.turn.state import State
from gateway.turn.waiting import BEING_DONE, PREFIX, TurnApprovals, ids_in, is_told, told_messages

# What is approved has its tool's time and this to be executed: a queue, and a worker, stand in between.
_QUEUE_S: Final = 15.0
# Of a turn's time, what waiting leaves for its answer.
_ANSWER_S: Final = 5.0
_ANSWER_SHARE: Final = 0.2

AfterDecision = Callable[[Turn, Progress, ApprovalRow], Awaitable[str | None]]


class Approving:
    """Stops the calls that a human has to approve. Holds no state of any turn.

    Args:
        desk: where approvals are asked for and decided.
        clock: for deadlines.
    """

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock

    def carried(self, turn: Turn) -> bool:
        """Whether there may be approvals that its conversation carries."""
        tools, request = turn.snapshot.tools, turn.request
        if not tools.specs or request.n > 1:
            return False
        return bool(turn.goes_on or request.approvals or (tools.gated and turn.session is not None))

    async def begin(self, turn: Turn, progress: Progress, after: AfterDecision) -> None:
        """Put before the model what came of the approvals that its conversation carries, where it is `carried`.

        Args:
            turn: whose.
            progress: where it is put.
            after: says what became of what was done before a call that was not made.

        Raises:
            StoreUnavailable: there are some, and they cannot be read.
        """
        tools = turn.snapshot.tools
        messages = turn.messages
        ids = (*ids_in(messages), *turn.request.approvals)
        session = turn.session if tools.gated else None
        if not ids and session is None:
            return
        rows = await self._desk.of_thread(turn.principal.owner, ids, session)
        if not rows:
            return
        approvals = _of(turn)
        tells = []
        for each in rows:
            row = each
            approvals.known[row.id] = row
            status = self._desk.status_of(row)
            if status == "pending" or is_told(row, messages):
                continue
            if status == "approved" and row.finished_at is None:
                left_s = min(self._room_s(turn), _QUEUE_S)
                row = await self._desk.awaited(row, self._clock.monotonic(), outcome_s=left_s)
                approvals.known[row.id] = row
            tells.append((row, self._desk.status_of(row)))
            if row.settled_at(self._clock.now()):
                approvals.told.append(row.id)
        if tells:
            settled = [row for row, _ in tells if row.settled_at(self._clock.now())]
            notes = {row.id: note for row in settled if (note := await after(turn, progress, row)) is not None}
            told = told_messages(tells, notes)
            _tell(turn, [row for row, _ in tells], told)
            progress.messages = (*progress.messages, *told)
            progress.used = True
        if any(self._desk.status_of(row) == "pending" for row in approvals.known.values()):
            turn.may_withdraw(WITHDRAW)

    async def end(self, turn: Turn) -> None:
        """Note what the model was told. Failing is no harm: it is told once more."""
        if turn.approvals is None or not turn.approvals.told:
            return
        try:
            await self._desk.told(turn.approvals.told)
        except StoreUnavailable:
            return

    def gate(self, turn: Turn, positions: Mapping[str, int]) -> Gate | None:
        """What every call of the turn's round has to pass; None where no tool has a gate.

        Args:
            turn: whose.
            positions: of the calls in their answer, by id.
        """
        if not turn.snapshot.tools.gated and turn.approvals is None:
            return None
        number = turn.machine.rounds
        if turn.approvals is not None:
            turn.approvals.until = None

        async def gate(
            call: ToolCall, spec: ToolSpec, arguments: dict[str, Any], confidence: float | None
        ) -> Done | None:
            if spec is WITHDRAW:
                return await self._withdraw(turn, str(arguments["id"]))
            if not spec.gated:
                return None
            config = turn.snapshot.config.approvals
            why = gates_of(
                needs_confirmation=spec.needs_confirmation,
                confidence_gate=spec.confidence_gate,
                deletes=spec.deletes,
                confidence=confidence,
                threshold=config.confidence_threshold,
            )
            if not why:
                return None
            asking = Asking(
                principal=turn.principal,
                session=turn.session,
                turn_id=turn.turn_id,
                trace_id=turn.record.trace_id,
                round=number,
                position=positions[call.id],
                call_id=call.id,
                tool=spec.name,
                name=call.name,
                spec_hash=spec.spec_hash,
                arguments=arguments,
                headers={name: turn.headers[name] for name in spec.forward_headers if name in turn.headers},
                why=why,
                double=spec.deletes,
                route=turn.decision.route,
                version=turn.decision.version,
                # A background run goes on, and sees to it itself.
                on_failure="keep" if _is_run(turn) or not turn.snapshot.tools.compensated else turn.on_failure,
            )
            return await self._stop(turn, asking, spec, confidence)

        return gate

    async def _stop(self, turn: Turn, asking: Asking, spec: ToolSpec, confidence: float | None) -> Done:
        before = await self._before(turn, asking)
        if before is not None and self._desk.status_of(before) in ("rejected", "locked"):
            turn.record.emit(
                "guard.decided", name=asking.name, call_id=asking.call_id, guard="approval", decision="refused"
            )
            content = refused_again(before)
            return Done(False, content, f"the same call was rejected before ({before.id})")
        row = before or await self._desk.ask(asking)
        approvals = _of(turn)
        if before is None:
            turn.record.emit(
                "approval.requested",
                approval=row.id,
                name=asking.name,
                call_id=asking.call_id,
                arguments=asking.arguments,
                why=list(asking.why),
                confidence=confidence,
                expires_at=row.expires_at,
            )
        approvals.waiting[row.id] = row
        approvals.known[row.id] = row
        if turn.machine.state is State.EXECUTING:
            turn.step(State.WAITING_APPROVAL, f"`{asking.name}` waits for {row.id}")
        row = await self._waited(turn, row, spec)
        status = self._desk.status_of(row)
        approvals.known[row.id] = row
        if not row.settled_at(self._clock.now()):
            approvals.waiting[row.id] = row
            return Done(False, pending_result(row), f"it waits for approval: {row.id}", approval=row.id)
        del approvals.waiting[row.id]
        approvals.told.append(row.id)
        turn.record.emit("approval.decided", approval=row.id, decision=status, by=row.decided_by, reason=row.reason)
        if status != "approved":
            return Done(False, settled_result(row, status), why_not(row, status))
        if turn.machine.state is State.WAITING_APPROVAL:
            turn.step(State.EXECUTING, f"{row.id} was approved")
        error = None if row.ok else "it was approved, and failed"
        return Done(bool(row.ok), settled_result(row, status), error, replayed=True)

    async def _before(self, turn: Turn, asking: Asking) -> ApprovalRow | None:
        """An approval of the same call in this conversation: one that was refused, or one of an earlier turn that waits."""
        place = (asking.turn_id, asking.round, asking.position)
        for row in await self._desk.of_call(turn.principal.owner, asking.tool, asking.arguments):
            if (row.turn_id, row.round, row.position) == place:
                continue
            here = (
                row.turn_id == asking.turn_id
                or (turn.approvals is not None and row.id in turn.approvals.known)
                or (row.session is not None and row.session == turn.session)
            )
            status = self._desk.status_of(row)
            if here and (status in ("rejected", "locked") or (status == "pending" and row.turn_id != asking.turn_id)):
                return row
        return None

    async def _waited(self, turn: Turn, row: ApprovalRow, spec: ToolSpec) -> ApprovalRow:
        """The approval after as long as a client waits for it. A background run is laid aside instead."""
        now = self._clock.monotonic()
        if _is_run(turn):
            return row
        approvals = _of(turn)
        if approvals.until is None:
            approvals.until = now + min(turn.snapshot.config.approvals.wait_s, self._room_s(turn))
        outcome_s = min(spec.timeout_s + _QUEUE_S, self._room_s(turn))
        return await self._desk.awaited(row, approvals.until, outcome_s=outcome_s)

    def _room_s(self, turn: Turn) -> float:
        """Seconds that the turn may wait and still answer."""
        kept = min(_ANSWER_S, turn.limit_s * _ANSWER_SHARE)
        return max(0.0, turn.deadline - self._clock.monotonic() - kept)

    async def _withdraw(self, turn: Turn, approval_id: str) -> Done:
        known = turn.approvals.known if turn.approvals is not None else {}
        if not approval_id.startswith(PREFIX):
            approval_id = f"{PREFIX}{approval_id}"
        row = known.get(approval_id)
        if row is None:
            return Done(False, not_there(approval_id), "there is no such approval in this conversation")
        if await self._desk.withdraw(row, turn.principal.owner):
            _of(turn).told.append(row.id)
            turn.record.emit("approval.decided", approval=row.id, decision="withdrawn", by=turn.principal.owner)
            return Done(True, withdrawn(row))
        row = await self._desk.get(row.id, turn.principal.owner)
        status = self._desk.status_of(row)
        content = settled_result(row, status) if row.settled_at(self._clock.now()) else pending_result(row)
        return Done(False, content, f"it is {status} already")


def _is_run(turn: Turn) -> bool:
    return turn.joinable is not None and turn.joinable.asked.durable


def _tell(turn: Turn, rows: Sequence[ApprovalRow], told: Sequence[Message]) -> None:
    """Leave in the trace what the model is told of approvals of earlier turns."""
    for row, call, result in zip(rows, told[0].tool_calls, told[1:], strict=True):
        content = next(block.text for block in result.blocks if isinstance(block, ToolResult))
        turn.record.emit(
            "approval.told",
            approval=row.id,
            name=call.name,
            call_id=call.id,
            arguments=msgspec.json.decode(row.arguments),
            # Nothing by now of what is being done.
            ok=None if call.id.endswith(BEING_DONE) else bool(row.ok),
            content=content,
        )


def _of(turn: Turn) -> TurnApprovals:
    if turn.approvals is None:
        turn.approvals = TurnApprovals()
    return turn.approvals
