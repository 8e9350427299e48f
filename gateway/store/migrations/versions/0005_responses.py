"""Responses with their events, conversations with their items."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("streamed", sa.Boolean, nullable=False),
        sa.Column("previous_id", sa.String(64)),
        sa.Column("conversation_id", sa.String(64)),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("held_until", sa.Float, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_responses"),
    )
    op.create_index("ix_responses_updated_at", "responses", ["updated_at"])
    op.create_table(
        "response_events",
        sa.Column("response_id", sa.String(64), nullable=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("first", sa.Integer, nullable=False),
        sa.Column("frames", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("response_id", "last", name="pk_response_events"),
        sa.ForeignKeyConstraint(
            ["response_id"], ["responses.id"], name="fk_response_events_response_id_responses", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_conversations"),
    )
    op.create_table(
        "conversation_items",
        sa.Column("conversation_id", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("item", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "position", name="pk_conversation_items"),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name="fk_conversation_items_conversation_id_conversations",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_conversation_items_id", "conversation_items", ["id"])
