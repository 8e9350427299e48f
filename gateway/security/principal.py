"""Who is calling.

A pure value. Knows roles and permissions; does not know how a key is checked.
"""

from __future__ import annotations

import msgspec

from gateway.config.limits import Budgets, Limits

# What a key has that has none of its own.
NO_LIMITS = Limits()
NO_BUDGETS = Budgets()


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from: the other end of its connection, and the client's address as trusted proxies tell it."""

    peer: str
    address: str


NOWHERE = Origin("-", "-")


class Principal(msgspec.Struct, frozen=True):
    """The key a request came with, and the end user behind it.

    Attributes:
        key_id: the key's id; `local` where the gateway is open.
        team: the key's team, or None.
        user: the end user, or None.
        roles: what the key may do beside chatting.
        tags: routing tags of the key.
        models: models the key may name, or None for all.
        routes: routes the key may be sent to, or None for all.
        tools: registry tools the key may be offered, or None for all.
        limits: the key's own, and `budgets` too; those of its team and of everybody come beside them.
        digest: of the secret it came with, where the key is one of the database.
        address: where the request came from, where no key says who it is.
    """

    key_id: str
    team: str | None = None
    user: str | None = None
    roles: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    models: frozenset[str] | None = None
    routes: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    limits: Limits = NO_LIMITS
    budgets: Budgets = NO_BUDGETS
    digest: str | None = None
    address: str | None = None

    @property
    def owner(self) -> str:
        """The name every stored row of this caller carries."""
        return self.key_id if self.user is None else f"{self.key_id}/{self.user}"
