"""An approved call as a run: executed once, as it was approved, whoever approved it and wherever.

Knows what has to be the same still, and where the outcome goes. The model is not asked; the ledger knows the call by its place in
its turn, so that a run that is begun again finds what it has done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.approvals.desk import EXECUTES, Desk
from gateway.approvals.words import why_not
from gateway.chat.blocks import ToolCall
from gateway.clock import Clock
from gateway.config.versions import Versioned
from gateway.errors import NotFound
from gateway.observe.events import Recorder, Subscriber
from gateway.runs.run import Attempt, Done
from gateway.store.approval_records import ApprovalRow
from gateway.store.run_records import RunRow
from gateway.tools.courier import Courier, Outcome
from gateway.tools.ledger import EffectPlace
from gateway.tools.result import failure
from gateway.tools.spec import ToolContext
from gateway.turn.snapshot import Snapshot

KIND: Final = EXECUTES["call"]
_MOST_BYTES: Final = 8192


class _Body(msgspec.Struct):
    approval: str


class ApprovedHandler:
    """Executes approved calls.

    Args:
        desk: where they were approved.
        courier: runs tools.
        versions: where the active version is.
        subscribers: get the finished trace.
        clock: time.
    """

    def __init__(
        self,
        desk: Desk,
        courier: Courier,
        versions: Versioned[Snapshot],
        subscribers: Sequence[Subscriber],
        clock: Clock,
    ) -> None:
        self._desk = desk
        self._courier = courier
        self._versions = versions
        self._subscribers = subscribers
        self._clock = clock

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:  # noqa: ARG002 - the seam's
        """Make the call, or find what came of it."""
        asked = msgspec.json.decode(run.body, type=_Body)
        try:
            row = await self._desk.get(asked.approval, run.owner)
        except NotFound:
            return Done(b"{}")
        if row.status != "approved":
            return Done(msgspec.json.encode({"approval": row.id, "ok": False, "error": why_not(row, row.status)}))
        if row.finished_at is not None:
            return _done(row, bool(row.ok), row.content or "")
        record = Recorder(run.trace_id, row.owner, self._clock)
        record.emit("approval.decided", approval=row.id, decision="approved", by=row.decided_by, reason=row.reason)
        started = self._clock.monotonic()
        lease = self._versions.acquire()
        try:
            outcome = await self._made(row, lease.value, record)
            seconds = self._clock.monotonic() - started
            record.emit(
                "approval.executed",
                approval=row.id,
                name=row.name,
                call_id=row.call_id,
                ok=outcome.ok,
                status=200,
                key=row.key,
                user=row.user,
                version=str(lease.value.version),
                seconds=seconds,
                turn=row.turn_id,
            )
        finally:
            self._versions.release(lease)
            if record.events[-1].type == "approval.executed":
                for subscriber in self._subscribers:
                    subscriber.finished(record)
        said = "done" if outcome.ok else f"failed: {outcome.error}"
        await self._desk.finish(row, ok=outcome.ok, content=outcome.content, outcome=said, trace_id=run.trace_id)
        return _done(row, outcome.ok, outcome.content)

    async def _made(self, row: ApprovalRow, snapshot: Snapshot, record: Recorder) -> Outcome:
        registry = snapshot.tools
        spec = registry.specs.get(row.tool)
        if spec is None or spec.spec_hash != row.spec_hash:
            gone = "is not there any more" if spec is None else "is not the one any more that was approved"
            text = (
                f"It was approved ({row.id}) and not done: the tool `{row.tool}` {gone}. It has to be asked for again."
            )
            return Outcome(row.call_id, row.name, ok=False, content=failure(text, _MOST_BYTES), error="tool_changed")
        call = ToolCall(row.call_id, row.name, row.arguments)

        def context_for(_: ToolCall) -> ToolContext:
            key = f"{row.turn_id}.{row.round}.{row.position}"
            return ToolContext(row.user, row.key, row.team, row.session, record.trace_id, key, headers=row.headers)

        def place_for(_: ToolCall) -> EffectPlace:
            return EffectPlace(row.owner, row.turn_id, record.trace_id, row.round, row.position)

        [outcome] = await self._courier.execute(
            [call],
            {row.name: spec},
            context_for,
            record,
            parallel=False,
            registry=registry,
            place_for=place_for,
            hooked=True,
        )
        return outcome


def _done(row: ApprovalRow, ok: bool, content: str) -> Done:
    return Done(
        msgspec.json.encode({"approval": row.id, "ok": ok, "content": msgspec.Raw((content or "null").encode())})
    )
