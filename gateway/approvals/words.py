"""What clients and models are told of calls that wait, and of what became of them.

Pure. Results are in the form that every tool's result has (`{"ok", "result" | "error"}`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.store.approval_records import ApprovalRow, ApprovalStatus

_MOST_ARGUMENTS: Final = 300

_encode = msgspec.json.Encoder().encode


def pending_message(rows: Sequence[ApprovalRow]) -> str:
    """The answer of a turn that ends while calls wait: what waits, under which id, and how it is decided."""
    lines = [
        "Approval is needed before this is done:" if len(rows) == 1 else "Approval is needed before these are done:"
    ]
    lines += [f"- {row.id}: {shown_call(row)}{_state(row)}" for row in rows]
    first = rows[0].id
    code = " --code CODE" if any(row.code for row in rows) else ""
    extra = " A deletion needs the code that approvers are shown." if code else ""
    lines.append(
        f"Nothing of it has happened yet. An approver decides with `hermes-gateway approvals approve {first}{code}` (or `reject "
        f"{first} --reason TEXT`), or with POST /v1/approvals/{first}/approve.{extra}"
    )
    lines.append(
        f"It can be decided until {_time(min(row.expires_at for row in rows))}. "
        'Then say "go on" (“继续”) to get the result; say so if it should be withdrawn.'
    )
    return "\n".join(lines)


def shown_call(row: ApprovalRow) -> str:
    """A call as people read it."""
    arguments = row.arguments
    if len(arguments) > _MOST_ARGUMENTS:
        arguments = f"{arguments[: _MOST_ARGUMENTS - 1]}…"
    return f"`{row.name}` {arguments}"


def pending_result(row: ApprovalRow) -> str:
    """The result of a call that still waits."""
    if row.status == "approved":
        said = f"It was approved ({row.id}) and is being done; its result is not there yet."
    else:
        said = f"It was not done: it waits for a human's approval, {row.id}."
    return _failed(f"{said} Do not call it again, and do not say that it was done.", approval=row.id)


def settled_result(row: ApprovalRow, status: ApprovalStatus) -> str:
    """The result of a call whose approval is settled."""
    if status == "approved":
        return row.content or _failed("It was approved, and what came of it is not known.", approval=row.id)
    return _failed(
        f"{why_not(row, status)} It was not done. Answer without it, and do not call it again.", approval=row.id
    )


def why_not(row: ApprovalRow, status: ApprovalStatus) -> str:
    """Why a call was not made, in a sentence."""
    match status:
        case "rejected":
            return f"An approver rejected it ({row.id}){_because(row.reason)}"
        case "withdrawn":
            return f"It was withdrawn ({row.id}){_because(row.reason)}"
        case "locked":
            return f"Its approval was locked: the wrong code was typed too often ({row.id})."
        case _:
            return f"Nobody approved it in time ({row.id})."


def refused_again(row: ApprovalRow) -> str:
    """The result of a call that was rejected before, and is asked for again."""
    return _failed(
        f"The same call was rejected before ({row.id}){_because(row.reason)} It is not asked for again. Answer without it.",
        approval=row.id,
    )


def not_there(approval_id: str) -> str:
    """The result of withdrawing what cannot be."""
    return _failed(f"Nothing of the id {approval_id[:40]!r} waits for approval in this conversation.")


def withdrawn(row: ApprovalRow) -> str:
    """The result of withdrawing."""
    return _encode({"ok": True, "result": f"{row.id} was withdrawn: {shown_call(row)} will not be done."}).decode()


def _because(reason: str | None) -> str:
    return f": {reason.strip().rstrip('.')}." if reason and reason.strip() else "."


def _failed(text: str, **more: Any) -> str:
    return _encode({"ok": False, "error": text, **more}).decode()


def _state(row: ApprovalRow) -> str:
    return " (approved, being done)" if row.status == "approved" else ""


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
