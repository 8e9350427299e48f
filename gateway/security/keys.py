"""Which key is whose.

Knows keys as digests, teams, and the rule for an open gateway. Does not know HTTP, nor how limits and budgets are counted.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from gateway.config.limits import ROLES, Budgets, Limits, TeamConfig
from gateway.config.models import KeysConfig
from gateway.config.names import WILDCARD, matched
from gateway.errors import NotAllowed, Unauthenticated
from gateway.security.key_book import KeyBook
from gateway.security.principal import NO_BUDGETS, NO_LIMITS, Principal
from gateway.store.key_records import KeyRow

# Every role there is.
# What a caller is where no key is asked for: this machine's user, who may do everything on this machine.
LOCAL: Final = Principal(key_id="local", roles=ROLES)
ADMIN: Final = Principal(key_id="admin", roles=ROLES)

_MISSING = "No API key was sent. Send it as `Authorization: Bearer KEY` or as `x-api-key`."
_UNKNOWN = "Incorrect API key provided."
# Header values kept per header; a known key may be written with more spaces for ever, so there is a bound.
_CACHE_SIZE = 1024

_Known = tuple[Principal, KeyRow | None]


class Tokens(Protocol):
    """An identity provider's tokens, read as keys."""

    def is_token(self, text: str) -> bool:
        """Whether this looks like one."""
        ...

    async def read(self, token: str, now: float) -> Principal:
        """Whose it is. Raises `Unauthenticated` where it is not good."""
        ...


def digest_key(key: str) -> str:
    """The hex SHA-256 a key is kept as. Keys are long and random, so a slow hash would protect nothing."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class KeyRing:
    """Every key of one generation: those of the configuration, the administrator's, and by the book those of the database.

    A key is found by its digest in one dictionary, so the time a wrong one takes says nothing about the right ones.

    Attributes:
        user_headers: which headers may name the end user beside the gateway's own, lower case; `session_headers` the session.
        trusted_proxies: addresses and networks whose word on a client's address counts.
    """

    def __init__(
        self,
        config: KeysConfig,
        host: str,
        *,
        teams: Mapping[str, TeamConfig] | None = None,
        book: KeyBook | None = None,
        tokens: Tokens | None = None,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        """Take the keys.

        Args:
            config: the `keys` section.
            host: the address the server is bound to.
            teams: the `teams` section.
            book: the keys of the database; None where there is none to ask.
            tokens: reads an identity provider's tokens; None where there is no such provider.
            trusted_proxies: whose word on a client's address counts.
        """
        self.user_headers = tuple(name.encode() for name in config.user_headers)
        self.session_headers = tuple(name.encode() for name in config.session_headers)
        self.trusted_proxies = tuple(trusted_proxies)
        self._teams = teams or {}
        self._book = book
        self._tokens = tokens
        self._known: dict[str, Principal] = {}
        for name, static in config.static.items():
            self._known[digest_key(static.key)] = self._with_team(
                Principal(
                    key_id=name,
                    team=static.team,
                    roles=frozenset(static.roles),
                    tags=frozenset(static.tags),
                    models=_set(static.models),
                    routes=_set(static.routes),
                    tools=_set(static.tools),
                    limits=NO_LIMITS if static.limits == NO_LIMITS else static.limits,
                    budgets=NO_BUDGETS if static.budgets == NO_BUDGETS else static.budgets,
                )
            )
        if config.admin_key is not None:
            self._known[digest_key(config.admin_key)] = ADMIN
        self._loopback = is_loopback(host)
        self._host = host
        self._required = config.auth == "required"
        # Whether the keys of the configuration alone leave the gateway open.
        self._may_open = not self._required and not self._known and tokens is None and self._loopback
        # Whole header values of known keys, apart by header: what is no key in one may be one in the other. A key of the
        # database is remembered with the row it was made of, and counts only while the book says that row.
        self._bearers: dict[str, _Known] = {}
        self._api_keys: dict[str, _Known] = {}

    @property
    def configured(self) -> bool:
        """Whether the configuration itself knows a key, or somebody who makes them."""
        return bool(self._known) or self._tokens is not None

    async def is_open(self) -> bool:
        """Whether callers without a key are let in: `auth: auto`, bound to loopback, and no key was ever made.

        Raises:
            StoreUnavailable: it cannot be found out.
        """
        return self._may_open and (self._book is None or not await self._book.ever_created())

    async def refusal_to_start(self) -> str | None:
        """Why the gateway must not start like this, or None. The message says what to do.

        Raises:
            StoreUnavailable: it cannot be found out.
        """
        if self.configured:
            return None
        ever = self._book is not None and await self._book.ever_created()
        if self._may_open and not ever:
            return None
        if ever and self._book is not None and await self._book.any_active():
            return None
        what_to_do = "Set GATEWAY_ADMIN_KEY, make a key with `hermes-gateway keys create`, add one under keys.static"
        if ever:
            return f"every key has ended, and there is no other, so nobody could call. {what_to_do}."
        if self._required:
            return f"keys.auth is `required` and there is no key, so nobody could call. {what_to_do}."
        return (
            f"server.host is {self._host!r}, which other machines reach, and there is no key, so anybody could call. "
            f"{what_to_do}, or bind to 127.0.0.1."
        )

    def named(self, key_id: str) -> Principal | None:
        """Who the key of the configuration with this id makes of its bearer, or None."""
        return next((who for who in self._known.values() if who.key_id == key_id), None)

    async def identify(self, authorization: str | None, api_key: str | None, now: float) -> Principal:
        """Who sent these headers.

        Args:
            authorization: the value of `Authorization`, or None.
            api_key: the value of `x-api-key`, or None; asked only where `authorization` holds no bearer key.
            now: seconds since the epoch, for keys that end.

        Raises:
            Unauthenticated: no key, or one that nobody knows. An open gateway takes any.
            NotAllowed: a key whose team the configuration does not know.
            StoreUnavailable: it cannot be found out.
        """
        known = self.remembered(authorization, api_key, now)
        return known if known is not None else await self._look_up(authorization, api_key, now)

    def remembered(self, authorization: str | None, api_key: str | None, now: float) -> Principal | None:
        """As `identify`, for headers that were seen before; None for others, and where it has to be asked again.

        Raises:
            Unauthenticated: their key has ended.
        """
        if authorization is not None:
            cached = self._bearers.get(authorization)
        elif api_key is not None:
            cached = self._api_keys.get(api_key)
        else:
            cached = None
        if cached is not None:
            principal, row = cached
            if row is None:
                return principal
            assert self._book is not None
            assert principal.digest is not None
            if self._book.known(principal.digest) is row:
                _refuse_ended(row, now)
                return principal
        return None

    async def still(self, principal: Principal, now: float, *, lasting: bool = False) -> None:
        """Make sure that a key which was good a while ago still is.

        With `lasting`, what it was used for may outlast its secret and its end: only who revokes or blocks it stops that.

        Raises:
            Unauthenticated: it is not.
            StoreUnavailable: it cannot be found out.
        """
        if principal.digest is None or self._book is None:
            return
        row = await (self._book.named(principal.key_id) if lasting else self._book.find(principal.digest))
        if row is None:
            raise Unauthenticated(_UNKNOWN)
        _refuse_ended(row, float("-inf") if lasting else now)

    async def _look_up(self, authorization: str | None, api_key: str | None, now: float) -> Principal:
        bearer = _bearer(authorization)
        key = bearer or (api_key or "").strip()
        if self._may_open and await self.is_open():
            # SDKs always send a key; where there is none to compare with, what they send does not matter.
            return LOCAL
        if not key:
            raise Unauthenticated(_MISSING)
        digest = digest_key(key)
        principal, row = self._known.get(digest), None
        if principal is None and self._tokens is not None and self._tokens.is_token(key):
            # Not remembered here: it ends, and whoever reads tokens remembers them.
            return self._with_team(await self._tokens.read(key, now))
        if principal is None:
            row = await self._book.find(digest) if self._book is not None else None
            if row is None:
                raise Unauthenticated(_UNKNOWN)
            _refuse_ended(row, now)
            principal = self._with_team(_bearer_of(row, digest))
        if bearer is not None and authorization is not None:
            _remember(self._bearers, authorization, (principal, row))
        elif authorization is None and api_key is not None:
            _remember(self._api_keys, api_key, (principal, row))
        return principal

    def _with_team(self, principal: Principal) -> Principal:
        """What a key may do as one of its team: no more than either of them."""
        if principal.team is None:
            return principal
        team = self._teams.get(principal.team)
        if team is None:
            # What the team forbids is not known: nothing is allowed.
            raise NotAllowed(f"This key belongs to the team `{principal.team}`, which the configuration does not know.")
        return msgspec.structs.replace(
            principal,
            tags=principal.tags | frozenset(team.tags),
            models=_both_models(principal.models, team.models),
            routes=_both(principal.routes, team.routes),
            tools=_both(principal.tools, team.tools),
        )


def _refuse_ended(row: KeyRow, now: float) -> None:
    """Raise `Unauthenticated` for a key that is none any more."""
    if row.revoked_at is not None:
        raise Unauthenticated("This API key was revoked.")
    if row.blocked:
        raise Unauthenticated("This API key is blocked.")
    ends_at = row.ends_at()
    if ends_at is not None and ends_at <= now:
        raise Unauthenticated("This API key has expired.")


def _bearer_of(row: KeyRow, digest: str) -> Principal:
    return Principal(
        key_id=row.id,
        team=row.team,
        roles=frozenset(row.roles),
        tags=frozenset(row.tags),
        models=_set(row.models),
        routes=_set(row.routes),
        tools=_set(row.tools),
        limits=Limits.model_validate(dict(row.limits)) if row.limits else NO_LIMITS,
        budgets=Budgets.model_validate(dict(row.budgets)) if row.budgets else NO_BUDGETS,
        digest=digest,
    )


def _both(mine: frozenset[str] | None, teams: tuple[str, ...] | None) -> frozenset[str] | None:
    if teams is None:
        return mine
    return frozenset(teams) if mine is None else mine & frozenset(teams)


def _both_models(mine: frozenset[str] | None, teams: tuple[str, ...] | None) -> frozenset[str] | None:
    """As above, for names that may hold a `*`: of two that overlap, the narrower one."""
    if mine is None or teams is None:
        return _both(mine, teams)
    narrower = {name for name in mine if any(_covers(other, name) for other in teams)}
    return frozenset(narrower | {name for name in teams if any(_covers(other, name) for other in mine)})


def _covers(allowed: str, name: str) -> bool:
    return allowed == name or (WILDCARD in allowed and matched(allowed, name.replace(WILDCARD, "x")) is not None)


def _remember(cache: dict[str, _Known], header: str, known: _Known) -> None:
    if len(cache) >= _CACHE_SIZE:
        cache.clear()
    cache[header] = known


def _bearer(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _set(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
