"""Which key is whose.

Knows keys as digests and the rule for an open gateway. Does not know HTTP, limits or budgets.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.config.models import KeysConfig
from gateway.errors import Unauthenticated
from gateway.security.principal import Principal

# Every role there is.
ROLES: Final = frozenset({"admin", "approver", "metrics", "set_tags", "set_user"})
# What a caller is where no key is asked for: this machine's user, who may do everything on this machine.
LOCAL: Final = Principal(key_id="local", roles=ROLES)
ADMIN: Final = Principal(key_id="admin", roles=ROLES)

_MISSING = "No API key was sent. Send it as `Authorization: Bearer KEY` or as `x-api-key`."
_UNKNOWN = "Incorrect API key provided."
# Header values kept per header; a known key may be written with more spaces for ever, so there is a bound.
_CACHE_SIZE = 1024


class StoredKey(msgspec.Struct, frozen=True):
    """A key of the database: its digest (hex SHA-256), who it makes of its bearer, and when it ends, epoch seconds."""

    digest: str
    principal: Principal
    expires_at: float | None = None


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
    """Every key of one generation: those of the configuration, the administrator's, those of the database.

    A key is found by its digest in one dictionary, so the time a wrong one takes says nothing about the right ones.
    """

    def __init__(
        self, config: KeysConfig, host: str, *, stored: Iterable[StoredKey] = (), ever_created: bool = False
    ) -> None:
        """Take the keys.

        Args:
            config: the `keys` section.
            host: the address the server is bound to.
            stored: keys of the database that are not revoked.
            ever_created: whether the database ever held a key, revoked ones included.
        """
        self._known: dict[str, tuple[Principal, float | None]] = {
            key.digest: (key.principal, key.expires_at) for key in stored
        }
        for name, static in config.static.items():
            self._known[digest_key(static.key)] = (
                Principal(
                    key_id=name,
                    roles=frozenset(static.roles),
                    tags=frozenset(static.tags),
                    models=_set(static.models),
                    routes=_set(static.routes),
                    tools=_set(static.tools),
                ),
                None,
            )
        if config.admin_key is not None:
            self._known[digest_key(config.admin_key)] = (
                ADMIN,
                None,
            )
        self._any = bool(self._known) or ever_created
        self._loopback = is_loopback(host)
        self._host = host
        self._required = config.auth == "required"
        # Whole header values of known keys, apart by header: what is no key in one may be one in the other.
        self._bearers: dict[str, Principal] = {}
        self._api_keys: dict[str, Principal] = {}

    @property
    def open(self) -> bool:
        """Whether callers without a key are let in: `auth: auto`, bound to loopback, and no key was ever made."""
        return not self._required and not self._any and self._loopback

    @property
    def refuse_to_start(self) -> str | None:
        """Why the gateway must not start like this, or None. The message says what to do."""
        if self._any or self.open:
            return None
        if self._required:
            return (
                "keys.auth is `required` and there is no key, so nobody could call. "
                "Set GATEWAY_ADMIN_KEY, or add a key under keys.static."
            )
        return (
            f"server.host is {self._host!r}, which other machines reach, and there is no key, so anybody could call. "
            "Set GATEWAY_ADMIN_KEY, add a key under keys.static, or bind to 127.0.0.1."
        )

    def named(self, key_id: str) -> Principal | None:
        """Who the key with this id makes of its bearer, or None."""
        return next((who for who, _ in self._known.values() if who.key_id == key_id), None)

    def identify(self, authorization: str | None, api_key: str | None, now: float) -> Principal:
        """Who sent these headers.

        Args:
            authorization: the value of `Authorization`, or None.
            api_key: the value of `x-api-key`, or None; asked only where `authorization` holds no bearer key.
            now: seconds since the epoch, for keys that end.

        Raises:
            Unauthenticated: no key, or one that nobody knows. An open gateway takes any.
        """
        if authorization is not None:
            cached = self._bearers.get(authorization)
        elif api_key is not None:
            cached = self._api_keys.get(api_key)
        else:
            cached = None
        return cached if cached is not None else self._look_up(authorization, api_key, now)

    def _look_up(self, authorization: str | None, api_key: str | None, now: float) -> Principal:
        if self.open:
            # SDKs always send a key; where there is none to compare with, what they send does not matter.
            return LOCAL
        bearer = _bearer(authorization)
        key = bearer or (api_key or "").strip()
        if not key:
            raise Unauthenticated(_MISSING)
        found = self._known.get(digest_key(key))
        if found is None:
            raise Unauthenticated(_UNKNOWN)
        principal, expires_at = found
        if expires_at is not None:
            # Not cached: its end has to be looked at every time.
            if expires_at <= now:
                raise Unauthenticated("This API key has expired.")
        elif bearer is not None and authorization is not None:
            _remember(self._bearers, authorization, principal)
        elif authorization is None and api_key is not None:
            _remember(self._api_keys, api_key, principal)
        return principal


def _remember(cache: dict[str, Principal], header: str, principal: Principal) -> None:
    if len(cache) >= _CACHE_SIZE:
        cache.clear()
    cache[header] = principal


def _bearer(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _set(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
