"""Approvals as they are recorded, and what their store promises.

Knows the record. Does not know SQL, nor who may decide: that is `gateway/approvals/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from gateway.config.approvals import OnFailure
from gateway.store.audit_records import AuditEntry
from gateway.store.run_records import RunRow

ApprovalStatus = Literal["pending", "approved", "rejected", "expired", "withdrawn", "locked"]
ApprovalKind = Literal["call", "compensation"]
Decision = Literal["approved", "rejected", "withdrawn"]

# Wrong codes after which nobody can approve any more.
MOST_WRONG: Final = 3


class ApprovalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a human, or waited. Times are seconds since the epoch.

    Attributes:
        kind: what is done once it is approved: the `call`, or the `compensation` of a turn.
        key: the asker's key, `user` and `team` too.
        session: the session that the asker named, or None.
        turn_id: the turn that asked, by its first attempt; `round` and `position` say which of its calls.
        tool: by its name in the registry; `name` is what the model called it.
        spec_hash: of the tool as it was.
        arguments: JSON text, canonical, as they are executed, and `arguments_hash` their hex SHA-256.
        headers: the client's headers that the tool is handed.
        why: the gates that stopped it.
        code: what has to be typed to approve it, or None.
        wrong: how often another code was typed.
        version: of the gateway that asked.
        decided_by: who decided; `reason` is what they said.
        run_id: the run that executes it, once it is approved.
        ok: whether it went well, once it was executed; `content` is what the model sees then.
        told_at: when a model was told the outcome, or None.
        on_failure: what becomes of the turn's other effects where this is not done. `keep` where the turn itself sees to it.
    """

    id: str
    kind: ApprovalKind = "call"
    owner: str
    key: str
    user: str | None = None
    team: str | None = None
    session: str | None = None
    turn_id: str
    trace_id: str
    round: int
    position: int
    call_id: str
    tool: str
    name: str
    spec_hash: str
    arguments: str
    arguments_hash: str
    headers: dict[str, str] = {}
    why: tuple[str, ...]
    code: str | None = None
    wrong: int = 0
    route: str | None = None
    version: str
    status: ApprovalStatus = "pending"
    created_at: float
    expires_at: float
    decided_at: float | None = None
    decided_by: str | None = None
    reason: str | None = None
    run_id: str | None = None
    ok: bool | None = None
    content: str | None = None
    finished_at: float | None = None
    told_at: float | None = None
    on_failure: OnFailure = "keep"

    def status_at(self, now: float) -> ApprovalStatus:
        """The status, where time has run out too."""
        return "expired" if self.status == "pending" and self.expires_at <= now else self.status

    def settled_at(self, now: float) -> bool:
        """Whether what came of it is known: it was executed, or it will not be."""
        status = self.status_at(now)
        return self.finished_at is not None if status == "approved" else status != "pending"


class Decided(NamedTuple):
    """What became of an attempt to decide.

    Attributes:
        row: the approval as it is now; None where there is none.
        done: whether this attempt decided it.
        wrong_code: whether another code was typed.
    """

    row: ApprovalRow | None
    done: bool
    wrong_code: bool = False


class Approvals(Protocol):
    """Approvals. Every call is one transaction, and raises `StoreUnavailable` where the store cannot be reached."""

    async def ask(self, row: ApprovalRow, followers: Sequence[RunRow], entry: AuditEntry) -> ApprovalRow:
        """Record this and the runs that tell of it; or, where that call has asked before, the approval that is there."""
        ...

    async def get(self, id: str, owner: str | None) -> ApprovalRow | None:  # noqa: A002 - the contract's word
        """One approval."""
        ...

    async def of_thread(self, owner: str, ids: Sequence[str], session: str | None) -> Sequence[ApprovalRow]:
        """The owner's approvals of these ids, and of this session, the oldest first."""
        ...

    async def of_call(self, owner: str, tool: str, arguments_hash: str) -> Sequence[ApprovalRow]:
        """The owner's approvals of calls of this tool with these arguments, the newest first."""
        ...

    async def newest(
        self, owner: str | None, *, status: ApprovalStatus | None, limit: int, after: str | None, now: float
    ) -> Sequence[ApprovalRow]:
        """The newest first, at most `limit`, older than the approval `after`."""
        ...

    async def decide(
        self,
        id: str,  # noqa: A002 - the contract's word
        decision: Decision,
        *,
        by: str,
        reason: str | None,
        code: str | None,
        now: float,
        run: RunRow | None,
        undo: RunRow | None,
        entry: AuditEntry,
    ) -> Decided:
        """Decide a pending one, once, whoever races; with it the run that executes it, or the one that undoes what was done
        before it, and the word in the audit log.

        A code that is wrong is counted, and locks it at the third.
        """
        ...

    async def finish(
        self,
        id: str,  # noqa: A002 - the contract's word
        *,
        ok: bool,
        content: str,
        now: float,
        undo: RunRow | None,
        entry: AuditEntry,
    ) -> bool:
        """Commit what came of an approved one, and wake the run that waits for it; False where that was known."""
        ...

    async def told(self, ids: Sequence[str], *, now: float) -> None:
        """Note that a model was told of these."""
        ...

    async def wake(self, turn_id: str, *, now: float) -> None:
        """Let the run of a turn go on that waits for a time."""
        ...

    async def prune(self, *, before: float) -> int:
        """Forget those that were decided, or expired, before then; how many went."""
        ...


def values_of(row: ApprovalRow) -> dict[str, Any]:
    """The columns of a row."""
    values = {name: getattr(row, name) for name in ApprovalRow.__struct_fields__}
    return values | {name: msgspec.json.encode(values[name]).decode() for name in ("headers", "why")}
