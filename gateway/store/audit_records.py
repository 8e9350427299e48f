"""The audit log's entries, their chain, and what their store promises.

Knows the form of an entry and how its hash is made. Does not know SQL, nor what is worth an entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

# What the first entry stands on.
BEGINNING: Final = "0" * 64

AuditAction = Literal[
    "approval.requested",
    "approval.approved",
    "approval.rejected",
    "approval.withdrawn",
    "approval.locked",
    "approval.executed",
    "approval.read",
    "compensation.begun",
    "compensation.done",
    "compensation.failed",
    "effect.settled",
    "effect.retried",
    "value.revealed",
]

_encode = msgspec.json.Encoder(order="deterministic").encode


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.

    Attributes:
        actor: who did it.
        owner: whose request it was about.
        subject: the id of what was acted upon.
        arguments: JSON text, masked; `arguments_hash` is of what they really were.
    """

    at: float
    actor: str
    owner: str
    action: AuditAction
    subject: str
    tool: str | None = None
    arguments: str | None = None
    arguments_hash: str | None = None
    decision: str | None = None
    version: str | None = None
    outcome: str | None = None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the chain: its number, the hash of the one before it, and its own over all of it."""

    seq: int
    entry: AuditEntry
    before: str
    hash: str


class Fault(msgspec.Struct, frozen=True):
    """Where the chain is broken: at which entry, and how."""

    seq: int
    message: str


class Verified(msgspec.Struct, frozen=True):
    """What looking at the whole chain found."""

    entries: int
    head: str
    faults: tuple[Fault, ...]


class Audit(Protocol):
    """The audit log. Every call raises `StoreUnavailable` where the store cannot be reached."""

    async def append(self, entry: AuditEntry) -> None:
        """Add one entry behind the last."""
        ...

    async def newest(self, owner: str | None, *, limit: int, after: int | None) -> Sequence[AuditRow]:
        """The newest first, at most `limit`, older than the entry `after`."""
        ...

    async def verify(self) -> Verified:
        """Go along the whole chain."""
        ...


def hash_of(seq: int, entry: AuditEntry, before: str) -> str:
    """The hash of an entry at its place: hex SHA-256 over its number, everything it says, and the hash before it."""
    said: list[Any] = [seq, before, *(getattr(entry, name) for name in AuditEntry.__struct_fields__)]
    return hashlib.sha256(_encode(said)).hexdigest()


def view_of(row: AuditRow) -> dict[str, Any]:
    """An entry as the API and the command show it."""
    shown: dict[str, Any] = {name: getattr(row.entry, name) for name in AuditEntry.__struct_fields__}
    if row.entry.arguments is not None:
        shown["arguments"] = msgspec.json.decode(row.entry.arguments)
    return {"id": str(row.seq), "object": "audit.entry", **shown, "before": row.before, "hash": row.hash}


def faults_of(row: AuditRow, last: int, before: str) -> list[Fault]:
    """What is wrong with an entry that stands behind the entry `last`, whose hash is `before`."""
    if row.seq != last + 1:
        return [Fault(last + 1, f"entries {last + 1} to {row.seq - 1} are missing")]
    if row.hash != hash_of(row.seq, row.entry, row.before):
        return [Fault(row.seq, "the entry was changed")]
    if row.before != before:
        return [Fault(row.seq, "it does not stand on the entry before it")]
    return []
