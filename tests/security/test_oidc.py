"""An identity provider's tokens: whose they are, and everything that makes one not good."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.config.limits import OidcConfig, TeamConfig
from gateway.config.models import KeysConfig
from gateway.errors import NotAllowed, StoreUnavailable, Unauthenticated
from gateway.security.keys import KeyRing
from gateway.security.oidc import OidcTokens
from tests.clocks import HandClock

SECRET = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Provider:
    """Publishes keys, and signs."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [self.published(SECRET, "k1")]
        self.looks = 0
        self.away = False
        self.clock = HandClock(time.time())

    def published(self, secret: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
        return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(secret.public_key())), "kid": kid, "alg": "RS256"}

    async def serve(self, _request: web.Request) -> web.Response:
        self.looks += 1
        return web.Response(status=500) if self.away else web.json_response({"keys": self.keys})

    def token(self, secret: Any = SECRET, kid: str = "k1", algorithm: str = "RS256", **claims: Any) -> str:
        usual = {"iss": "https://id", "aud": "gateway", "sub": "eve", "exp": time.time() + 600}
        said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(said, secret, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
async def provider() -> AsyncIterator[tuple[Provider, str]]:
    it = Provider()
    app = web.Application()
    app.router.add_get("/jwks", it.serve)
    server = TestServer(app)
    await server.start_server()
    yield it, str(server.make_url("/jwks")).replace("localhost", "127.0.0.1")
    await server.close()


def tokens(provider: tuple[Provider, str], **more: Any) -> OidcTokens:
    values = {"issuer": "https://id", "audience": "gateway", "jwks_url": provider[1], **more}
    return OidcTokens(OidcConfig.model_validate(values), provider[0].clock)


def ring(reader: OidcTokens, **teams: TeamConfig) -> KeyRing:
    return KeyRing(KeysConfig(), "0.0.0.0", teams=teams, tokens=reader)


async def test_a_good_token_is_its_subjects_and_closes_the_gateway(provider: tuple[Provider, str]) -> None:
    reader = tokens(provider, team_claim="team", roles_claim="groups", roles={"ops": ["admin"], "bi": ["metrics"]})
    keys = ring(reader, red=TeamConfig(models=("m",)))
    assert not await keys.is_open()
    assert await keys.refusal_to_start() is None
    token = provider[0].token(team="red", groups=["ops", "other"])
    for _ in range(3):
        found = await keys.identify(f"Bearer {token}", None, time.time())
        assert (found.owner, found.team, sorted(found.roles)) == ("oidc/eve", "red", ["admin"])
        assert found.models == frozenset({"m"})
    assert provider[0].looks == 1
    with pytest.raises(NotAllowed):
        await keys.identify(f"Bearer {provider[0].token(team='blue')}", None, time.time())


def _none(token: str) -> str:
    """The same, not signed."""
    head = base64.urlsafe_b64encode(b'{"alg":"none","kid":"k1"}').rstrip(b"=").decode()
    return f"{head}.{token.split('.')[1]}.x"


# Times are seconds from the moment the token is made, which may be long after this file was read.
BAD: dict[str, dict[str, Any]] = {
    "over": {"exp": -120},
    "endless": {"exp": None},
    "another issuer's": {"iss": "https://evil"},
    "for another": {"aud": "other"},
    "for nobody": {"aud": None},
    "not yet": {"nbf": 600},
    "nobody's": {"sub": ""},
    "a number's": {"sub": None},
    "signed by another": {"secret": OTHER},
    "of an unknown key": {"kid": "k2"},
    "signed with a password": {"secret": "x" * 32, "algorithm": "HS256"},
}


@pytest.mark.parametrize("how", BAD)
async def test_a_token_that_is_not_good_is_nobodys(provider: tuple[Provider, str], how: str) -> None:
    keys = ring(tokens(provider))
    now = time.time()
    claims: dict[str, Any] = {
        name: now + value if isinstance(value, int) else value for name, value in BAD[how].items()
    }
    with pytest.raises(Unauthenticated):
        await keys.identify(f"Bearer {provider[0].token(**claims)}", None, now)


async def test_a_token_that_is_not_signed_is_nobodys(provider: tuple[Provider, str]) -> None:
    with pytest.raises(Unauthenticated):
        await ring(tokens(provider)).identify(f"Bearer {_none(provider[0].token())}", None, time.time())


async def test_a_remembered_token_ends_at_its_time(provider: tuple[Provider, str]) -> None:
    keys = ring(tokens(provider))
    token = provider[0].token(exp=time.time() + 20)
    await keys.identify(f"Bearer {token}", None, time.time())
    with pytest.raises(Unauthenticated, match="expired"):
        await keys.identify(f"Bearer {token}", None, time.time() + 55)


async def test_a_new_key_is_found_and_unknown_ones_do_not_knock_at_the_providers_door(
    provider: tuple[Provider, str],
) -> None:
    it = provider[0]
    keys = ring(tokens(provider))
    await keys.identify(f"Bearer {it.token()}", None, time.time())
    for number in range(20):
        with pytest.raises(Unauthenticated):
            await keys.identify(f"Bearer {it.token(kid=f'x{number}')}", None, time.time())
    assert it.looks == 1
    it.keys.append(it.published(OTHER, "k2"))
    it.clock.at += 31
    assert (await keys.identify(f"Bearer {it.token(OTHER, 'k2')}", None, time.time())).user == "eve"
    # The provider is away: what is known of it counts.
    it.away = True
    it.clock.at += 3601
    assert (await keys.identify(f"Bearer {it.token()}", None, time.time())).user == "eve"


async def test_without_the_providers_keys_nobody_is_let_in(provider: tuple[Provider, str]) -> None:
    provider[0].away = True
    with pytest.raises(StoreUnavailable):
        await ring(tokens(provider)).identify(f"Bearer {provider[0].token()}", None, time.time())


async def test_what_is_no_token_is_a_key(provider: tuple[Provider, str]) -> None:
    keys = ring(tokens(provider))
    for text in ("sk-1", "a.b", "a.b.c.d", "a.b.", "x" * 20_000 + ".b.c"):
        with pytest.raises(Unauthenticated, match="Incorrect"):
            await keys.identify(f"Bearer {text}", None, time.time())
    assert provider[0].looks == 0


@pytest.mark.parametrize("url", ["http://id.example/jwks", "ftp://x", "http://127.0.0.1.evil.example/"])
def test_a_providers_keys_come_over_https(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        OidcConfig.model_validate({"issuer": "i", "audience": "a", "jwks_url": url})
