"""The tables, as they are after every migration.

Knows columns and indexes. Does not know queries. Every row that belongs to somebody has an `owner`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

# The newest migration; a database that names it needs none, and Alembic is not imported.
HEAD: Final = "0012"

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
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

# Turns that can be joined: those with an idempotency key, and those whose first writing call is about to start. `answer` is
# the body of the whole answer, `meta` JSON of what its headers say. A turn is run by one `holder` at a time.
turns: Final = Table(
    "turns",
    metadata,
    Column("turn_id", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("key", Text),
    Column("body_hash", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("delivered", Boolean, nullable=False),
    Column("retried", Boolean, nullable=False, server_default=false()),
    Column("holder", Text, nullable=False),
    Column("held_until", Float, nullable=False),
    Column("http_status", Integer),
    Column("answer", LargeBinary),
    Column("meta", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    UniqueConstraint("owner", "key"),
    Index(None, "owner", "body_hash"),
    Index(None, "created_at"),
)

# The ledger: what writing tools were asked to do, and what came of it. `arguments` is JSON, `content` what the model sees.
effects: Final = Table(
    "effects",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("effect_key", String(64), nullable=False),
    Column("owner", Text, nullable=False),
    Column("turn_id", String(64), nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("round", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("tool", Text, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("arguments_hash", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("content", Text),
    Column("note", Text),
    Column("holder", Text, nullable=False),
    Column("held_until", Float, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("undo", Text),
    UniqueConstraint("owner", "effect_key"),
    Index(None, "status", "started_at"),
    Index(None, "turn_id"),
)

# Rounds that a client does not see: what stands in a conversation in the place of one visible assistant message.
# `anchor` is the thread's hash up to that message, `visible` the message's own, `messages` the JSON list that replaces it.
hidden_rounds: Final = Table(
    "hidden_rounds",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("anchor", String(64), nullable=False),
    Column("visible", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("messages", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("owner", "anchor", "digest"),
    Index(None, "created_at"),
)

# The ids of the calls in that visible message, by which it is found where the words before it have changed. Weak servers
# give one id twice; who reads decides what that means.
hidden_calls: Final = Table(
    "hidden_calls",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("call_id", String(256), primary_key=True),
    Column("hidden_id", Integer, ForeignKey("hidden_rounds.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "hidden_id"),
)

# Finished turns, many in a row: `kept` is JSON of their summaries and of where in `events` each one's JSON list of them stands;
# `size` is the bytes of those. Times are seconds since the epoch.
trace_batches: Final = Table(
    "trace_batches",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("first_id", Text, nullable=False),
    Column("last_id", Text, nullable=False),
    Column("oldest_at", Float, nullable=False),
    Column("newest_at", Float, nullable=False),
    Column("count", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("kept", LargeBinary, nullable=False),
    Column("events", LargeBinary, nullable=False),
    Index(None, "last_id", "first_id"),
    Index(None, "newest_at"),
    # A batch is written anew under another number: under its own again, whoever was just reading it would take what stands there
    # now for what stood there before, and show one owner another's events.
    sqlite_autoincrement=True,
)

# Whose traces a batch holds.
trace_owners: Final = Table(
    "trace_owners",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("newest_at", Float, primary_key=True),
    Column("batch_id", Integer, ForeignKey("trace_batches.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "batch_id"),
)

# Response ids that do not end with their trace's id (those of turns that joined another), and ids of traces that were not made when
# these began.
trace_names: Final = Table(
    "trace_names",
    metadata,
    Column("name", Text, primary_key=True),
    Column("batch_id", Integer, ForeignKey("trace_batches.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "batch_id"),
)

# Runs: turns that outlive their request. `body` and `caller` are what was asked and by whom, `meta`, `error` and `progress`
# JSON. A run is executed by one `holder` at a time, under an `epoch` that rises with every claim.
runs: Final = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("owner", Text, nullable=False),
    Column("parent_id", String(64)),
    Column("status", String(16), nullable=False),
    Column("dead", Boolean, nullable=False),
    Column("priority", String(8), nullable=False),
    Column("key", Text),
    Column("waits_for", String(8), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("body_hash", String(64), nullable=False),
    Column("caller", LargeBinary, nullable=False),
    Column("idempotency_key", Text),
    Column("deliveries", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("holder", Text, nullable=False),
    Column("held_until", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("answer", LargeBinary),
    Column("meta", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("progress", Text, nullable=False),
    UniqueConstraint("owner", "idempotency_key"),
    Index(None, "status", "waits_for", "priority", "due_at"),
    Index(None, "owner", "created_at"),
    Index(None, "created_at"),
    Index(None, "key", "status"),
)

# Responses. `input` is the JSON list of items the request brought, `body` the response object. One that is being made has a
# `holder`.
responses: Final = Table(
    "responses",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("background", Boolean, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("previous_id", String(64)),
    Column("conversation_id", String(64)),
    Column("input", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("holder", Text, nullable=False),
    Column("held_until", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Index(None, "updated_at"),
)

# Their events, in batches: numbers `first` to `last`.
response_events: Final = Table(
    "response_events",
    metadata,
    Column("response_id", String(64), ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("last", Integer, primary_key=True),
    Column("first", Integer, nullable=False),
    Column("frames", LargeBinary, nullable=False),
)

# Conversations; `metadata` is JSON.
conversations: Final = Table(
    "conversations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)

# What was said in them, in order; `item` is JSON.
conversation_items: Final = Table(
    "conversation_items",
    metadata,
    Column("conversation_id", String(64), ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("id", String(128), nullable=False),
    Column("item", LargeBinary, nullable=False),
    Index(None, "id"),
)

# Keys made at run time: what they make of their bearer. `owner` is who made them. Lists and mappings are JSON; null means all
# of a list, and no limit.
keys: Final = Table(
    "keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("team", Text),
    Column("roles", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("models", Text),
    Column("routes", Text),
    Column("tools", Text),
    Column("limits", Text, nullable=False, server_default="{}"),
    Column("budgets", Text, nullable=False, server_default="{}"),
    Column("blocked", Boolean, nullable=False, server_default=false()),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

# What bearers of a key send: more than one while it is being exchanged. The secret itself is nowhere; `digest` is its SHA-256,
# `prefix` what people recognise it by.
key_secrets: Final = Table(
    "key_secrets",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("key_id", String(64), ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Index(None, "key_id"),
)

# What placeholders for private data stand for: sealed with a key of the owner's that is not in here.
private_values: Final = Table(
    "private_values",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("placeholder", String(64), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("expires_at", Float, nullable=False),
    Index(None, "expires_at"),
)

# What was used, added up: a row for each day (in `budgets.timezone`), owner and what answered. Empty text where there is none;
# `tags` is a sorted JSON list. `cost` is in billionths of the currency; `unpriced` counts turns in which the price of some
# tokens was not known.
usage: Final = Table(
    "usage",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("team", Text, primary_key=True),
    Column("tags", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("backend", Text, primary_key=True),
    Column("turns", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("unpriced", BigInteger, nullable=False),
    Index(None, "key", "day"),
)

# Calls that wait for a human, and what became of them. `arguments` is JSON, canonical, `why` and `headers` JSON. One of a call.
approvals: Final = Table(
    "approvals",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("owner", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("user", Text),
    Column("team", Text),
    Column("session", Text),
    Column("turn_id", String(64), nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("round", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("arguments_hash", String(64), nullable=False),
    Column("headers", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("code", String(16)),
    Column("wrong", Integer, nullable=False),
    Column("route", Text),
    Column("version", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("decided_at", Float),
    Column("decided_by", Text),
    Column("reason", Text),
    Column("run_id", String(64)),
    Column("ok", Boolean),
    Column("content", Text),
    Column("finished_at", Float),
    Column("told_at", Float),
    Column("on_failure", String(16), nullable=False),
    UniqueConstraint("owner", "turn_id", "round", "position"),
    Index(None, "owner", "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "owner", "session"),
    Index(None, "owner", "arguments_hash"),
)

# What is owed to undo: a row for each effect of a turn that failed, undone the last first. `arguments` is JSON; `made_id` names
# the effect that undoes it, once it is begun.
compensations: Final = Table(
    "compensations",
    metadata,
    Column("effect_id", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("turn_id", String(64), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("position", Integer, nullable=False),
    Column("tool", Text, nullable=False),
    Column("undoes", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("made_id", String(64)),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float),
    Index(None, "turn_id"),
    Index(None, "run_id"),
    Index(None, "made_id"),
)

# The audit log: each entry holds the hash of the one before it. `arguments` is JSON, masked.
audit: Final = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("actor", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False),
    Column("tool", Text),
    Column("arguments", Text),
    Column("arguments_hash", String(64)),
    Column("decision", Text),
    Column("version", Text),
    Column("outcome", Text),
    Column("before", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)

# Where the audit log ends: entries that were cut off at its end are missed by it. One row.
audit_head: Final = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
)

# Sessions: conversations that the gateway keeps. `head` is the JSON list of system messages in front, `first` and `end` the
# positions of its messages. One turn at a time holds it.
sessions: Final = Table(
    "sessions",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("head", LargeBinary, nullable=False, default=b"[]"),
    Column("first", Integer, nullable=False, server_default="0"),
    Column("end", Integer, nullable=False, server_default="0"),
    Column("size", Integer, nullable=False, server_default="0"),
    Column("last", Integer, nullable=False, server_default="0"),
    Column("last_print", String(64), nullable=False, server_default=""),
    Column("holder", Text, nullable=False, server_default=""),
    Column("held_until", Float, nullable=False, server_default="0"),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    UniqueConstraint("owner", "name"),
    Index(None, "expires_at"),
)

# What was said in them; `message` is JSON in Chat Completions' form.
session_messages: Final = Table(
    "session_messages",
    metadata,
    Column("session", Integer, ForeignKey("sessions.number", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("message", LargeBinary, nullable=False),
)

# What is remembered of an owner beyond one conversation. `vector` is 32-bit floats of the encoder named in `space`.
memories: Final = Table(
    "memories",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("text", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("space", Text, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Index(None, "owner", "created_at"),
)
