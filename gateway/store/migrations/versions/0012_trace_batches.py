"""Traces, many in a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Of a batch: traces, bytes of their events, seconds between their beginnings.
_TRACES = 100
_BYTES = 512_000
_SECONDS = 60.0
# Seconds between an id and its trace's beginning, within which it is counted to its batch's ids; and the parts of one in which its
# first digits count them.
_FRESH_S = 1.0
_PARTS = 1 << 20
_DIGITS = 13

# In the order in which a summary is written.
_SUMMARY = (
    "trace_id",
    "owner",
    "started_at",
    "finished_at",
    "key",
    "status",
    "seconds",
    "user",
    "response_id",
    "route",
    "model",
    "backend",
    "strategy",
    "prompt_tokens",
    "completion_tokens",
    "version",
)


_EVENTS = sa.text("SELECT trace_id, events FROM traces WHERE trace_id IN :ids")
_EVENTS = _EVENTS.bindparams(sa.bindparam("ids", expanding=True))
_GONE = sa.text("DELETE FROM traces WHERE trace_id IN :ids").bindparams(sa.bindparam("ids", expanding=True))


def upgrade() -> None:
    """Make the tables, and move every trace into them."""
    op.create_table(
        "trace_batches",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("first_id", sa.Text, nullable=False),
        sa.Column("last_id", sa.Text, nullable=False),
        sa.Column("oldest_at", sa.Float, nullable=False),
        sa.Column("newest_at", sa.Float, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("kept", sa.LargeBinary, nullable=False),
        sa.Column("events", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trace_batches"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_trace_batches_last_id_first_id", "trace_batches", ["last_id", "first_id"])
    op.create_index("ix_trace_batches_newest_at", "trace_batches", ["newest_at"])
    op.create_table(
        "trace_owners",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("newest_at", sa.Float, nullable=False),
        sa.Column("batch_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("owner", "newest_at", "batch_id", name="pk_trace_owners"),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["trace_batches.id"], name="fk_trace_owners_batch_id_trace_batches", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_trace_owners_batch_id", "trace_owners", ["batch_id"])
    op.create_table(
        "trace_names",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("batch_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("name", "batch_id", name="pk_trace_names"),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["trace_batches.id"], name="fk_trace_names_batch_id_trace_batches", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_trace_names_batch_id", "trace_names", ["batch_id"])
    connection = op.get_bind()
    # What is not needed any more makes room for what comes: a file of gigabytes does not grow to twice its size.
    op.drop_index("ix_traces_response_id", "traces")
    op.drop_index("ix_traces_owner_started_at", "traces")
    made = 0
    for made, rows in enumerate(_batches(connection), start=1):
        _add(connection, made, rows)
        connection.execute(_GONE, {"ids": [row.trace_id for row in rows]})
    if made and connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT setval('trace_batches_id_seq', :made)"), {"made": made})
    op.drop_table("traces")


def _batches(connection: sa.Connection) -> Iterator[list[Any]]:
    """The traces, the oldest first, in lists that are a batch each."""
    batch: list[Any] = []
    size = 0
    for row in _rows(connection):
        full = len(batch) == _TRACES or size + row.size > _BYTES
        if batch and (full or row.started_at - batch[0].started_at > _SECONDS):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row.size
    if batch:
        yield batch


def _rows(connection: sa.Connection) -> Iterator[Any]:
    """The traces without their events, of which a hundred may be gigabytes."""
    columns = ", ".join(f'"{name}"' for name in (*_SUMMARY, "size"))
    page = f"SELECT {columns} FROM traces %s ORDER BY started_at, trace_id LIMIT 100"  # noqa: S608 - fixed names
    rows = connection.execute(sa.text(page % "")).all()
    while rows:
        yield from rows
        behind = "WHERE started_at >= :at AND (started_at, trace_id) > (:at, :id)"
        last = {"at": rows[-1].started_at, "id": rows[-1].trace_id}
        rows = connection.execute(sa.text(page % behind), last).all()


def _add(connection: sa.Connection, number: int, rows: list[Any]) -> None:
    starts = [row.started_at for row in rows]
    # Ids of chance alone, as they once were, of schedules, and of turns that waited are no batch's neighbours: they are listed.
    fresh = [row.trace_id for row in rows if _is_fresh(row)]
    events = {row.trace_id: row.events for row in connection.execute(_EVENTS, {"ids": [row.trace_id for row in rows]})}
    kept, start = [], 0
    for row in rows:
        size = len(events[row.trace_id])
        kept.append([start, size, [getattr(row, name) for name in _SUMMARY]])
        start += size
    connection.execute(
        sa.text(
            "INSERT INTO trace_batches (id, first_id, last_id, oldest_at, newest_at, count, size, kept, events) "
            "VALUES (:id, :first_id, :last_id, :oldest_at, :newest_at, :count, :size, :kept, :events)"
        ),
        {
            "id": number,
            "first_id": min(fresh, default=""),
            "last_id": max(fresh, default=""),
            "oldest_at": min(starts),
            "newest_at": max(starts),
            "count": len(rows),
            "size": start,
            "kept": json.dumps(kept).encode(),
            "events": b"".join(bytes(events[row.trace_id]) for row in rows),
        },
    )
    connection.execute(
        sa.text("INSERT INTO trace_owners (owner, newest_at, batch_id) VALUES (:owner, :newest_at, :batch_id)"),
        [{"owner": owner, "newest_at": max(starts), "batch_id": number} for owner in {row.owner for row in rows}],
    )
    names = {row.trace_id for row in rows} - set(fresh)
    names |= {row.response_id for row in rows if row.response_id and not row.response_id.endswith(row.trace_id)}
    if names:
        connection.execute(
            sa.text("INSERT INTO trace_names (name, batch_id) VALUES (:name, :batch_id)"),
            [{"name": name, "batch_id": number} for name in names],
        )


def _is_fresh(row: Any) -> bool:
    try:
        made_at = int(row.trace_id[:_DIGITS], 16) / _PARTS
        return bool(abs(row.started_at - made_at) <= _FRESH_S)
    except ValueError:
        return False
