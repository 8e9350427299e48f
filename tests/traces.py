"""Traces as stores take them."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.store.trace_records import TraceBatch, TraceRow, TraceSummary, batches_of


def traced(trace_id: str = "a" * 32, owner: str = "app", *, events: bytes = b"[]", **more: Any) -> TraceRow:
    """A turn of one second that was answered."""
    said: dict[str, Any] = {"key": owner, "status": 200, "started_at": 1.0, "finished_at": 2.0, "seconds": 1.0} | more
    return TraceRow(TraceSummary(trace_id=trace_id, owner=owner, **said), events)


def changed(row: TraceRow, **fields: Any) -> TraceRow:
    """The same with other fields in its summary."""
    return TraceRow(msgspec.structs.replace(row.summary, **fields), row.events)


def batched(*rows: TraceRow) -> list[TraceBatch]:
    """These rows, in as few batches as they fit."""
    return batches_of([row.summary for row in rows], [row.events for row in rows])
