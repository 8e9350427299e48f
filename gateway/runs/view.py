"""Runs as they are shown, by the API and by commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.runs.followers import shown_id
from gateway.store.run_records import RunRow


def summary(row: RunRow) -> dict[str, Any]:
    """A run in a list."""
    return {
        "id": row.id,
        "object": "run",
        "type": row.kind,
        "status": row.status,
        "dead": row.dead,
        "response_id": shown_id(row) if row.kind == "response" else None,
        "trace_id": row.trace_id,
        "parent_id": row.parent_id,
        "owner": row.owner,
        "priority": row.priority,
        "deliveries": row.deliveries,
        "created_at": _time(row.created_at),
        "due_at": _time(row.due_at),
        "started_at": _time(row.started_at),
        "finished_at": _time(row.finished_at),
        "progress": row.progress,
        "error": row.error,
    }


def view(row: RunRow) -> dict[str, Any]:
    """A run with what came of it."""
    answer = None if row.answer is None else msgspec.json.decode(row.answer)
    return {**summary(row), "response": answer, "routed": row.meta}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
