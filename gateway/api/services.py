"""What the endpoints are handed: the objects behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.api.together import Together
from gateway.approvals.desk import Desk
from gateway.clock import Clock
from gateway.config.replica import Replica
from gateway.config.versions import Versioned
from gateway.errors import Draining
from gateway.observe.usage import UsageWriter
from gateway.runs.acceptance import Acceptance
from gateway.security.key_book import KeyBook
from gateway.security.masking.vault import Vault
from gateway.store.audit_records import Audit
from gateway.store.compensation_records import Compensations
from gateway.store.kept import KeptRoutes
from gateway.store.key_records import Keys
from gateway.store.trace_records import Traces
from gateway.store.usage_records import Usages
from gateway.tools.courier import Courier
from gateway.tools.settling import Settling
from gateway.turn.remembering import Remembering
from gateway.turn.responding import Responding
from gateway.turn.service import Turns
from gateway.turn.session import SessionKeeper
from gateway.turn.snapshot import Snapshot


class Drain:
    """Whether this process is about to stop: then it takes no new work."""

    def __init__(self) -> None:
        self.begun = False

    def refuse(self) -> None:
        """Raise `Draining` once it has begun."""
        if self.begun:
            raise Draining("This process is about to stop.")


@dataclass(frozen=True, slots=True)
class Services:
    """Made in `app.py`, read by every endpoint. `away` names the servers of tools without which this process is not ready."""

    turns: Turns
    versions: Versioned[Snapshot]
    replica: Replica[Snapshot]
    kept: KeptRoutes
    traces: Traces
    keys: Keys
    book: KeyBook
    usage: Usages
    used: UsageWriter
    together: Together
    settling: Settling
    courier: Courier
    clock: Clock
    drain: Drain
    away: Callable[[], Sequence[str]]
    runs: Acceptance
    responding: Responding
    desk: Desk
    audit: Audit
    compensations: Compensations
    sessions: SessionKeeper
    memories: Remembering
    vault: Vault
