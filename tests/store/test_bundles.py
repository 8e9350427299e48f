"""Bundles and leases: the same tests for this process's memory and for a real Valkey server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gateway.clock import SystemClock
from gateway.config.bundle_store import KEPT_BUNDLES, BundleStore, Published
from gateway.config.files import Files
from gateway.errors import StoreUnavailable
from gateway.store.bundles import MemoryBundles
from gateway.store.valkey import ValkeyBundles
from tests.valkey import Server, valkey, wire

FILES = Files("gateway.yaml", b"a: \xff 1", {"routes/a.yaml": b"route: a"}, b"{}", "routes")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey() as running:
        yield running


@pytest.fixture(params=["memory", "valkey"])
async def store(request: Any, server: Server) -> AsyncIterator[BundleStore]:
    if request.param == "memory":
        yield MemoryBundles(SystemClock())
        return
    server.empty()
    bundles = ValkeyBundles(server.url, "test:")
    yield bundles
    await bundles.close()


def bundle(generation: int, digest: str = "d") -> Published:
    return Published(generation, digest, 3, FILES, failing=False, at=1.5, by="one")


async def test_nothing_is_active_before_the_first_bundle(store: BundleStore) -> None:
    assert await store.active() is None
    assert await store.generations() == ()
    assert await store.earlier(1) is None
    assert (await store.leases()).acknowledged == {}


async def test_a_bundle_comes_back_as_it_was_published(store: BundleStore) -> None:
    assert await store.publish(bundle(1), 0)
    assert await store.active() == bundle(1)
    assert await store.earlier(1) == bundle(1)


async def test_only_who_knows_the_active_generation_publishes(store: BundleStore) -> None:
    assert await store.publish(bundle(1), 0)
    assert not await store.publish(bundle(1, "other"), 0)
    assert not await store.publish(bundle(5, "other"), 4)
    assert await store.publish(bundle(7), 1)
    assert [(b.generation, b.digest) for b in [await store.active()] if b] == [(7, "d")]


async def test_of_many_who_publish_at_once_one_does(store: BundleStore) -> None:
    outcomes = await asyncio.gather(*(store.publish(bundle(1, str(number)), 0) for number in range(12)))
    assert sum(outcomes) == 1
    active = await store.active()
    assert active is not None
    assert active.digest == str(outcomes.index(True))


async def test_the_last_bundles_are_kept(store: BundleStore) -> None:
    for generation in range(1, KEPT_BUNDLES + 6):
        assert await store.publish(bundle(generation), generation - 1)
    assert await store.generations() == tuple(range(6, KEPT_BUNDLES + 6))
    assert await store.earlier(5) is None
    assert await store.earlier(6) == bundle(6)


async def test_a_lease_is_for_who_serves_what_is_active(store: BundleStore) -> None:
    await store.publish(bundle(1), 0)
    grant = await store.renew("b", 5, 1)
    assert (grant.granted, grant.generation, grant.digest) == (True, 1, "d")
    assert not (await store.renew("late", 5, 0)).granted


async def test_a_live_lease_is_extended_behind_a_new_generation_and_a_lapsed_one_is_not(store: BundleStore) -> None:
    await store.publish(bundle(1), 0)
    assert (await store.renew("quick", 0.15, 1)).granted
    assert (await store.renew("slow", 5, 1)).granted
    await store.publish(bundle(2), 1)
    await until_lapsed(store, "quick")
    assert (await store.renew("slow", 5, 1)).granted
    assert not (await store.renew("quick", 5, 1)).granted
    assert (await store.leases()).acknowledged == {"slow": 1}
    assert (await store.renew("quick", 5, 2)).granted
    assert (await store.renew("slow", 5, 2)).replicas == 2
    assert (await store.leases()).acknowledged == {"slow": 2, "quick": 2}


async def until_lapsed(store: BundleStore, replica: str) -> None:
    async with asyncio.timeout(5):
        while replica in (await store.leases()).acknowledged:
            await asyncio.sleep(0.01)


async def test_a_shorter_renewal_does_not_shorten_a_lease(store: BundleStore) -> None:
    await store.publish(bundle(1), 0)
    await store.renew("a", 5, 1)
    await store.renew("a", 0.001, 1)
    await asyncio.sleep(0.02)
    assert (await store.leases()).acknowledged == {"a": 1}


async def test_a_released_lease_is_gone_at_once(store: BundleStore) -> None:
    await store.publish(bundle(1), 0)
    await store.renew("a", 5, 1)
    await store.release("a")
    await store.release("a")
    assert (await store.leases()).acknowledged == {}


async def test_who_waits_is_woken_by_a_new_generation_and_by_an_earlier_one_at_once(store: BundleStore) -> None:
    waiting = asyncio.create_task(store.changed(0, 30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await store.publish(bundle(4), 0)
    await asyncio.wait_for(waiting, 2)
    await asyncio.wait_for(store.changed(3, 30), 2)
    begun = time.monotonic()
    await store.changed(4, 0.1)
    assert 0.09 <= time.monotonic() - begun < 2


async def test_the_store_says_since_when_it_remembers_leases(store: BundleStore) -> None:
    await store.publish(bundle(1), 0)
    assert (await store.leases()).age_s < 30


async def test_an_emptied_server_remembers_no_lease_from_before(server: Server) -> None:
    store = ValkeyBundles(server.url, "test:")
    await store.publish(bundle(1), 0)
    await store.renew("a", 5, 1)
    await asyncio.sleep(0.05)
    before = (await store.leases()).age_s
    server.empty()
    assert await store.publish(bundle(9), 0)
    leases = await store.leases()
    assert leases.acknowledged == {}
    assert leases.age_s < max(before, 0.05)
    await store.close()


async def test_prefixes_keep_gateways_apart(server: Server) -> None:
    server.empty()
    one, other = ValkeyBundles(server.url, "one:"), ValkeyBundles(server.url, "other:")
    await one.publish(bundle(1), 0)
    assert await other.active() is None
    await one.close()
    await other.close()


async def test_a_server_that_is_away_is_told_without_its_address(server: Server) -> None:
    async with wire(server) as way:
        store = ValkeyBundles(way.url.replace("//", "//user:secret-password@"), "test:")
        way.cut()
        with pytest.raises(StoreUnavailable) as caught:
            await store.active()
        assert "secret" not in caught.value.message
        assert "127.0.0.1" not in caught.value.message
        way.mend()
        await store.close()


async def test_a_connection_that_broke_meanwhile_harms_nobody(server: Server) -> None:
    server.empty()
    async with wire(server) as way:
        store = ValkeyBundles(way.url, "test:")
        await store.publish(bundle(1), 0)
        way.cut()
        way.mend()
        assert await store.publish(bundle(2), 1)
        assert await store.active() == bundle(2)
        await store.close()


async def test_a_server_that_is_declared_new_has_forgotten_no_lease_until_it_is_emptied(server: Server) -> None:
    server.empty()
    bundles = ValkeyBundles(server.url, "test:")
    try:
        assert (await bundles.leases()).age_s < 3600
        await bundles.declare_new()
        await bundles.renew("one", 1, 0)
        assert (await bundles.leases()).age_s == math.inf
        server.empty()
        assert (await bundles.leases()).age_s < 3600
    finally:
        await bundles.close()
