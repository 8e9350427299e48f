"""INSERT … ON CONFLICT, for SQLite and PostgreSQL alike.

It is PostgreSQL's construct: SQLite's compiler writes it too, where PostgreSQL's cannot write SQLite's.
"""

from sqlalchemy.dialects.postgresql.dml import insert

__all__ = ["insert"]
