"""Sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "sessions",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False, server_default="0"),
        sa.Column("head", sa.LargeBinary, nullable=False),
        sa.Column("first", sa.Integer, nullable=False, server_default="0"),
        sa.Column("end", sa.Integer, nullable=False, server_default="0"),
        sa.Column("size", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_print", sa.String(64), nullable=False, server_default=""),
        sa.Column("holder", sa.Text, nullable=False, server_default=""),
        sa.Column("held_until", sa.Float, nullable=False, server_default="0"),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_sessions"),
        sa.UniqueConstraint("owner", "name", name="uq_sessions_owner_name"),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "session_messages",
        sa.Column("session", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("session", "position", name="pk_session_messages"),
        sa.ForeignKeyConstraint(
            ["session"], ["sessions.number"], name="fk_session_messages_session_sessions", ondelete="CASCADE"
        ),
    )
