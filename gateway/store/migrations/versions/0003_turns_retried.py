"""Whether a turn was begun by a client's retry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Turns that are there were nobody's rivals."""
    op.add_column("turns", sa.Column("retried", sa.Boolean, nullable=False, server_default=sa.false()))
