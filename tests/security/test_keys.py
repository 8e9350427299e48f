"""Which key is whose, and when none is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.models import KeysConfig
from gateway.errors import Unauthenticated
from gateway.security.keys import KeyRing, StoredKey, digest_key, is_loopback
from gateway.security.principal import Principal

APP: dict[str, Any] = {
    "static": {"app": {"key": "app-key", "roles": ["set_user"], "tags": ["vip"], "models": ["fast"]}}
}


def ring(host: str = "127.0.0.1", **keys: Any) -> KeyRing:
    return KeyRing(KeysConfig.model_validate(keys), host)


def who(keys: KeyRing, authorization: str | None = None, api_key: str | None = None, now: float = 0) -> Principal:
    return keys.identify(authorization, api_key, now)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org", "128.0.0.1"])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("authorization", "api_key"), [(None, None), ("Bearer anything", None), (None, "x"), ("Basic x", None)]
)
def test_an_open_gateway_takes_everybody_as_this_machines_user(authorization: str | None, api_key: str | None) -> None:
    keys = ring()
    assert keys.open
    assert keys.refuse_to_start is None
    assert who(keys, authorization, api_key).key_id == "local"
    assert "admin" in who(keys).roles


@pytest.mark.parametrize(
    "keys",
    [
        ring(**APP),
        ring(admin_key="root"),
        KeyRing(KeysConfig(), "127.0.0.1", ever_created=True),
        KeyRing(KeysConfig(), "127.0.0.1", stored=[StoredKey("d", Principal("k"))]),
        ring(auth="required", **APP),
    ],
)
def test_any_key_that_ever_was_closes_the_gateway(keys: KeyRing) -> None:
    assert not keys.open
    assert keys.refuse_to_start is None
    with pytest.raises(Unauthenticated, match="No API key"):
        who(keys)
    with pytest.raises(Unauthenticated, match="Incorrect"):
        who(keys, "Bearer anything")


def test_without_a_key_other_machines_are_not_served_and_the_reason_says_what_to_do() -> None:
    keys = ring("0.0.0.0")
    assert not keys.open
    reason = keys.refuse_to_start
    assert reason is not None
    for word in ("0.0.0.0", "GATEWAY_ADMIN_KEY", "keys.static", "127.0.0.1"):
        assert word in reason
    with pytest.raises(Unauthenticated):
        who(keys)


def test_required_without_any_key_is_refused_at_the_start() -> None:
    keys = ring(auth="required")
    assert keys.refuse_to_start is not None
    assert "GATEWAY_ADMIN_KEY" in keys.refuse_to_start
    with pytest.raises(Unauthenticated):
        who(keys)


def test_a_key_is_known_by_either_header_and_carries_its_rights() -> None:
    keys = ring("0.0.0.0", **APP)
    for authorization, api_key in (("Bearer app-key", None), ("bearer  app-key ", None), (None, "app-key")):
        for _ in range(2):
            found = who(keys, authorization, api_key)
            assert (found.key_id, found.owner, found.roles, found.tags) == (
                "app",
                "app",
                frozenset({"set_user"}),
                frozenset({"vip"}),
            )
            assert found.models == frozenset({"fast"})
            assert found.routes is None


def test_a_bearer_key_goes_before_the_other_header() -> None:
    keys = ring(**APP)
    assert who(keys, "Bearer app-key", "wrong").key_id == "app"
    with pytest.raises(Unauthenticated):
        who(keys, "Bearer wrong", "app-key")
    assert who(keys, "Basic dXNlcg==", "app-key").key_id == "app"


def test_the_administrators_key_is_an_admin() -> None:
    assert "admin" in who(ring(admin_key="root"), "Bearer root").roles


@pytest.mark.parametrize(
    "authorization",
    [
        "app-key",
        "Basic app-key",
        "Bearer",
        "Bearer ",
        "Bearer app",
        "Bearer app-key-",
        "Bearer APP-KEY",
        "Bearerapp-key",
    ],
)
def test_what_is_not_exactly_the_key_is_nobody(authorization: str) -> None:
    keys = ring(**APP)
    # Warm both caches: neither header's value may pass for the other's.
    who(keys, "Bearer app-key")
    who(keys, None, "app-key")
    with pytest.raises(Unauthenticated):
        who(keys, authorization)


def test_a_bearer_header_in_the_other_header_is_nobody() -> None:
    keys = ring(**APP)
    who(keys, "Bearer app-key")
    with pytest.raises(Unauthenticated):
        who(keys, None, "Bearer app-key")


def test_a_stored_key_ends_at_its_time_though_it_was_seen_before() -> None:
    stored = StoredKey(digest_key("sk-1"), Principal("k1"), expires_at=100)
    keys = KeyRing(KeysConfig(), "127.0.0.1", stored=[stored])
    assert who(keys, "Bearer sk-1", now=99.9).key_id == "k1"
    with pytest.raises(Unauthenticated, match="expired"):
        who(keys, "Bearer sk-1", now=100)


def test_memory_stays_bounded_whatever_is_sent() -> None:
    keys = ring(**APP)
    for number in range(5000):
        who(keys, "Bearer" + " " * (number + 1) + "app-key")
        with pytest.raises(Unauthenticated):
            who(keys, f"Bearer x{number}")
    assert len(keys._bearers) <= 1024


def test_bytes_that_are_no_text_are_nobody() -> None:
    with pytest.raises(Unauthenticated):
        who(ring(**APP), "Bearer \udcff\xff")


def test_no_key_is_in_the_error() -> None:
    with pytest.raises(Unauthenticated) as caught:
        who(ring(**APP), "Bearer tell-nobody")
    assert "tell-nobody" not in str(caught.value)
