"""The desk: where calls ask for approval, and where they are decided.

Knows what is bound to an approval, what is written with it, and what deciding comes to. Who may decide is `rules.py`'s. Does not
know turns, tools, SQL or HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.approvals.gates import canonical, new_approval_id, new_code
from gateway.approvals.masking import masked_arguments
from gateway.clock import Clock
from gateway.config.approvals import ApprovalsConfig, OnFailure
from gateway.config.runs import WebhookConfig
from gateway.errors import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalLocked,
    InvalidRequest,
    NotFound,
)
from gateway.saga.owed import expired_place, undo_run
from gateway.security.principal import Principal
from gateway.store.approval_records import MOST_WRONG, ApprovalKind, ApprovalRow, Approvals, ApprovalStatus, Decision
from gateway.store.audit_records import AuditEntry
from gateway.store.run_records import RunRow

# The kinds of the runs that execute what was approved, and of those that tell webhooks.
EXECUTES: Final[Mapping[ApprovalKind, str]] = {"call": "approval", "compensation": "compensation"}
WEBHOOK: Final = "webhook"
_EVENT: Final = "approval.requested"
# Behind the time at which an approval expires.
_LATER_S: Final = 1.0
_LOOK_FIRST_S: Final = 0.1
_LOOK_MOST_S: Final = 1.0


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A call that asks for approval. The attributes are `ApprovalRow`'s; `double`: whether a code has to be typed."""

    kind: ApprovalKind = "call"
    principal: Principal
    session: str | None
    turn_id: str
    trace_id: str
    round: int
    position: int
    call_id: str
    tool: str
    name: str
    spec_hash: str
    arguments: Mapping[str, Any]
    headers: Mapping[str, str]
    why: tuple[str, ...]
    double: bool
    route: str | None
    version: str
    on_failure: OnFailure = "keep"


class Desk:
    """Approvals of everybody.

    Args:
        approvals: their store.
        clock: for times and waits.
        config: the settings as they are now.
        webhooks: who can be told, by name, as they are now.
        secrets_of: a tool's sensitive parameters, by its name: the audit log holds none of them.
    """

    def __init__(
        self,
        approvals: Approvals,
        clock: Clock,
        config: Callable[[], ApprovalsConfig],
        webhooks: Callable[[], Mapping[str, WebhookConfig]],
        secrets_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._secrets_of = secrets_of
        self._approvals = approvals
        self._clock = clock
        self._config = config
        self._webhooks = webhooks

    @property
    def config(self) -> ApprovalsConfig:
        """The settings as they are now."""
        return self._config()

    async def ask(self, asking: Asking) -> ApprovalRow:
        """Ask for approval, and tell who is to be told; the approval that is there where this call has asked before.

        Raises:
            StoreUnavailable: it could not be written down.
        """
        now = self._clock.now()
        text, digest = canonical(asking.arguments)
        row = ApprovalRow(
            id=new_approval_id(),
            kind=asking.kind,
            owner=asking.principal.owner,
            key=asking.principal.key_id,
            user=asking.principal.user,
            team=asking.principal.team,
            session=asking.session,
            turn_id=asking.turn_id,
            trace_id=asking.trace_id,
            round=asking.round,
            position=asking.position,
            call_id=asking.call_id,
            tool=asking.tool,
            name=asking.name,
            spec_hash=asking.spec_hash,
            arguments=text,
            arguments_hash=digest,
            headers=dict(asking.headers),
            why=asking.why,
            code=new_code() if asking.double else None,
            route=asking.route,
            version=asking.version,
            on_failure=asking.on_failure,
            created_at=now,
            expires_at=now + self._config().expire_s,
        )
        entry = self._entry(row, "approval.requested", asking.principal.owner, decision="pending")
        following = self._deliveries(row, now)
        if row.kind == "call" and row.on_failure != "keep":
            # Nobody decides what expires: what the turn has done before is seen to then.
            why = f"`{row.name}` was not approved in time"
            due_at = row.expires_at + _LATER_S
            place = expired_place(row.id)
            following.append(
                undo_run(row.turn_id, row.owner, place, why, row.on_failure, now, due_at=due_at, expired=row.id)
            )
        return await self._approvals.ask(row, following, entry)

    async def get(self, id: str, owner: str | None) -> ApprovalRow:  # noqa: A002 - the contract's word
        """One approval.

        Raises:
            NotFound: there is none of this owner's.
        """
        row = await self._approvals.get(id, owner)
        if row is None:
            raise NotFound(f"There is no approval {id!r}.")
        return row

    async def newest(
        self, owner: str | None, *, status: ApprovalStatus | None, limit: int, after: str | None
    ) -> Sequence[ApprovalRow]:
        """The newest first."""
        return await self._approvals.newest(owner, status=status, limit=limit, after=after, now=self._clock.now())

    async def of_thread(self, owner: str, ids: Sequence[str], session: str | None) -> Sequence[ApprovalRow]:
        """The owner's approvals that a conversation carries: by ids in its history, by its session."""
        return await self._approvals.of_thread(owner, ids, session) if ids or session is not None else ()

    async def of_call(self, owner: str, tool: str, arguments: Mapping[str, Any]) -> Sequence[ApprovalRow]:
        """The owner's approvals of calls like this one, the newest first."""
        return await self._approvals.of_call(owner, tool, canonical(arguments)[1])

    async def decide(
        self,
        row: ApprovalRow,
        decision: Literal["approved", "rejected"],
        *,
        by: str,
        reason: str | None,
        code: str | None = None,
    ) -> ApprovalRow:
        """Decide, once, whoever races. What was approved is executed as a run that is recorded with the decision.

        Args:
            row: the approval, as it was seen.
            decision: what.
            by: who decides, who must be allowed to.
            reason: what they say.
            code: what they typed.

        Raises:
            NotFound: it is gone.
            InvalidRequest: the code is missing or wrong.
            ApprovalDecided: somebody has decided it.
            ApprovalExpired: it is too late.
            ApprovalLocked: the wrong code was typed too often.
            StoreUnavailable: it could not be decided, and was not.
        """
        now = self._clock.now()
        if (
            decision == "approved"
            and row.code is not None
            and not (code or "").strip()
            and row.status_at(now) == "pending"
        ):
            raise InvalidRequest("This deletes: `code` is needed, as approvers are shown it.", param="code")
        action: Literal["approval.approved", "approval.rejected"] = (
            "approval.approved" if decision == "approved" else "approval.rejected"
        )
        done = await self._approvals.decide(
            row.id,
            decision,
            by=by,
            reason=reason,
            code=code,
            now=now,
            run=self._run(row, now) if decision == "approved" else None,
            undo=_undo(row, "was not approved", now),
            entry=self._entry(row, action, by, decision=decision, outcome=reason),
        )
        if done.row is None:
            raise NotFound(f"There is no approval {row.id!r}.")
        if done.done:
            return done.row
        if done.wrong_code and done.row.status == "pending":
            left = MOST_WRONG - done.row.wrong
            raise InvalidRequest(f"The code is wrong; {left} more will lock this approval.", param="code")
        self._refuse(done.row, now)
        return done.row

    async def withdraw(self, row: ApprovalRow, by: str) -> bool:
        """Withdraw what waits, for whoever asked; False where it does not wait any more."""
        done = await self._approvals.decide(
            row.id,
            "withdrawn",
            by=by,
            reason="the user has changed their mind",
            code=None,
            now=self._clock.now(),
            run=None,
            undo=_undo(row, "was withdrawn", self._clock.now()),
            entry=self._entry(row, "approval.withdrawn", by, decision="withdrawn"),
        )
        return done.done

    async def finish(self, row: ApprovalRow, *, ok: bool, content: str, outcome: str, trace_id: str) -> bool:
        """Write down what came of an approved call; False where that was known."""
        entry = self._entry(row, "approval.executed", "gateway", decision="approved", outcome=f"{outcome} ({trace_id})")
        now = self._clock.now()
        undo = None if ok else _undo(row, "failed", now)
        return await self._approvals.finish(row.id, ok=ok, content=content, now=now, undo=undo, entry=entry)

    async def told(self, ids: Sequence[str]) -> None:
        """Note that a model was told of these."""
        if ids:
            await self._approvals.told(ids, now=self._clock.now())

    async def look_again(self, ids: Sequence[str]) -> None:
        """Wake a run that was laid aside for approvals, one of which was settled at that very moment."""
        now = self._clock.now()
        for each in ids:
            found = await self._approvals.get(each, None)
            if found is not None and found.settled_at(now):
                await self._approvals.wake(found.turn_id, now=now)
                return

    async def awaited(self, row: ApprovalRow, until: float, *, outcome_s: float) -> ApprovalRow:
        """The approval once it is settled, or as it is at `until` (monotonic seconds); what was approved has `outcome_s` more.

        Raises:
            StoreUnavailable: it cannot be read any more.
        """
        wait_s = _LOOK_FIRST_S
        approved = row.status == "approved"
        if approved:
            until = max(until, self._clock.monotonic() + outcome_s)
        while not row.settled_at(self._clock.now()):
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            await self._clock.sleep(min(wait_s, left))
            wait_s = min(_LOOK_MOST_S, wait_s * 1.5)
            found = await self._approvals.get(row.id, row.owner)
            if found is None:
                break
            row = found
            if row.status == "approved" and not approved:
                approved, wait_s = True, _LOOK_FIRST_S
                until = max(until, self._clock.monotonic() + outcome_s)
        return row

    def status_of(self, row: ApprovalRow) -> ApprovalStatus:
        """The status as it is now."""
        return row.status_at(self._clock.now())

    def _refuse(self, row: ApprovalRow, now: float) -> None:
        status = row.status_at(now)
        match status:
            case "expired":
                raise ApprovalExpired(f"The approval {row.id} has expired; it has to be asked for again.")
            case "locked":
                raise ApprovalLocked(f"The approval {row.id} is locked: the wrong code was typed {MOST_WRONG} times.")
        raise ApprovalDecided(
            f"The approval {row.id} is {status} already{f', by {row.decided_by}' if row.decided_by else ''}."
        )

    def _run(self, row: ApprovalRow, now: float) -> RunRow:
        # The same approval is the same run, whoever writes it down.
        trace_id = hashlib.sha256(f"{row.id}\0execute".encode()).hexdigest()[:32]
        asked = {} if row.kind == "call" else msgspec.json.decode(row.arguments)
        return RunRow(
            id=f"run_{trace_id}",
            kind=EXECUTES[row.kind],
            trace_id=trace_id,
            owner=row.owner,
            parent_id=f"run_{row.turn_id}",
            priority="high",
            # Whoever looks after runs queues it within a second, also where the queue cannot be reached now.
            waits_for="time",
            body=msgspec.json.encode({**asked, "approval": row.id}),
            created_at=now,
            due_at=now,
        )

    def _deliveries(self, row: ApprovalRow, now: float) -> list[RunRow]:
        named = set(self._config().webhooks)
        found = []
        for name, webhook in self._webhooks().items():
            if name not in named and _EVENT not in webhook.events:
                continue
            trace_id = hashlib.sha256(f"{row.id}\0{name}\0{_EVENT}".encode()).hexdigest()[:32]
            content = {
                "id": f"evt_{trace_id}",
                "object": "event",
                "type": _EVENT,
                "created_at": int(now),
                "data": {"id": row.id, "tool": row.name, "expires_at": row.expires_at},
            }
            found.append(
                RunRow(
                    id=f"run_{trace_id}",
                    kind=WEBHOOK,
                    trace_id=trace_id,
                    owner=row.owner,
                    parent_id=row.id,
                    waits_for="time",
                    body=msgspec.json.encode({"webhook": name, "content": content}),
                    created_at=now,
                    due_at=now,
                )
            )
        return found

    def _entry(
        self,
        row: ApprovalRow,
        action: Literal[
            "approval.requested", "approval.approved", "approval.rejected", "approval.withdrawn", "approval.executed"
        ],
        actor: str,
        *,
        decision: Decision | Literal["pending"],
        outcome: str | None = None,
    ) -> AuditEntry:
        return AuditEntry(
            at=self._clock.now(),
            actor=actor,
            owner=row.owner,
            action=action,
            subject=row.id,
            tool=row.tool,
            arguments=masked_arguments(row.arguments, self._secrets_of(row.tool)),
            arguments_hash=row.arguments_hash,
            decision=decision,
            version=row.version,
            outcome=outcome,
        )


def _undo(row: ApprovalRow, why: str, now: float) -> RunRow | None:
    """The run that undoes what the turn had done before a call that was not; None where the turn itself sees to it."""
    if row.kind != "call" or row.on_failure == "keep":
        return None
    return undo_run(row.turn_id, row.owner, row.id, f"`{row.name}` {why}", row.on_failure, now)
