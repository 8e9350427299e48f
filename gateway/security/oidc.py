"""An identity provider's tokens, read as keys: OpenID Connect's bearer tokens, checked by the provider's published keys.

Knows tokens (RFC 7519) and where their keys are. What a team may do is the key ring's. A token that was good is remembered for
as long as it lasts, a minute at most; the provider is not asked about each, so who withdraws one waits for its end.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import aiohttp
import jwt
import msgspec
from cachetools import TTLCache

from gateway.clock import Clock
from gateway.config.limits import OidcConfig
from gateway.errors import StoreUnavailable, Unauthenticated
from gateway.security.principal import Principal

# Three parts of base64url: nothing else that is sent as a key looks so.
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_LONGEST: Final = 16_384
_LONGEST_USER: Final = 256
# Seconds that clocks may differ by.
_LEEWAY_S: Final = 30
_REMEMBERED_S: Final = 60.0
_REMEMBERED: Final = 4096
# Seconds between two looks at the provider's keys: a token that names an unknown one must not be a way to knock at its door.
_LOOK_AGAIN_S: Final = 30.0
_KEYS_LAST_S: Final = 3600.0
_TIMEOUT_S: Final = 5.0
_KEYS_BYTES: Final = 262_144


class OidcTokens:
    """`Tokens` of one provider.

    Args:
        config: the provider.
        clock: time.
    """

    def __init__(self, config: OidcConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._looked_at = float("-inf")
        self._looking: asyncio.Lock = asyncio.Lock()
        self._good: TTLCache[str, tuple[Principal, float]] = TTLCache(_REMEMBERED, _REMEMBERED_S, timer=clock.monotonic)

    def is_token(self, text: str) -> bool:
        """Whether this looks like one."""
        return len(text) <= _LONGEST and _TOKEN.fullmatch(text) is not None

    async def read(self, token: str, now: float) -> Principal:
        """Whose it is.

        Raises:
            Unauthenticated: it is not this provider's, not for this gateway, not signed as it must be, or over.
            StoreUnavailable: the provider's keys cannot be read.
        """
        remembered = self._good.get(token)
        if remembered is not None:
            principal, ends_at = remembered
            if now >= ends_at + _LEEWAY_S:
                raise Unauthenticated("This token has expired.")
            return principal
        claims = await self._claims(token)
        principal = self._bearer(claims)
        self._good[token] = (principal, float(claims["exp"]))
        return principal

    async def _claims(self, token: str) -> dict[str, Any]:
        config = self._config
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(config.algorithms),
                audience=config.audience,
                issuer=config.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated("This token is not good here.") from error
        return claims

    def _bearer(self, claims: dict[str, Any]) -> Principal:
        config = self._config
        user = claims.get(config.user_claim)
        if not isinstance(user, str) or not 0 < len(user) <= _LONGEST_USER or not user.isprintable():
            raise Unauthenticated(f"This token names nobody: its claim `{config.user_claim}` is not a name.")
        team = claims.get(config.team_claim) if config.team_claim is not None else config.team
        if config.team_claim is not None and not isinstance(team, str):
            raise Unauthenticated(f"This token names no team in its claim `{config.team_claim}`.")
        said = claims.get(config.roles_claim) if config.roles_claim is not None else ()
        names = [said] if isinstance(said, str) else [name for name in said or () if isinstance(name, str)]
        roles = {role for name in names for role in config.roles.get(name, ())}
        return Principal("oidc", team=team, user=user, roles=frozenset(roles))

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        """The provider's key of this name; looked up again where it is not known, now and then."""
        now = self._clock.monotonic()
        old = now - self._looked_at
        if old >= _KEYS_LAST_S or (kid not in self._keys and old >= _LOOK_AGAIN_S):
            async with self._looking:
                if self._clock.monotonic() - self._looked_at >= _LOOK_AGAIN_S:
                    await self._look()
        if kid in self._keys:
            return self._keys[kid]
        raise Unauthenticated("This token is signed by a key that its provider does not publish.")

    async def _look(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.get(self._config.jwks_url, allow_redirects=False) as response,
            ):
                body = b""
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _KEYS_BYTES:
                        raise ValueError("too many keys")
                if response.status != 200:
                    raise ValueError(f"status {response.status}")
                found = jwt.PyJWKSet.from_dict(msgspec.json.decode(body)).keys
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError, jwt.PyJWTError) as error:
            if self._keys:
                # Keys that were good an hour ago are better than none.
                self._looked_at = self._clock.monotonic()
                return
            raise StoreUnavailable("The identity provider's keys cannot be read.") from error
        self._looked_at = self._clock.monotonic()
        # Of a single key without a name, tokens name none either.
        self._keys = {key.key_id: key for key in found}
