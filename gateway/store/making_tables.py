"""The way to today's tables: all at once where there are none, else one migration after the other.

Knows Alembic and how it marks a database. Does not know what is in the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect

from gateway.errors import StoreUnavailable
from gateway.store.tables import HEAD, metadata

# As Alembic makes it.
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def make_tables(connection: Connection) -> None:
    """Bring the tables to `HEAD`, within the connection's transaction.

    Raises:
        StoreUnavailable: they are of a newer version.
    """
    if inspect(connection).get_table_names():
        migrate(connection)
        return
    # A tenth of the time, and Alembic need not be imported.
    metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection, checkfirst=False)
    connection.execute(insert(_VERSION).values(version_num=HEAD))


def migrate(connection: Connection) -> None:
    """Bring the tables to `HEAD` by migrations alone.

    Raises:
        StoreUnavailable: they are of a newer version.
    """
    # 100 ms that a database of today does not need.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreUnavailable(
            "the database was written by a newer version of Hermes Gateway; install that version, or use another database",
            retryable=False,
        ) from error
