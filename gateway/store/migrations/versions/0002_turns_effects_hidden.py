"""Turns that can be joined, the ledger of effects, hidden rounds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "turns",
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("delivered", sa.Boolean, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("held_until", sa.Float, nullable=False),
        sa.Column("http_status", sa.Integer),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("meta", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name="pk_turns"),
        sa.UniqueConstraint("owner", "key", name="uq_turns_owner_key"),
    )
    op.create_index("ix_turns_owner_body_hash", "turns", ["owner", "body_hash"])
    op.create_index("ix_turns_created_at", "turns", ["created_at"])
    op.create_table(
        "effects",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("effect_key", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("arguments_hash", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("content", sa.Text),
        sa.Column("note", sa.Text),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("held_until", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_effects"),
        sa.UniqueConstraint("owner", "effect_key", name="uq_effects_owner_effect_key"),
    )
    op.create_index("ix_effects_status_started_at", "effects", ["status", "started_at"])
    op.create_index("ix_effects_turn_id", "effects", ["turn_id"])
    op.create_table(
        "hidden_rounds",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("anchor", sa.String(64), nullable=False),
        sa.Column("visible", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("messages", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_hidden_rounds"),
        sa.UniqueConstraint("owner", "anchor", "digest", name="uq_hidden_rounds_owner_anchor_digest"),
    )
    op.create_index("ix_hidden_rounds_created_at", "hidden_rounds", ["created_at"])
    op.create_table(
        "hidden_calls",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("call_id", sa.String(256), nullable=False),
        sa.Column("hidden_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("owner", "call_id", "hidden_id", name="pk_hidden_calls"),
        sa.ForeignKeyConstraint(
            ["hidden_id"], ["hidden_rounds.id"], name="fk_hidden_calls_hidden_id_hidden_rounds", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_hidden_calls_hidden_id", "hidden_calls", ["hidden_id"])
