"""An approval as the API and the command show it.

Pure. Whether the code is shown is decided before.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.store.approval_records import ApprovalRow, ApprovalStatus


def view(row: ApprovalRow, status: ApprovalStatus, code: str | None) -> dict[str, Any]:
    """What is shown of an approval, with a code only where there is one to be shown."""
    content = None if row.content is None else msgspec.json.decode(row.content)
    shown: dict[str, Any] = {
        "id": row.id,
        "object": "approval",
        "kind": row.kind,
        "status": status,
        "tool": row.name,
        "arguments": msgspec.json.decode(row.arguments),
        "why": list(row.why),
        "needs_code": row.code is not None,
        "owner": row.owner,
        "session": row.session,
        "turn_id": row.turn_id,
        "trace_id": row.trace_id,
        "call_id": row.call_id,
        "route": row.route,
        "version": row.version,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "decided_at": row.decided_at,
        "decided_by": row.decided_by,
        "reason": row.reason,
        "run_id": row.run_id,
        "outcome": None if row.finished_at is None else {"ok": row.ok, "content": content, "at": row.finished_at},
    }
    if code is not None:
        shown["code"] = code
    return shown
