"""The store over a database: every repository, one connection pool."""

from __future__ import annotations

from gateway.store.approvals import SqlApprovals
from gateway.store.audit import SqlAudit
from gateway.store.compensations import SqlCompensations
from gateway.store.conversations import SqlConversations
from gateway.store.database import Database
from gateway.store.effects import SqlEffects
from gateway.store.hidden import SqlHidden
from gateway.store.journal import SqlJournal
from gateway.store.keys import SqlKeys
from gateway.store.memories import SqlMemories
from gateway.store.private_values import SqlPrivateValues
from gateway.store.responses import SqlResponses
from gateway.store.runs import SqlRuns
from gateway.store.sessions import SqlSessions
from gateway.store.traces import SqlTraces
from gateway.store.turns import SqlTurns
from gateway.store.usage import SqlUsage


class SqlStore:
    """`Store` over the database that a URL names."""

    def __init__(self, url: str) -> None:
        """Take `storage.database`. Raises `StoreUnavailable` where the URL names no database of a known kind."""
        self._database = Database(url)
        self.traces = SqlTraces(self._database)
        self.journal = SqlJournal(self._database)
        self.keys = SqlKeys(self._database)
        self.usage = SqlUsage(self._database)
        self.turns = SqlTurns(self._database)
        self.effects = SqlEffects(self._database)
        self.hidden = SqlHidden(self._database)
        self.responses = SqlResponses(self._database)
        self.conversations = SqlConversations(self._database)
        self.runs = SqlRuns(self._database)
        self.sessions = SqlSessions(self._database)
        self.memories = SqlMemories(self._database)
        self.approvals = SqlApprovals(self._database)
        self.audit = SqlAudit(self._database)
        self.compensations = SqlCompensations(self._database)
        self.private_values = SqlPrivateValues(self._database)

    async def open(self) -> None:
        """Connect and bring the tables up to date. Raises `StoreUnavailable`, with what to do."""
        await self._database.open()

    async def upgrade(self) -> str:
        """Migrate now; the revision the database has then."""
        return await self._database.upgrade()

    async def close(self) -> None:
        """Disconnect."""
        await self._database.close()
