"""Where keys are made, changed, exchanged and ended.

Knows what a key's fields may be, and what a new secret looks like. The API and the command line both come here.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from gateway.clock import Clock
from gateway.config.limits import ROLES, Budgets, Limits
from gateway.config.loader import STORED_KEY_PREFIX
from gateway.config.section import Section
from gateway.errors import InvalidRequest, NotFound
from gateway.security.keys import digest_key
from gateway.store.key_records import KeyRow, Keys, SecretRow

KEY_PREFIX: Final = "hg-"
# Bytes of chance in a key: too many to guess, whatever hash keeps it.
_CHANCE: Final = 32
_SHOWN: Final = 8
_LONGEST: Final = 200
_MOST_NAMES: Final = 1000
# Seconds for which an exchanged secret may go on counting.
MOST_OVERLAP_S: Final = 90 * 86_400.0


class KeyWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a key is to be. Left out: as it is, or for a new one, nothing special.

    Attributes:
        expires_at: seconds since the epoch, or ISO 8601 with an offset; None for never.
        sha256: of a key of another product, which is then this key; nobody has to tell it.
    """

    name: str | msgspec.UnsetType = msgspec.UNSET
    team: str | msgspec.UnsetType | None = msgspec.UNSET
    roles: list[str] | msgspec.UnsetType = msgspec.UNSET
    tags: list[str] | msgspec.UnsetType = msgspec.UNSET
    models: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    routes: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    tools: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    expires_at: float | str | msgspec.UnsetType | None = msgspec.UNSET
    limits: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    budgets: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    blocked: bool | msgspec.UnsetType = msgspec.UNSET
    sha256: str | msgspec.UnsetType = msgspec.UNSET


class SecretView(msgspec.Struct, frozen=True):
    """One secret, as it may be shown."""

    prefix: str
    created_at: float
    expires_at: float | None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key, as it may be shown. `key` is the secret, right after it was made and never again."""

    id: str
    object: str = "key"
    name: str
    team: str | None
    roles: tuple[str, ...]
    tags: tuple[str, ...]
    models: tuple[str, ...] | None
    routes: tuple[str, ...] | None
    tools: tuple[str, ...] | None
    limits: Mapping[str, float]
    budgets: Mapping[str, float]
    blocked: bool
    secrets: tuple[SecretView, ...]
    created_by: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    key: str | msgspec.UnsetType = msgspec.UNSET


class KeyDesk:
    """Changes keys.

    Args:
        keys: the keys of the database.
        teams: names of the configuration's teams.
        clock: time.
    """

    def __init__(self, keys: Keys, teams: Collection[str], clock: Clock) -> None:
        self._keys = keys
        self._teams = teams
        self._clock = clock

    async def create(self, wish: KeyWish, by: str) -> KeyView:
        """Make a key; its secret is in the answer, unless it was imported by its hash.

        Raises:
            InvalidRequest: a field is wrong, or the imported key is known.
            StoreUnavailable: it could not be kept.
        """
        values = self._values(wish)
        if "name" not in values:
            raise InvalidRequest("`name` is missing: what people call this key.", param="name")
        now = self._clock.now()
        text: str | None = None
        if isinstance(wish.sha256, str):
            digest = wish.sha256.lower()
            if not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise InvalidRequest("`sha256` must be 64 hexadecimal digits: the SHA-256 of the key.", param="sha256")
            if await self._keys.find(digest) is not None:
                raise InvalidRequest("A key of this `sha256` is known already.", param="sha256")
            secret = SecretRow(digest=digest, prefix="sha256", created_at=now)
        else:
            text, secret = _new_secret(now)
        key_id = STORED_KEY_PREFIX + secrets.token_hex(12)
        row = KeyRow(id=key_id, owner=by, created_at=now, secrets=(secret,), **values)
        await self._keys.add(row)
        return _view(row, text)

    async def every(self, *, limit: int | None = None, after: str | None = None) -> Sequence[KeyView]:
        """The newest first. Raises `StoreUnavailable`."""
        return [_view(row) for row in await self._keys.every(limit=limit, after=after)]

    async def change(self, key_id: str, wish: KeyWish) -> KeyView:
        """Change what the wish names.

        Raises:
            InvalidRequest: a field is wrong.
            NotFound: there is no such key, or it was revoked.
            StoreUnavailable: it could not be kept.
        """
        if wish.sha256 is not msgspec.UNSET:
            raise InvalidRequest("`sha256` belongs to a new key.", param="sha256")
        row = await self._keys.change(key_id, self._values(wish))
        if row is None:
            raise _none(key_id)
        return _view(row)

    async def rotate(self, key_id: str, overlap_s: float) -> KeyView:
        """Give a key another secret; those it has go on for `overlap_s` seconds.

        Raises:
            InvalidRequest: the overlap is negative or longer than 90 days.
            NotFound: there is no such key, or it was revoked.
            StoreUnavailable: it could not be kept.
        """
        if not 0 <= overlap_s <= MOST_OVERLAP_S:
            raise InvalidRequest(
                f"`overlap_s` is {overlap_s:g}; expected 0 to {MOST_OVERLAP_S:g} seconds.", param="overlap_s"
            )
        now = self._clock.now()
        text, secret = _new_secret(now)
        row = await self._keys.rotate(key_id, secret, old_until=now + overlap_s)
        if row is None:
            raise _none(key_id)
        return _view(row, text)

    async def revoke(self, key_id: str) -> KeyView:
        """End a key, for good.

        Raises:
            NotFound: there is no such key.
            StoreUnavailable: it could not be kept.
        """
        await self._keys.revoke(key_id, self._clock.now())
        row = await self._keys.get(key_id)
        if row is None:
            raise _none(key_id)
        return _view(row)

    def _values(self, wish: KeyWish) -> dict[str, Any]:
        """The fields of a row that the wish sets."""
        values: dict[str, Any] = {}
        for field in ("name", "team", "blocked"):
            if (said := getattr(wish, field)) is not msgspec.UNSET:
                values[field] = said
        if "name" in values and not 0 < len(values["name"].strip()) <= _LONGEST:
            raise InvalidRequest(f"`name` must have 1 to {_LONGEST} characters.", param="name")
        if values.get("team") is not None and values["team"] not in self._teams:
            raise InvalidRequest(
                f"There is no team {values['team']!r}; the configuration's `teams` names them.", param="team"
            )
        for field in ("roles", "tags", "models", "routes", "tools"):
            if (names := getattr(wish, field)) is not msgspec.UNSET:
                values[field] = None if names is None else _names(field, names)
        unknown = sorted(set(values.get("roles", ())) - ROLES)
        if unknown:
            raise InvalidRequest(
                f"There is no role {unknown[0]!r}; there are {', '.join(sorted(ROLES))}.", param="roles"
            )
        if wish.expires_at is not msgspec.UNSET:
            values["expires_at"] = self._end(wish.expires_at)
        if wish.limits is not msgspec.UNSET:
            values["limits"] = _section(Limits, "limits", wish.limits or {})
        if wish.budgets is not msgspec.UNSET:
            values["budgets"] = _section(Budgets, "budgets", wish.budgets or {})
        return values

    def _end(self, said: float | str | msgspec.UnsetType | None) -> float | None:
        if not isinstance(said, (int, float, str)):
            return None
        try:
            at = datetime.fromisoformat(said).timestamp() if isinstance(said, str) else float(said)
            if isinstance(said, str) and datetime.fromisoformat(said).tzinfo is None:
                at = datetime.fromisoformat(said).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"`expires_at` is {said!r}; expected seconds since 1970, or a time such as 2030-01-31T12:00:00Z.",
                param="expires_at",
            ) from error
        if at <= self._clock.now():
            raise InvalidRequest("`expires_at` is in the past; to end a key now, revoke it.", param="expires_at")
        return at


def _new_secret(now: float) -> tuple[str, SecretRow]:
    text = KEY_PREFIX + secrets.token_urlsafe(_CHANCE)
    return text, SecretRow(digest=digest_key(text), prefix=text[:_SHOWN], created_at=now)


def _names(field: str, names: Sequence[str]) -> tuple[str, ...]:
    if len(names) > _MOST_NAMES or not all(0 < len(name) <= _LONGEST for name in names):
        raise InvalidRequest(
            f"`{field}` may hold {_MOST_NAMES} names of 1 to {_LONGEST} characters at most.", param=field
        )
    return tuple(names)


def _section(model: type[Section], field: str, said: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return model.model_validate(dict(said)).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([field, *(str(part) for part in first["loc"])])
        known = ", ".join(model.model_fields)
        what = f"unknown; there are {known}" if first["type"] == "extra_forbidden" else str(first["msg"])
        raise InvalidRequest(f"`{place}`: {what}.", param=place) from error


def _none(key_id: str) -> NotFound:
    return NotFound(f"There is no key {key_id!r}.")


def _view(row: KeyRow, text: str | None = None) -> KeyView:
    return KeyView(
        id=row.id,
        name=row.name,
        team=row.team,
        roles=row.roles,
        tags=row.tags,
        models=row.models,
        routes=row.routes,
        tools=row.tools,
        limits=row.limits,
        budgets=row.budgets,
        blocked=row.blocked,
        secrets=tuple(SecretView(each.prefix, each.created_at, each.expires_at) for each in row.secrets),
        created_by=row.owner,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        key=msgspec.UNSET if text is None else text,
    )
