"""Why a database cannot be opened, for whoever starts the program.

Knows what drivers' errors look like. Says nothing while requests are answered: their clients have no business with addresses.
"""

from __future__ import annotations

from sqlalchemy import URL

from gateway.errors import StoreUnavailable


def cannot_be_opened(place: URL, error: StoreUnavailable) -> StoreUnavailable:
    """The same error with the database's address, without its password, and the driver's own words."""
    found: BaseException = error.__cause__ or error
    found = getattr(found, "orig", None) or found
    # asyncpg's errors stand behind those that SQLAlchemy makes of them.
    found = found.__cause__ or found
    words = str(found).strip().splitlines()
    reason = words[0] if words else type(found).__name__
    shown = place.render_as_string(hide_password=True)
    return StoreUnavailable(
        f"the database {shown} cannot be opened: {reason} (`storage.database`, or DATABASE_URL)",
        retryable=error.retryable,
    )
