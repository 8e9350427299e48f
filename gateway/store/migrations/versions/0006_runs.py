"""Durable runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "runs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("parent_id", sa.String(64)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("dead", sa.Boolean, nullable=False),
        sa.Column("priority", sa.String(8), nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("waits_for", sa.String(8), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("caller", sa.LargeBinary, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("deliveries", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("held_until", sa.Float, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("due_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("meta", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_runs_owner_idempotency_key"),
    )
    op.create_index("ix_runs_status_waits_for_priority_due_at", "runs", ["status", "waits_for", "priority", "due_at"])
    op.create_index("ix_runs_owner_created_at", "runs", ["owner", "created_at"])
    op.create_index("ix_runs_created_at", "runs", ["created_at"])
    op.create_index("ix_runs_key_status", "runs", ["key", "status"])
