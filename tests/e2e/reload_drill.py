"""Three replicas, one Valkey server, a load of mixed requests, and reload after reload on any of them.

Run by the suite for a while and by `make drill-reload` for 200 reloads. Two things are looked for: an answer whose decision
is not what its version decides, and a request sent after a reload's answer that an older version decided.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.program import Program, program
from tests.valkey import Server, valkey

CONFIG = """\
config: {{lease_s: {lease_s}, on_lease_loss: {on_lease_loss}{more}}}
backends: {{demo: {{provider: demo}}}}
models: {{m: {{backends: [demo]}}, n: {{backends: [demo]}}}}
router: {{default: m, semantic: {{enabled: false}}}}
tools: {{plugins: []}}
"""


def write_files(
    folder: Path, number: int, *, lease_s: float = 30, on_lease_loss: str = "serve", more: str = ""
) -> None:
    """The files of the version that sends `hello` to `route-NUMBER`."""
    (folder / "config").mkdir(parents=True, exist_ok=True)
    (folder / "routes").mkdir(exist_ok=True)
    text = CONFIG.format(lease_s=lease_s, on_lease_loss=on_lease_loss, more=more)
    (folder / "config" / "gateway.yaml").write_text(text)
    model = "mn"[number % 2]
    (folder / "routes" / "hello.yaml").write_text(f"route: route-{number}\nmodel: {model}\nkeywords: [hello]\n")


@contextmanager
def replica(folder: Path, redis_url: str, **variables: str) -> Iterator[Program]:
    """One process over the files in its folder."""
    with program(folder, variables={"REDIS_URL": redis_url, **variables}) as running:
        yield running


@contextmanager
def replicas(folder: Path, server: Server) -> Iterator[list[Program]]:
    """Three of them, started at the same time, on a server that nobody has used."""
    server.make_new()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:

        def start(name: str) -> Program:
            write_files(folder / name, 0)
            return stack.enter_context(replica(folder / name, server.url))

        yield list(threads.map(start, "abc"))


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer: what it said, and the last reload that had been answered when it was asked for."""

    version: str
    route: str
    strategy: str
    model: str
    floor: int

    @property
    def generation(self) -> int:
        return int(self.version.split("-")[0])


@dataclass
class Drill:
    """What happened.

    Attributes:
        routes: version -> the route and model that `hello` leads to in it.
        seen: every answer.
        failed: every request that was not answered with 200.
        busy: requests under way, by the address they were sent to.
    """

    routes: dict[str, tuple[str, str]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    reload_s: list[float] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)
    floor: int = 0

    def contradictions(self) -> list[Seen]:
        """Answers that are not what their version decides."""
        return [one for one in self.seen if not self._agrees(one)]

    def outdated(self) -> list[Seen]:
        """Answers of a version older than the last reload that had been answered when they were asked for."""
        return [one for one in self.seen if one.generation < one.floor]

    def _agrees(self, one: Seen) -> bool:
        if one.version not in self.routes:
            return False
        if one.strategy == "rule":
            return (one.route, one.model) == self.routes[one.version]
        return (one.route, one.model) == ("-", "m")


async def load(
    drill: Drill, http: aiohttp.ClientSession, urls: list[str], stop: asyncio.Event, seed: int, pause_s: float = 0
) -> None:
    """One client: chats, streams, decisions, by rule, by default and by name, on replicas in turn, with this pause before each."""
    dice = random.Random(seed)
    while not stop.is_set():
        await asyncio.sleep(pause_s)
        url = dice.choice(urls)
        drill.busy[url] += 1
        kind = dice.choice(["hello", "hello", "default", "explicit"])
        body: dict[str, Any] = {
            "model": "m" if kind == "explicit" else "auto",
            "messages": [{"role": "user", "content": f"{'hello' if kind == 'hello' else 'well'} {dice.random()}"}],
        }
        asks = dice.choice(["chat", "stream", "route"])
        floor = drill.floor
        try:
            if asks == "route":
                async with http.post(f"{url}/v1/route", json=body) as response:
                    found = await response.json()
                    if response.status != 200:
                        raise ValueError(found)
                    drill.seen.append(
                        Seen(found["version"], found["route"] or "-", found["strategy"], found["model"], floor)
                    )
                continue
            body["stream"] = asks == "stream"
            async with http.post(f"{url}/v1/chat/completions", json=body) as response:
                text = await response.read()
                if response.status != 200 or (asks == "stream" and b"[DONE]" not in text):
                    raise ValueError(text)
                head = response.headers
                drill.seen.append(
                    Seen(
                        head["x-gateway-version"],
                        head["x-gateway-route"],
                        head["x-gateway-strategy"],
                        head["x-gateway-model"],
                        floor,
                    )
                )
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            drill.failed.append(repr(error))
        finally:
            drill.busy[url] -= 1


async def state(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What `GET /v1/config` says."""
    async with http.get(f"{url}/v1/config") as response:
        found: dict[str, Any] = await response.json()
        return found


async def run(running: list[Program], reloads: int, seconds: float, clients: int = 6) -> Drill:
    """Reload until both bounds are kept: at most `reloads` of them, for at most `seconds`."""
    drill = Drill()
    stop = asyncio.Event()
    urls = [one.url for one in running]
    dice = random.Random(7)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        write_files(running[0].folder, 0)
        async with http.post(f"{urls[0]}/v1/reload") as response:
            assert response.status == 200, await response.text()
            drill.routes[(await response.json())["version"]] = ("route-0", "m")
        tasks = [asyncio.create_task(load(drill, http, urls, stop, seed)) for seed in range(clients)]
        until = time.monotonic() + seconds
        try:
            for number in range(1, reloads + 1):
                if time.monotonic() > until:
                    break
                one = dice.choice(running)
                write_files(one.folder, number)
                begun = time.monotonic()
                async with http.post(f"{one.url}/v1/reload") as response:
                    found = await response.json()
                    assert response.status == 200, found
                drill.reload_s.append(time.monotonic() - begun)
                drill.routes[found["version"]] = (f"route-{number}", "mn"[number % 2])
                drill.floor = found["generation"]
        finally:
            stop.set()
            await asyncio.gather(*tasks)
    return drill


def drill(folder: Path, reloads: int, seconds: float) -> Drill:
    """The whole of it, in a folder of its own."""
    with valkey() as server, replicas(folder, server) as running:
        return asyncio.run(run(running, reloads, seconds))


def main() -> int:
    """Run it and say what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reloads", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = drill(Path(folder), arguments.reloads, arguments.seconds)
    times = sorted(found.reload_s)
    report = {
        "reloads": len(times),
        "reload_s": {"median": round(times[len(times) // 2], 3), "highest": round(times[-1], 3)},
        "answers": len(found.seen),
        "versions_seen": len({one.version for one in found.seen}),
        "failed": len(found.failed),
        "contradictions": len(found.contradictions()),
        "outdated": len(found.outdated()),
    }
    print(json.dumps(report, indent=2))
    for one in [*found.contradictions(), *found.outdated(), *found.failed][:5]:
        print(one, file=sys.stderr)
    return int(bool(found.failed or found.contradictions() or found.outdated()))


if __name__ == "__main__":
    sys.exit(main())
