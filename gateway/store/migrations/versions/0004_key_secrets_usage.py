"""Secrets apart from their keys, limits and budgets of keys, and what was used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables; each key that is there keeps its secret."""
    # SQLite changes `keys` by making it anew, and whatever pointed at the old table would go with it: so the copy first.
    op.execute("CREATE TABLE key_secrets_before AS SELECT digest, id, owner, prefix, created_at FROM keys")
    with op.batch_alter_table("keys") as table:
        table.drop_constraint("uq_keys_digest", type_="unique")
        table.drop_column("digest")
        table.drop_column("prefix")
        table.add_column(sa.Column("limits", sa.Text, nullable=False, server_default="{}"))
        table.add_column(sa.Column("budgets", sa.Text, nullable=False, server_default="{}"))
        table.add_column(sa.Column("blocked", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "key_secrets",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.PrimaryKeyConstraint("digest", name="pk_key_secrets"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_key_secrets_key_id_keys", ondelete="CASCADE"),
    )
    op.create_index("ix_key_secrets_key_id", "key_secrets", ["key_id"])
    op.execute(
        "INSERT INTO key_secrets (digest, key_id, owner, prefix, created_at) "
        "SELECT digest, id, owner, prefix, created_at FROM key_secrets_before"
    )
    op.execute("DROP TABLE key_secrets_before")
    op.create_table(
        "usage",
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("team", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("turns", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("unpriced", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day", "owner", "team", "tags", "route", "model", "backend", name="pk_usage"),
    )
    op.create_index("ix_usage_key_day", "usage", ["key", "day"])
