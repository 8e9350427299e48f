"""Replicas as processes of their own: reloads under load, a rolling update, a rollback, a paused process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.program import Program, run
from tests.e2e.reload_drill import Drill, load, replica, replicas, state, write_files
from tests.e2e.reload_drill import run as run_drill
from tests.replicas import until
from tests.valkey import Server, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey() as running:
        yield running


@pytest.fixture(scope="module")
def three(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Program]]:
    """Replicas for all tests of this file: a process takes longer to start than most of them. The last test stops them."""
    with replicas(tmp_path_factory.mktemp("replicas"), server) as running:
        yield running


async def reload(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Reload, which has to succeed; the state after it."""
    async with http.post(f"{url}/v1/reload") as response:
        found: dict[str, Any] = await response.json()
        assert response.status == 200, found
        return found


async def decisions(http: aiohttp.ClientSession, urls: list[str]) -> list[tuple[str | None, str | None]]:
    """Where each sends `hello`, and its version; None where it decides nothing."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
    found = []
    for url in urls:
        async with http.post(f"{url}/v1/route", json=body) as response:
            decision = await response.json()
            found.append((decision.get("route"), decision.get("version")))
    return found


async def settled(http: aiohttp.ClientSession, urls: list[str], route: str) -> str:
    """Wait until all decide by one version that sends `hello` to this route; the version."""
    async with asyncio.timeout(60):
        while True:
            found = set(await decisions(http, urls))
            if len(found) == 1 and (one := found.pop())[0] == route:
                return str(one[1])
            await asyncio.sleep(0.05)


@pytest.mark.timeout(240)
async def test_no_answer_contradicts_its_version_and_none_is_older_than_the_last_reload(three: list[Program]) -> None:
    found = await run_drill(three, reloads=200, seconds=12)
    assert found.failed == []
    assert found.contradictions() == []
    assert found.outdated() == []
    assert len(found.reload_s) >= 5
    assert len(found.seen) > 50
    # The load met versions on their way, not only the last one.
    assert len({one.version for one in found.seen}) > len(found.reload_s) / 2


@pytest.mark.timeout(240)
async def test_the_command_rolls_back_every_replica(three: list[Program], tmp_path: Path) -> None:
    a, b, _ = three
    async with aiohttp.ClientSession() as http:
        write_files(a.folder, 1001)
        wanted = (await reload(http, a.url))["generation"]
        write_files(a.folder, 1002)
        assert (await reload(http, a.url))["generation"] == wanted + 1
        done = await asyncio.to_thread(run, tmp_path, "rollback", str(wanted), GATEWAY_URL=b.url, GATEWAY_KEY="any")
        version = (await state(http, a.url))["version"]
        assert (done.returncode, done.stdout.strip()) == (0, f"Version {version} is active on 3 replicas.")
        assert version.startswith(f"{wanted + 2}-")
        assert await decisions(http, [one.url for one in three]) == [("route-1001", version)] * 3
    gone = await asyncio.to_thread(run, tmp_path, "rollback", "77777", "--url", a.url)
    assert (gone.returncode, "are kept" in gone.stderr) == (1, True), gone.stderr


def test_the_command_says_that_it_reaches_nobody(tmp_path: Path) -> None:
    assert run(tmp_path, "rollback", "--url", "http://127.0.0.1:9").returncode == 3


@pytest.mark.timeout(240)
async def test_a_paused_replica_decides_nothing_by_what_it_knew_when_it_wakes(three: list[Program]) -> None:
    awake, paused, _ = three
    urls = [one.url for one in three]
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
    sent = asyncio.Semaphore(0)

    async def on_sent(*_: Any) -> None:
        sent.release()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(on_sent)
    async with aiohttp.ClientSession() as http, aiohttp.ClientSession(trace_configs=[trace]) as asking:
        write_files(awake.folder, 2001, lease_s=1, on_lease_loss="refuse")
        await reload(http, awake.url)
        await settled(http, urls, "route-2001")
        paused.process.send_signal(signal.SIGSTOP)
        try:
            write_files(awake.folder, 2002, lease_s=1, on_lease_loss="refuse")
            generation = (await reload(http, awake.url))["generation"]

            async def asked() -> tuple[int, Any]:
                async with asking.post(f"{paused.url}/v1/route", json=body) as response:
                    return response.status, await response.json()

            # Sent while it sleeps, answered the moment it wakes.
            waiting = [asyncio.create_task(asked()) for _ in range(8)]
            async with asyncio.timeout(30):
                for _ in waiting:
                    await sent.acquire()
        finally:
            paused.process.send_signal(signal.SIGCONT)
        for status, found in await asyncio.gather(*waiting):
            if status == 200:
                assert int(found["version"].split("-")[0]) >= generation
            else:
                assert (status, found["error"]["code"]) == (503, "config_stale")
        await settled(http, urls, "route-2002")


class Fleet:
    """Processes behind an imagined balancer: it sends to who was ready a moment ago, and keeps off who is stopped."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.fewest_ready = 99

    async def watch(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set():
            ready = 0
            for url in list(self.urls):
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(f"{url}/readyz") as response:
                        ready += response.status == 200
            self.fewest_ready = min(self.fewest_ready, ready)
            await asyncio.sleep(0.05)


@pytest.mark.timeout(480)
async def test_a_rolling_update_and_a_rollback_lose_no_request_and_leave_two_ready(
    tmp_path: Path, server: Server, three: list[Program]
) -> None:
    fleet, seen, stop = Fleet(), Drill(), asyncio.Event()
    with contextlib.ExitStack() as stack:

        async def start(name: str) -> Program:
            write_files(tmp_path / name, 3002, more=", revision: 2")
            return await asyncio.to_thread(stack.enter_context, replica(tmp_path / name, server.url))

        fleet.urls += [one.url for one in three]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            write_files(three[0].folder, 3001, more=", revision: 1")
            await reload(http, three[0].url)
            before = await settled(http, fleet.urls, "route-3001")
            tasks = [asyncio.create_task(load(seen, http, fleet.urls, stop, seed, pause_s=0.02)) for seed in range(4)]
            tasks.append(asyncio.create_task(fleet.watch(http, stop)))
            new = []
            for number, one in enumerate(three):
                # As an orchestrator does: the new one is ready, then the old one is taken out and stopped.
                another = await start(f"new-{number}")
                new.append(another)
                fleet.urls.append(another.url)
                fleet.urls.remove(one.url)
                await until(partial(idle, seen, one.url))
                assert await asyncio.to_thread(one.stop) == 0
            after = await settled(http, fleet.urls, "route-3002")
            async with http.post(f"{new[1].url}/v1/config/rollback") as response:
                found = await response.json()
                assert response.status == 200, found
            seen.floor = found["generation"]
            back = found["version"]
            assert await decisions(http, fleet.urls) == [("route-3001", back)] * 3
            await until(partial(last_is, seen, back))
            stop.set()
            await asyncio.gather(*tasks)
    seen.routes = {before: ("route-3001", "n"), after: ("route-3002", "m"), back: ("route-3001", "n")}
    assert seen.failed == []
    assert seen.contradictions() == []
    assert seen.outdated() == []
    assert fleet.fewest_ready >= 2
    assert {one.version for one in seen.seen} == {before, after, back}


async def idle(seen: Drill, url: str) -> bool:
    return seen.busy[url] == 0


async def last_is(seen: Drill, version: str) -> bool:
    return seen.seen[-1].version == version
