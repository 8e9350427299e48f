"""`hermes-gateway db upgrade`: bring the database's tables up to date."""

from __future__ import annotations

import argparse
import asyncio
import sys

from gateway.commands.files import paths_of, settings_of, tell
from gateway.config.loader import load
from gateway.errors import ConfigError, StoreUnavailable
from gateway.store.sql import SqlStore


def run(arguments: argparse.Namespace) -> int:
    """Migrate."""
    try:
        settings = settings_of()
        config = load(*paths_of(arguments, settings), settings).config
        revision = asyncio.run(_upgrade(config.storage.database))
    except ConfigError as error:
        return tell(error)
    except StoreUnavailable as error:
        print(error.message, file=sys.stderr)
        return 3
    print(f"The database is at revision {revision}.")
    return 0


async def _upgrade(url: str) -> str:
    store = SqlStore(url)
    try:
        return await store.upgrade()
    finally:
        await store.close()
