"""Approvals, compensations and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables; of effects, what undoes them."""
    op.add_column("effects", sa.Column("undo", sa.Text))
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("user", sa.Text),
        sa.Column("team", sa.Text),
        sa.Column("session", sa.Text),
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("arguments_hash", sa.String(64), nullable=False),
        sa.Column("headers", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("code", sa.String(16)),
        sa.Column("wrong", sa.Integer, nullable=False),
        sa.Column("route", sa.Text),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("decided_at", sa.Float),
        sa.Column("decided_by", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("run_id", sa.String(64)),
        sa.Column("ok", sa.Boolean),
        sa.Column("content", sa.Text),
        sa.Column("finished_at", sa.Float),
        sa.Column("told_at", sa.Float),
        sa.Column("on_failure", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_approvals"),
        sa.UniqueConstraint("owner", "turn_id", "round", "position", name="uq_approvals_owner_turn_id_round_position"),
    )
    op.create_index("ix_approvals_owner_created_at", "approvals", ["owner", "created_at"])
    op.create_index("ix_approvals_status_created_at", "approvals", ["status", "created_at"])
    op.create_index("ix_approvals_owner_session", "approvals", ["owner", "session"])
    op.create_index("ix_approvals_owner_arguments_hash", "approvals", ["owner", "arguments_hash"])
    op.create_table(
        "compensations",
        sa.Column("effect_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("undoes", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("made_id", sa.String(64)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float),
        sa.PrimaryKeyConstraint("effect_id", name="pk_compensations"),
    )
    op.create_index("ix_compensations_turn_id", "compensations", ["turn_id"])
    op.create_index("ix_compensations_run_id", "compensations", ["run_id"])
    op.create_index("ix_compensations_made_id", "compensations", ["made_id"])
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("tool", sa.Text),
        sa.Column("arguments", sa.Text),
        sa.Column("arguments_hash", sa.String(64)),
        sa.Column("decision", sa.Text),
        sa.Column("version", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("before", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
    )
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_head"),
    )
