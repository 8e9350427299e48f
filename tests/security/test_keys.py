"""Which key is whose, and when none is asked for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from gateway.config.limits import TeamConfig
from gateway.config.models import KeysConfig
from gateway.errors import GatewayError, InvalidRequest, NotAllowed, NotFound, StoreUnavailable, Unauthenticated
from gateway.security.key_book import STALE_S, KeyBook
from gateway.security.key_desk import KeyDesk, KeyWish
from gateway.security.keys import KeyRing, is_loopback
from gateway.security.principal import Principal
from gateway.store.key_records import KeyRow
from gateway.store.memory_keys import MemoryKeys
from tests.clocks import HandClock

APP: dict[str, Any] = {
    "static": {"app": {"key": "app-key", "roles": ["set_user"], "tags": ["vip"], "models": ["fast"]}}
}


def ring(host: str = "127.0.0.1", **keys: Any) -> KeyRing:
    return KeyRing(KeysConfig.model_validate(keys), host)


async def who(keys: KeyRing, authorization: str | None = None, api_key: str | None = None, now: float = 0) -> Principal:
    return await keys.identify(authorization, api_key, now)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org", "128.0.0.1"])
def test_everything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("authorization", "api_key"), [(None, None), ("Bearer anything", None), (None, "x"), ("Basic x", None)]
)
async def test_an_open_gateway_takes_everybody_as_this_machines_user(
    authorization: str | None, api_key: str | None
) -> None:
    keys = ring()
    assert await keys.is_open()
    assert await keys.refusal_to_start() is None
    assert (await who(keys, authorization, api_key)).key_id == "local"
    assert "admin" in (await who(keys)).roles


@pytest.mark.parametrize("keys", [APP, {"admin_key": "root"}, {"auth": "required", **APP}])
async def test_any_key_of_the_configuration_closes_the_gateway(keys: dict[str, Any]) -> None:
    closed = ring(**keys)
    assert not await closed.is_open()
    assert await closed.refusal_to_start() is None
    with pytest.raises(Unauthenticated, match="No API key"):
        await who(closed)
    with pytest.raises(Unauthenticated, match="Incorrect"):
        await who(closed, "Bearer anything")


async def test_without_a_key_other_machines_are_not_served_and_the_reason_says_what_to_do() -> None:
    keys = ring("0.0.0.0")
    assert not await keys.is_open()
    reason = await keys.refusal_to_start()
    assert reason is not None
    for word in ("0.0.0.0", "GATEWAY_ADMIN_KEY", "keys.static", "127.0.0.1"):
        assert word in reason
    with pytest.raises(Unauthenticated):
        await who(keys)


async def test_required_without_any_key_is_refused_at_the_start() -> None:
    keys = ring(auth="required")
    assert await keys.refusal_to_start() is not None
    assert "GATEWAY_ADMIN_KEY" in str(await keys.refusal_to_start())
    with pytest.raises(Unauthenticated):
        await who(keys)


async def test_a_key_is_known_by_either_header_and_carries_its_rights() -> None:
    keys = ring("0.0.0.0", **APP)
    for authorization, api_key in (("Bearer app-key", None), ("bearer  app-key ", None), (None, "app-key")):
        for _ in range(2):
            found = await who(keys, authorization, api_key)
            assert (found.key_id, found.owner, found.roles, found.tags) == (
                "app",
                "app",
                frozenset({"set_user"}),
                frozenset({"vip"}),
            )
            assert found.models == frozenset({"fast"})
            assert found.routes is None


async def test_a_bearer_key_goes_before_the_other_header() -> None:
    keys = ring(**APP)
    assert (await who(keys, "Bearer app-key", "wrong")).key_id == "app"
    with pytest.raises(Unauthenticated):
        await who(keys, "Bearer wrong", "app-key")
    assert (await who(keys, "Basic dXNlcg==", "app-key")).key_id == "app"


async def test_the_administrators_key_is_an_admin() -> None:
    assert "admin" in (await who(ring(admin_key="root"), "Bearer root")).roles


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
async def test_what_is_not_exactly_the_key_is_nobody(authorization: str) -> None:
    keys = ring(**APP)
    # Warm both caches: neither header's value may pass for the other's.
    await who(keys, "Bearer app-key")
    await who(keys, None, "app-key")
    with pytest.raises(Unauthenticated):
        await who(keys, authorization)


async def test_a_bearer_header_in_the_other_header_is_nobody() -> None:
    keys = ring(**APP)
    await who(keys, "Bearer app-key")
    with pytest.raises(Unauthenticated):
        await who(keys, None, "Bearer app-key")


async def test_memory_stays_bounded_whatever_is_sent() -> None:
    keys = ring(**APP)
    for number in range(5000):
        await who(keys, "Bearer" + " " * (number + 1) + "app-key")
        with pytest.raises(Unauthenticated):
            await who(keys, f"Bearer x{number}")
    assert len(keys._bearers) <= 1024


async def test_bytes_that_are_no_text_are_nobody() -> None:
    with pytest.raises(Unauthenticated):
        await who(ring(**APP), "Bearer \udcff\xff")


async def test_no_key_is_in_the_error() -> None:
    with pytest.raises(Unauthenticated) as caught:
        await who(ring(**APP), "Bearer tell-nobody")
    assert "tell-nobody" not in str(caught.value)


# --- Keys of the database ---


class Shop:
    """A store of keys, and what a gateway has around it."""

    def __init__(self, host: str = "127.0.0.1", teams: dict[str, TeamConfig] | None = None, **config: Any) -> None:
        self.clock = HandClock()
        self.store = CountedKeys()
        self.book = KeyBook(self.clock, self.store)
        self.desk = KeyDesk(self.store, teams or {}, self.clock)
        self.keys = KeyRing(KeysConfig.model_validate(config), host, teams=teams, book=self.book)

    async def make(self, **wish: Any) -> tuple[str, str]:
        """A key's id and its secret, made by somebody else."""
        made = await self.desk.create(KeyWish(**{"name": "n", **wish}), "admin")
        assert isinstance(made.key, str)
        return made.id, made.key

    async def who(self, key: str) -> Principal:
        return await self.keys.identify(f"Bearer {key}", None, self.clock.now())

    async def refused(self, key: str) -> str:
        with pytest.raises(GatewayError) as caught:
            await self.who(key)
        return caught.value.message


class CountedKeys(MemoryKeys):
    """Keys that count their looks, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.away = False

    async def find(self, digest: str) -> KeyRow | None:
        self.looks += 1
        if self.away:
            raise StoreUnavailable("away")
        return await super().find(digest)


async def settled() -> None:
    """Let looks that began beside a request end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_made_key_is_long_recognisable_shown_once_and_kept_as_its_hash() -> None:
    shop = Shop()
    key_id, key = await shop.make(roles=["metrics"], tags=["vip"], models=["m"], limits={"requests_per_min": 7})
    assert key.startswith("hg-")
    assert len(key) > 40
    row = await shop.store.get(key_id)
    assert row is not None
    assert key not in repr(row)
    assert row.secrets[0].digest == hashlib.sha256(key.encode()).hexdigest()
    assert row.secrets[0].prefix == key[:8]
    assert all(view.key is msgspec.UNSET for view in await shop.desk.every())
    found = await shop.who(key)
    assert found.owner == key_id
    assert [sorted(names or ()) for names in (found.roles, found.tags, found.models)] == [["metrics"], ["vip"], ["m"]]
    assert found.limits.requests_per_min == 7


async def test_the_first_key_closes_an_open_gateway_and_revoking_the_last_never_opens_it() -> None:
    shop = Shop()
    assert (await shop.who("anything")).key_id == "local"
    key_id, key = await shop.make()
    shop.clock.at += STALE_S
    assert not await shop.keys.is_open()
    assert (await shop.who(key)).key_id == key_id
    await shop.desk.revoke(key_id)
    shop.clock.at += STALE_S
    assert not await shop.keys.is_open()
    assert await shop.refused(key) == "This API key was revoked."
    reason = await shop.keys.refusal_to_start()
    assert reason is not None
    assert "keys create" in reason


async def test_an_open_gateway_whose_database_is_away_lets_nobody_in() -> None:
    shop = Shop()
    closed = KeyRing(KeysConfig(), "127.0.0.1", book=KeyBook(shop.clock))
    with pytest.raises(StoreUnavailable):
        await closed.identify(None, None, 0)


async def test_keys_taken_out_of_the_configuration_leave_the_gateway_closed() -> None:
    shop = Shop()
    shop.book.close_for_good()
    assert not await shop.keys.is_open()
    assert await shop.keys.refusal_to_start() is not None


CHANGES: dict[str, Callable[[Shop, str], Awaitable[object]]] = {
    "revoked": lambda shop, key_id: shop.desk.revoke(key_id),
    "blocked": lambda shop, key_id: shop.desk.change(key_id, KeyWish(blocked=True)),
    "expired": lambda shop, key_id: shop.desk.change(key_id, KeyWish(expires_at=shop.clock.now() + 0.001)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("roles", [[], ["admin"]])
async def test_a_key_that_ends_elsewhere_ends_here_in_time_whatever_its_role_B089(
    change: str, roles: list[str]
) -> None:
    shop = Shop()
    key_id, key = await shop.make(roles=roles)
    assert (await shop.who(key)).key_id == key_id
    await CHANGES[change](shop, key_id)
    # Used all the time, so that it is never forgotten; by the bound it is known to have ended.
    until = shop.clock.at + STALE_S
    refused_at: float | None = None
    while shop.clock.at < until + 1:
        shop.clock.at += 0.1
        try:
            await shop.who(key)
        except Unauthenticated:
            refused_at = refused_at or shop.clock.at
        else:
            assert refused_at is None, "it is never let in again"
        await settled()
    assert refused_at is not None
    assert refused_at <= until


async def test_a_change_made_here_counts_at_once_though_a_look_was_under_way_B089() -> None:
    shop = Shop()
    key_id, key = await shop.make()
    gate = asyncio.Event()
    find = shop.store.find

    async def slow(digest: str) -> KeyRow | None:
        found = await find(digest)
        await gate.wait()
        return found

    shop.store.find = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(shop.who(key))
    await settled()
    await shop.desk.revoke(key_id)
    shop.book.changed()
    gate.set()
    with pytest.raises(Unauthenticated):
        await asyncio.wait_for(asking, 5)


async def test_an_accepted_key_is_not_accepted_for_longer_while_the_database_is_away_B089() -> None:
    shop = Shop()
    _, key = await shop.make()
    await shop.who(key)
    shop.store.away = True
    shop.clock.at += STALE_S / 2
    await shop.who(key)
    await settled()
    shop.clock.at += STALE_S / 2 + 0.01
    with pytest.raises(StoreUnavailable):
        await shop.who(key)
    shop.store.away = False
    await shop.who(key)


async def test_a_role_or_limit_that_changes_holds_within_the_same_bound_B089() -> None:
    shop = Shop()
    key_id, key = await shop.make(roles=["admin"], limits={"requests_per_min": 100})
    await shop.who(key)
    await shop.desk.change(key_id, KeyWish(roles=[], limits={"requests_per_min": 1}))
    shop.clock.at += STALE_S
    found = await shop.who(key)
    assert (found.roles, found.limits.requests_per_min) == (frozenset(), 1)


async def test_a_key_in_use_is_read_once_in_a_while_and_by_one_look_at_a_time() -> None:
    shop = Shop()
    _, key = await shop.make()
    await asyncio.gather(*(shop.who(key) for _ in range(50)))
    assert shop.store.looks == 1
    for _ in range(100):
        shop.clock.at += 0.01
        await shop.who(key)
        await settled()
    assert shop.store.looks == 2


async def test_an_exchanged_secret_counts_for_the_overlap_and_the_owner_stays() -> None:
    shop = Shop()
    key_id, old = await shop.make()
    new = (await shop.desk.rotate(key_id, 3600)).key
    assert isinstance(new, str)
    shop.book.changed()
    assert (await shop.who(old)).owner == (await shop.who(new)).owner == key_id
    shop.clock.at += 3600
    assert await shop.refused(old) == "This API key has expired."
    assert (await shop.who(new)).owner == key_id
    newest = (await shop.desk.rotate(key_id, 0)).key
    assert isinstance(newest, str)
    shop.book.changed()
    assert await shop.refused(new) == "This API key has expired."
    assert (await shop.who(newest)).owner == key_id


async def test_a_key_of_another_product_is_known_by_its_hash() -> None:
    shop = Shop()
    digest = hashlib.sha256(b"sk-of-another-product").hexdigest()
    made = await shop.desk.create(KeyWish(name="old", sha256=digest.upper()), "admin")
    assert made.key is msgspec.UNSET
    assert (await shop.who("sk-of-another-product")).key_id == made.id
    with pytest.raises(InvalidRequest, match="known already"):
        await shop.desk.create(KeyWish(name="again", sha256=digest), "admin")


async def test_a_key_does_what_both_it_and_its_team_may() -> None:
    teams = {
        "t": TeamConfig(tags=("gold",), models=("m", "openai/*"), tools=("x",)),
        "u": TeamConfig(),
    }
    shop = Shop(teams=teams)
    _, key = await shop.make(team="t", models=["m", "n", "openai/gpt", "open*"], tags=["vip"])
    found = await shop.who(key)
    assert (found.team, found.routes) == ("t", None)
    assert [sorted(names or ()) for names in (found.tags, found.tools)] == [["gold", "vip"], ["x"]]
    assert sorted(found.models or ()) == ["m", "openai/*", "openai/gpt"]
    # Without what the team forbids, nothing is allowed.
    shop.keys = KeyRing(KeysConfig(), "127.0.0.1", teams={"u": teams["u"]}, book=shop.book)
    with pytest.raises(NotAllowed):
        await shop.who(key)


WRONG: dict[str, dict[str, Any]] = {
    "name": {"name": " "},
    "team": {"team": "nobody"},
    "roles": {"roles": ["root"]},
    "expires_at": {"expires_at": 5},
    "limits.requests_per_min": {"limits": {"requests_per_min": 0}},
    "limits.per_hour": {"limits": {"per_hour": 1}},
    "budgets.day": {"budgets": {"day": -1}},
    "models": {"models": [""]},
    "sha256": {"sha256": "abc"},
}


@pytest.mark.parametrize("field", WRONG)
async def test_what_a_key_cannot_be_is_refused_by_name(field: str) -> None:
    shop = Shop()
    with pytest.raises(InvalidRequest) as caught:
        await shop.make(**WRONG[field])
    assert caught.value.param == field
    assert not await shop.store.ever_created()


@pytest.mark.parametrize(
    "said", ["2099-01-31T12:00:00Z", "2099-01-31T13:00:00+01:00", "2099-01-31T12:00:00", 4073544000]
)
async def test_an_end_is_a_time_or_a_number(said: Any) -> None:
    shop = Shop()
    key_id, _ = await shop.make(expires_at=said)
    row = await shop.store.get(key_id)
    assert row is not None
    assert row.expires_at == 4073544000


async def test_a_key_that_is_not_there_cannot_be_changed() -> None:
    shop = Shop()
    for change in (
        shop.desk.revoke("key_x"),
        shop.desk.rotate("key_x", 0),
        shop.desk.change("key_x", KeyWish(name="n")),
    ):
        with pytest.raises(NotFound):
            await change
    key_id, _ = await shop.make()
    with pytest.raises(InvalidRequest):
        await shop.desk.rotate(key_id, -1)


async def test_guessers_wait_for_each_other_and_not_for_the_keys_in_use() -> None:
    shop = Shop()
    _, key = await shop.make()
    await shop.who(key)
    gate = asyncio.Event()
    find = shop.store.find

    async def slow(digest: str) -> KeyRow | None:
        if digest != hashlib.sha256(key.encode()).hexdigest():
            await gate.wait()
        return await find(digest)

    shop.store.find = slow  # type: ignore[method-assign]
    guesses = [asyncio.create_task(shop.who(f"hg-{number}")) for number in range(100)]
    await settled()
    shop.clock.at += STALE_S
    assert (await asyncio.wait_for(shop.who(key), 5)).key_id
    gate.set()
    found = await asyncio.wait_for(asyncio.gather(*guesses, return_exceptions=True), 10)
    assert all(isinstance(error, Unauthenticated) for error in found)
    await shop.book.close()


async def test_a_process_that_starts_when_every_key_has_ended_is_not_open_and_says_what_to_do() -> None:
    shop = Shop()
    key_id, _ = await shop.make()
    await shop.desk.revoke(key_id)
    started = KeyRing(KeysConfig(), "127.0.0.1", book=KeyBook(shop.clock, shop.store))
    assert not await started.is_open()
    with pytest.raises(Unauthenticated):
        await started.identify("Bearer anything", None, shop.clock.now())
    assert "keys create" in str(await started.refusal_to_start())
