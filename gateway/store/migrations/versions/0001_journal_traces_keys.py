"""Journal, traces, keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "journal",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_journal"),
        sa.UniqueConstraint("turn_id", "round", "kind", "position", name="uq_journal_turn_id_round_kind_position"),
    )
    op.create_index("ix_journal_created_at", "journal", ["created_at"])
    op.create_table(
        "traces",
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("user", sa.Text),
        sa.Column("response_id", sa.Text),
        sa.Column("route", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("backend", sa.Text),
        sa.Column("strategy", sa.Text),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("version", sa.Text),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("events", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("trace_id", name="pk_traces"),
    )
    op.create_index("ix_traces_response_id", "traces", ["response_id"])
    op.create_index("ix_traces_owner_started_at", "traces", ["owner", "started_at"])
    op.create_index("ix_traces_started_at", "traces", ["started_at"])
    op.create_table(
        "keys",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("team", sa.Text),
        sa.Column("roles", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        sa.Column("routes", sa.Text),
        sa.Column("tools", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
