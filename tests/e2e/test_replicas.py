"""Replicas as processes of their own: reloads under load, a rolling update, a rollback, a paused process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.program import Program, run
from tests.e2e.reload_drill import Drill, drill, load, replica, state, write_files
from tests.valkey import Server, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey() as running:
        yield running


@pytest.mark.timeout(240)
def test_no_answer_contradicts_its_version_and_none_is_older_than_the_last_reload(tmp_path: Path) -> None:
    found = drill(tmp_path, reloads=200, seconds=20)
    assert found.failed == []
    assert found.contradictions() == []
    assert found.outdated() == []
    assert len(found.reload_s) >= 5
    assert len(found.seen) > 50
    # The load met versions on their way, not only the last one.
    assert len({one.version for one in found.seen}) > len(found.reload_s) / 2


async def _settled(http: aiohttp.ClientSession, urls: list[str], route: str, *, timeout_s: float = 30) -> str:
    """Wait until all decide by one version that sends `hello` to this route; the version."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
    async with asyncio.timeout(timeout_s):
        while True:
            found = []
            for url in urls:
                async with http.post(f"{url}/v1/route", json=body) as response:
                    found.append(await response.json())
            versions = {str(one.get("version")) for one in found}
            if len(versions) == 1 and all(one.get("route") == route for one in found):
                return versions.pop()
            await asyncio.sleep(0.05)


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
            await asyncio.sleep(0.02)


@pytest.mark.timeout(240)
async def test_a_rolling_update_and_a_rollback_lose_no_request_and_leave_two_ready(
    tmp_path: Path, server: Server
) -> None:
    server.empty()
    fleet, seen, stop = Fleet(), Drill(), asyncio.Event()
    with contextlib.ExitStack() as stack:

        async def start(name: str, number: int) -> Program:
            write_files(tmp_path / name, number, more=f", revision: {number}")
            return await asyncio.to_thread(stack.enter_context, replica(tmp_path / name, server.url))

        old = [await start(f"old-{name}", 1) for name in "abc"]
        fleet.urls += [one.url for one in old]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
            before = await _settled(http, fleet.urls, "route-1")
            tasks = [asyncio.create_task(load(seen, http, fleet.urls, stop, seed)) for seed in range(4)]
            tasks.append(asyncio.create_task(fleet.watch(http, stop)))
            new = []
            for number, one in enumerate(old):
                # As an orchestrator does: the new one is ready, then the old one is taken out and stopped.
                another = await start(f"new-{number}", 2)
                new.append(another)
                fleet.urls.append(another.url)
                fleet.urls.remove(one.url)
                await asyncio.sleep(0.3)
                assert await asyncio.to_thread(one.stop) == 0
            after = await _settled(http, fleet.urls, "route-2")
            async with http.post(f"{new[1].url}/v1/config/rollback") as response:
                found = await response.json()
                assert response.status == 200, found
            seen.floor = found["generation"]
            back = await _settled(http, fleet.urls, "route-1", timeout_s=1)
            await asyncio.sleep(0.3)
            stop.set()
            await asyncio.gather(*tasks)
    seen.routes = {before: ("route-1", "n"), after: ("route-2", "m"), back: ("route-1", "n")}
    assert found["version"] == back
    assert seen.failed == []
    assert seen.contradictions() == []
    assert seen.outdated() == []
    assert fleet.fewest_ready >= 2
    assert {one.version for one in seen.seen} == {before, after, back}


@pytest.mark.timeout(120)
async def test_a_paused_replica_decides_nothing_by_what_it_knew_when_it_wakes(tmp_path: Path, server: Server) -> None:
    server.empty()
    with contextlib.ExitStack() as stack:

        async def start(name: str) -> Program:
            write_files(tmp_path / name, 0, lease_s=1, on_lease_loss="refuse")
            return await asyncio.to_thread(stack.enter_context, replica(tmp_path / name, server.url))

        awake, paused = await start("awake"), await start("paused")
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        async with aiohttp.ClientSession() as http:
            await _settled(http, [awake.url, paused.url], "route-0")
            paused.process.send_signal(signal.SIGSTOP)
            try:
                write_files(awake.folder, 1, lease_s=1, on_lease_loss="refuse")
                async with http.post(f"{awake.url}/v1/reload") as response:
                    assert response.status == 200
                    generation = (await response.json())["generation"]

                async def asked() -> tuple[int, Any]:
                    async with http.post(f"{paused.url}/v1/route", json=body) as response:
                        return response.status, await response.json()

                # Sent while it sleeps, answered the moment it wakes.
                waiting = [asyncio.create_task(asked()) for _ in range(8)]
                await asyncio.sleep(0.2)
            finally:
                paused.process.send_signal(signal.SIGCONT)
            for status, found in await asyncio.gather(*waiting):
                if status == 200:
                    assert int(found["version"].split("-")[0]) >= generation
                else:
                    assert (status, found["error"]["code"]) == (503, "config_stale")
            await _settled(http, [awake.url, paused.url], "route-1")


@pytest.mark.timeout(120)
async def test_the_command_rolls_back_every_replica(tmp_path: Path, server: Server) -> None:
    server.empty()
    with contextlib.ExitStack() as stack:
        running = []
        for name in "ab":
            write_files(tmp_path / name, 0, lease_s=1)
            running.append(await asyncio.to_thread(stack.enter_context, replica(tmp_path / name, server.url)))
        a, b = running
        gone = await asyncio.to_thread(run, tmp_path, "rollback", "--url", a.url)
        assert (gone.returncode, gone.stderr.strip()) == (1, "There is no earlier version to go back to.")
        write_files(a.folder, 1, lease_s=1)
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{b.url}/v1/reload") as response:
                assert (await response.json())["generation"] == 1, "b's own files are what is active"
            async with http.post(f"{a.url}/v1/reload") as response:
                assert (await response.json())["generation"] == 2
            done = await asyncio.to_thread(run, tmp_path, "rollback", "1", GATEWAY_URL=b.url, GATEWAY_KEY="any")
            version = (await state(http, a.url))["version"]
            assert (done.returncode, done.stdout.strip()) == (0, f"Version {version} is active on 2 replicas.")
            assert version.startswith("3-")
            await _settled(http, [a.url, b.url], "route-0", timeout_s=1)
    nobody = await asyncio.to_thread(run, tmp_path, "rollback", "--url", "http://127.0.0.1:9")
    assert nobody.returncode == 3
