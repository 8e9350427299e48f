"""Replicas over a real Valkey server: one version for all, and what each does when it is cut off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from structlog.testing import capture_logs

from tests.replicas import HELLO, Replica, config, replica, until, write_files
from tests.valkey import Server, valkey

PLUGIN = '''\
from gateway.tools import tool

@tool
async def ping(host: str) -> str:
    """{words}"""
    return "pong"

def register(registry):
    registry.add(ping)
'''


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with valkey() as it:
        yield it


@pytest.fixture
def server(running: Server) -> Server:
    running.make_new()
    return running


async def three(stack: AsyncExitStack, folder: Path, server: Server, **options: Any) -> list[Replica]:
    return [await stack.enter_async_context(replica(folder / name, server, **options)) for name in "abc"]


def generation(version: str) -> int:
    return int(version.split("-", maxsplit=1)[0])


# --- One version for all -------------------------------------------------------------------------------------------


async def test_who_starts_takes_over_what_is_active_whatever_its_own_files_say(tmp_path: Path, server: Server) -> None:
    async with (
        replica(tmp_path / "a", server, config(), {"first": HELLO}) as a,
        replica(tmp_path / "b", server, config(), {"second": HELLO}) as b,
    ):
        assert await a.decided() == await b.decided()
        assert (await b.decided())[0] == "first"
        state = await b.state()
        assert (state["generation"], state["replicas"], state["stale"], state["stale_reason"]) == (1, 2, False, None)
        assert (await b.get("/metrics"))[1].splitlines().count("hermes_config_replicas 2.0") == 1


async def test_a_reload_on_one_is_a_reload_of_all_before_it_answers(tmp_path: Path, server: Server) -> None:
    async with AsyncExitStack() as stack:
        replicas = await three(stack, tmp_path, server)
        for number in range(1, 7):
            one = replicas[number % 3]
            one.write(**{f"route-{number}": HELLO})
            state = await one.reload()
            assert (state["generation"], state["replicas"]) == (number + 1, 3)
            decided = await asyncio.gather(*(each.decided() for each in replicas))
            assert decided == [(f"route-{number}", state["version"])] * 3


async def test_files_that_say_what_is_active_make_no_new_version(tmp_path: Path, server: Server) -> None:
    async with AsyncExitStack() as stack:
        a, b, _ = await three(stack, tmp_path, server)
        a.write(new=HELLO)
        state = await a.reload()
        b.write(new=HELLO)
        assert (await b.reload())["version"] == state["version"]
        assert (await a.reload())["version"] == state["version"]


async def test_reloads_at_the_same_moment_end_with_one_version(tmp_path: Path, server: Server) -> None:
    async with AsyncExitStack() as stack:
        replicas = await three(stack, tmp_path, server)
        for number, one in enumerate(replicas):
            one.write(**{f"by-{number}": HELLO})
        states = await asyncio.gather(*(one.reload() for one in replicas))
        last = max(states, key=lambda state: state["generation"])
        decided = await asyncio.gather(*(one.decided() for one in replicas))
        assert {version for _, version in decided} == {last["version"]}
        assert last["generation"] == 4


async def test_after_a_refused_reload_every_replica_shows_what_serves(tmp_path: Path, server: Server) -> None:
    """B081."""
    async with AsyncExitStack() as stack:
        a, b, c = await three(stack, tmp_path, server)
        before = await a.state()
        for text in ("route: old\nmodel: nobody\nkeywords: [hello]\n", "route: [", ""):
            (a.folder / "routes" / "old.yaml").write_text(text)
            with capture_logs() as lines:
                status, found = await a.post("/v1/reload")
            assert (status, found["error"]["code"]) == (400, "config_invalid")
            assert [line["event"] for line in lines if line["log_level"] == "error"] == [
                "reload refused; the version before still serves"
            ]
            assert (await a.state())["last_error"]["problems"][0]["file"].endswith("old.yaml")
            for each in (a, b, c):
                assert await each.decided() == ("old", before["version"])
                assert (await each.state())["version"] == before["version"]
            assert (await b.state())["last_error"] is None
        a.write(good=HELLO)
        state = await a.reload()
        assert state["last_error"] is None
        assert [await each.decided() for each in (a, b, c)] == [("good", state["version"])] * 3


async def test_removed_routes_and_models_are_gone_on_every_replica_and_new_ones_found(
    tmp_path: Path, server: Server
) -> None:
    """B082."""
    async with AsyncExitStack() as stack:
        replicas = await three(stack, tmp_path, server, routes={"legal": {"model": "m", "keywords": ["contract"]}})
        for each in replicas:
            assert (await each.decided("my contract"))[0] == "legal"
            assert (await each.decided("my flight"))[0] == "-"
        a = replicas[0]
        changed = config()
        changed["models"] = {"x": {"backends": ["demo"]}}
        changed["router"]["default"] = "x"
        write_files(a.folder, changed, {"travel": {"model": "x", "keywords": ["flight"]}})
        state = await a.reload()
        for each in replicas:
            assert await each.decided("my contract") == ("-", state["version"])
            assert await each.decided("my flight") == ("travel", state["version"])
            status, found = await each.post("/v1/chat/completions", {"model": "m", "messages": []})
            assert status in {400, 404}, found
            _, models = await each.get("/v1/models")
            assert [model["id"] for model in models["data"]] == ["auto", "x"]
            body = {"model": "auto", "messages": [{"role": "user", "content": "my flight"}]}
            _, explained = await each.post("/v1/route", body)
            assert (explained["route"], explained["version"]) == ("travel", state["version"])


async def test_variables_are_expanded_by_each_replica_and_secrets_stay_out_of_the_store(
    tmp_path: Path, server: Server
) -> None:
    settings = {**config(), "keys": {"static": {"app": {"key": "${APP_KEY}", "roles": ["admin"]}}}}
    async with (
        replica(tmp_path / "a", server, settings, variables={"APP_KEY": "secret-of-a"}) as a,
        replica(tmp_path / "b", server, settings, variables={"APP_KEY": "secret-of-b"}) as b,
    ):
        for each, key in ((a, "secret-of-a"), (b, "secret-of-b")):
            async with each.http.get(f"{each.url}/v1/config", headers={"x-api-key": key}) as response:
                assert response.status == 200
                assert (await response.json())["generation"] == 1
        with redis.Redis(port=server.port) as client:
            [(_, fields)] = client.xrange("hermes:{config}:bundles")
        assert b"${APP_KEY}" in fields[b"bundle"]
        assert b"secret-of" not in fields[b"bundle"]


# --- Revisions and rollback ----------------------------------------------------------------------------------------


async def test_a_start_with_a_higher_revision_publishes_itself_and_one_with_a_lower_does_not(
    tmp_path: Path, server: Server
) -> None:
    async with replica(tmp_path / "a", server, config(revision=4), {"four": HELLO}) as a:
        async with replica(tmp_path / "b", server, config(revision=5), {"five": HELLO}) as b:
            assert await b.decided() == ("five", (await b.state())["version"])
            await until(lambda: _decides(a, "five"))
        async with replica(tmp_path / "c", server, config(revision=4), {"four": HELLO}) as c:
            assert (await c.decided())[0] == "five"
            assert (await c.state())["generation"] == 2


async def _decides(one: Replica, route: str) -> bool:
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
    status, found = await one.post("/v1/route", body)
    return status == 200 and found["route"] == route


async def test_a_rollback_is_a_new_generation_everywhere_and_a_restart_does_not_undo_it(
    tmp_path: Path, server: Server
) -> None:
    async with AsyncExitStack() as stack:
        # A third of it is how long they may take to see that the store was emptied.
        one, two = (config(revision=revision, lease_s=9) for revision in (1, 2))
        a = await stack.enter_async_context(replica(tmp_path / "a", server, one, {"one": HELLO}))
        b = await stack.enter_async_context(replica(tmp_path / "b", server, two, {"two": HELLO}))
        status, state = await a.post("/v1/config/rollback")
        assert (status, state["generation"]) == (200, 3)
        assert [await each.decided() for each in (a, b)] == [("one", state["version"])] * 2
        async with replica(tmp_path / "b2", server, two, {"two": HELLO}) as again:
            assert (await again.decided())[0] == "one"
        # Nor where the store has forgotten what was published meanwhile.
        server.empty()
        await until(lambda: _all_at([a, b], 4))
        async with replica(tmp_path / "b3", server, two, {"two": HELLO}) as again:
            assert (await again.decided())[0] == "one"
        assert await _all_at([a, b], 4)


async def test_any_version_that_is_kept_can_be_gone_back_to(tmp_path: Path, server: Server) -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(replica(tmp_path / "a", server, routes={"one": HELLO}))
        b = await stack.enter_async_context(replica(tmp_path / "b", server))
        status, found = await b.post("/v1/config/rollback")
        assert (status, found["error"]["message"]) == (404, "There is no earlier version to go back to.")
        for name in ("two", "three"):
            a.write(**{name: HELLO})
            await a.reload()
        status, state = await b.post("/v1/config/rollback", {"generation": 2})
        assert (status, state["generation"]) == (200, 4)
        assert [await each.decided() for each in (a, b)] == [("two", state["version"])] * 2
        status, found = await a.post("/v1/config/rollback", {"generation": 77})
        assert (status, found["error"]["code"]) == (404, "not_found")
        assert "1 to 4" in found["error"]["message"]
        status, found = await a.post("/v1/config/rollback", {"generation": "x"})
        assert status == 400


# --- What cannot be proved -----------------------------------------------------------------------------------------


async def test_a_start_without_the_store_is_not_ready_and_becomes_so_when_it_is_back(
    tmp_path: Path, server: Server
) -> None:
    async with (
        replica(tmp_path / "a", server, routes={"active": HELLO}),
        replica(tmp_path / "b", server, routes={"own": HELLO}, away=True) as b,
    ):
        assert (await b.get("/healthz"))[0] == 200
        status, found = await b.get("/readyz")
        assert (status, found["error"]["code"]) == (503, "config_stale")
        assert "storage.redis" in found["error"]["message"]
        for path in ("/v1/chat/completions", "/v1/route"):
            status, found = await b.post(path, {"model": "m", "messages": [{"role": "user", "content": "x"}]})
            assert (status, found["error"]["code"]) == (503, "config_stale"), path
        assert (await b.get("/v1/models"))[0] == 503
        assert (await b.state())["stale"]
        b.wire.mend()
        await until(b.ready)
        assert (await b.decided())[0] == "active"


async def test_a_replica_with_other_plugins_is_not_ready_and_says_why(tmp_path: Path, server: Server) -> None:
    async with (
        replica(tmp_path / "a", server, plugins={"ping": PLUGIN.format(words="Ping.")}) as a,
        replica(tmp_path / "b", server, plugins={"ping": PLUGIN.format(words="Ping a host.")}) as b,
    ):
        status, found = await b.get("/readyz")
        assert (status, found["error"]["code"]) == (503, "config_stale")
        assert "plugins" in found["error"]["message"]
        assert (await a.state())["replicas"] == 1
        # Nobody waits for it.
        a.write(new=HELLO)
        await a.reload()
        assert not await b.ready()
        # What it can prove makes it ready, and so does publishing its own.
        await b.reload()
        assert await b.ready()
        status, found = await a.get("/readyz")
        assert status == 200, "serve: the last version that was proved"
        assert (await a.state())["stale"]


async def test_a_running_replica_that_cannot_prove_the_new_version_refuses_before_the_reload_answers(
    tmp_path: Path, server: Server
) -> None:
    settings = config(on_lease_loss="refuse", lease_s=6)
    async with (
        replica(tmp_path / "a", server, settings) as a,
        replica(tmp_path / "b", server, settings) as b,
    ):
        (a.folder / "plugins" / "ping.py").write_text(PLUGIN.format(words="Ping."))
        state = await a.reload()
        status, found = await b.post("/v1/route", {"model": "m", "messages": [{"role": "user", "content": "x"}]})
        assert (status, found["error"]["code"]) == (503, "config_stale")
        (problem,) = (await b.state())["last_error"]["problems"]
        assert "plugins" in problem["message"]
        (b.folder / "plugins" / "ping.py").write_text(PLUGIN.format(words="Ping."))
        await until(b.ready)
        assert (await b.state())["version"] == state["version"]
        assert (await b.state())["last_error"] is None


# --- Cut off -------------------------------------------------------------------------------------------------------


async def test_a_replica_that_is_cut_off_serves_its_last_version_and_says_so(tmp_path: Path, server: Server) -> None:
    short = config(lease_s=2)
    async with replica(tmp_path / "a", server, short) as a, replica(tmp_path / "b", server, short) as b:
        _, version = await b.decided()
        with capture_logs() as lines:
            b.wire.cut()
            await until(lambda: _stale(b))
            await until(lambda: _told(lines, "this replica is stale"))
        state = await b.state()
        assert "storage.redis" in state["stale_reason"]
        assert await b.ready()
        assert await b.decided() == ("old", version)
        assert "hermes_config_stale 1.0" in (await b.get("/metrics"))[1]
        # The others go on without it, and it can publish nothing.
        a.write(new=HELLO)
        state = await a.reload()
        assert state["replicas"] == 1
        status, found = await b.post("/v1/reload")
        assert (status, found["error"]["code"]) == (503, "store_unavailable")
        b.wire.mend()
        await until(lambda: _decides(b, "new"))
        await until(lambda: _all_at([a, b], state["generation"]))
        assert await b.decided() == ("new", state["version"])
        await until(lambda: _shows(b, "hermes_config_stale 0.0"))


async def _stale(one: Replica) -> bool:
    return bool((await one.state())["stale"])


async def _shows(one: Replica, line: str) -> bool:
    return line in (await one.get("/metrics"))[1]


async def _told(lines: list[Any], text: str) -> bool:
    return any(line["event"] == text for line in lines)


@pytest.mark.parametrize("emptied", [False, True], ids=["", "and the store has forgotten its lease"])
async def test_a_replica_that_is_cut_off_refuses_within_its_lease_and_before_a_reload_answers(
    tmp_path: Path, server: Server, emptied: bool
) -> None:
    settings = config(on_lease_loss="refuse", lease_s=1)
    async with replica(tmp_path / "a", server, settings) as a, replica(tmp_path / "b", server, settings) as b:
        before = (await b.state())["version"]
        b.wire.cut()
        if emptied:
            server.empty()
        cut = time.monotonic()
        a.write(new=HELLO)
        reload = asyncio.create_task(a.reload())
        while True:
            answered, begun = reload.done(), time.monotonic()
            status, found = await b.post(
                "/v1/route", {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
            )
            if status != 200:
                break
            # As long as it decides, nobody was told that the reload is over.
            assert not answered
            assert found["version"] == before
            assert begun < cut + 1, "its lease has ended"
        assert found["error"]["code"] == "config_stale"
        assert not await b.ready()
        state = await reload
        b.wire.mend()
        await until(lambda: _decides(b, "new"))
        assert (await b.state())["version"] == state["version"]


async def test_an_emptied_store_gets_the_active_version_back_under_a_higher_generation(
    tmp_path: Path, server: Server
) -> None:
    async with AsyncExitStack() as stack:
        replicas = await three(stack, tmp_path, server, settings=config(lease_s=6))
        for number in range(3):
            replicas[0].write(**{f"route-{number}": HELLO})
            await replicas[0].reload()
        assert (await replicas[2].state())["generation"] == 4
        server.empty()
        await until(lambda: _all_at(replicas, 5))
        assert {await each.decided() for each in replicas} == {("route-2", (await replicas[0].state())["version"])}
        # And in the first moments after that a reload is still one of all.
        replicas[1].write(last=HELLO)
        state = await replicas[1].reload()
        assert [await each.decided() for each in replicas] == [("last", state["version"])] * 3


async def _all_at(replicas: list[Replica], wanted: int) -> bool:
    return all([(await each.state())["generation"] == wanted and not await _stale(each) for each in replicas])


async def test_who_could_not_prove_what_was_lost_does_not_publish_something_older(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = config(lease_s=2)
    async with replica(tmp_path / "a", server, short) as a, replica(tmp_path / "b", server, short) as b:
        (a.folder / "plugins" / "ping.py").write_text(PLUGIN.format(words="Ping."))
        await a.reload()
        assert await _stale(b)
        a.wire.cut()
        server.empty()
        looked, look = 0, b.gateway.replica._store.active

        async def looking() -> Any:
            nonlocal looked
            found = await look()
            looked += 1
            return found

        monkeypatch.setattr(b.gateway.replica._store, "active", looking)

        async def looked_twice() -> bool:
            return looked >= 2

        await until(looked_twice)
        assert await _stale(b)
        a.wire.mend()
        await until(lambda: _all_at([a], 3))
        assert len(await a.gateway.replica._store.generations()) == 1


async def test_a_store_that_somebody_new_filled_first_gets_the_active_version_back(
    tmp_path: Path, server: Server
) -> None:
    short = config(lease_s=2)
    async with replica(tmp_path / "a", server, short) as a:
        for number in range(3):
            a.write(**{f"route-{number}": HELLO})
            await a.reload()
        a.wire.cut()
        server.empty()
        async with replica(tmp_path / "b", server, short, {"unaware": HELLO}) as b:
            assert await b.decided() == ("unaware", (await b.state())["version"])
            a.wire.mend()
            await until(lambda: _all_at([a, b], 5))
            assert (await b.decided())[0] == "route-2"


async def test_who_stops_gives_its_lease_back(tmp_path: Path, server: Server) -> None:
    async with replica(tmp_path / "a", server, config()) as a:
        async with replica(tmp_path / "b", server):
            await until(lambda: _counts(a, 1, 2))
        leases = await a.gateway.replica._store.leases()
        assert list(leases.acknowledged) == [a.gateway.replica.name]


async def _counts(one: Replica, low: int, high: int) -> bool:
    return low <= int((await one.state())["replicas"]) <= high


# --- Watching ------------------------------------------------------------------------------------------------------


async def test_a_change_of_the_files_is_a_reload_where_that_is_asked_for(tmp_path: Path, server: Server) -> None:
    async with (
        replica(tmp_path / "a", server, config(watch=True)) as a,
        replica(tmp_path / "b", server, config(watch=True)) as b,
    ):
        b.write(seen=HELLO)
        await until(lambda: _decides(a, "seen"))
        (b.folder / "routes" / "seen.yaml").write_text("route: [")
        await until(lambda: _refused(b))
        assert (await b.decided())[0] == "seen"
        text = yaml.safe_dump({**config(watch=True), "aliases": {"other": "m"}})
        b.write(again=HELLO)
        (b.folder / "gateway.yaml").write_text(text)
        await until(lambda: _decides(a, "again"))
        assert (await b.state())["last_error"] is None


async def _refused(one: Replica) -> bool:
    return (await one.state())["last_error"] is not None
