"""What placeholders stand for, sealed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "private_values",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("placeholder", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("owner", "placeholder", name="pk_private_values"),
    )
    op.create_index("ix_private_values_expires_at", "private_values", ["expires_at"])
