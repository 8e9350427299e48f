"""The tables, as they are after every migration.

Knows columns and indexes. Does not know queries. Every row that belongs to somebody has an `owner`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text, UniqueConstraint

# The newest migration; a database that names it needs none, and Alembic is not imported.
HEAD: Final = "0001"

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# The steps of turns: each model answer and each tool outcome. `content` is JSON, `position` counts the calls of a round.
journal: Final = Table(
    "journal",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("turn_id", String(64), nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("owner", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("position", Integer, nullable=False),
    Column("content", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("turn_id", "round", "kind", "position"),
    Index(None, "created_at"),
)

# Finished turns. `events` is the JSON list of them, `size` its bytes; times are seconds since the epoch.
traces: Final = Table(
    "traces",
    metadata,
    Column("trace_id", String(32), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("user", Text),
    Column("response_id", Text),
    Column("route", Text),
    Column("model", Text),
    Column("backend", Text),
    Column("strategy", Text),
    Column("status", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("version", Text),
    Column("size", Integer, nullable=False),
    Column("events", LargeBinary, nullable=False),
    Index(None, "response_id"),
    Index(None, "owner", "started_at"),
    Index(None, "started_at"),
)

# Keys made at run time. The key itself is nowhere; `digest` is its SHA-256, `prefix` what people recognise it by.
# Lists are JSON; null means all.
keys: Final = Table(
    "keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("prefix", String(16), nullable=False),
    Column("owner", Text, nullable=False),
    Column("team", Text),
    Column("roles", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("models", Text),
    Column("routes", Text),
    Column("tools", Text),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)
