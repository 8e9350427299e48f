"""`serve --workers 2`: one gateway of several processes, from its start to its end, whichever of them dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from gateway.cli import main
from tests.e2e import reload_drill
from tests.e2e.program import Program, program, run
from tests.e2e.reload_drill import state, write_files
from tests.replicas import until
from tests.upstream import ScriptedUpstream, answer

# Beside workers the supervisor has the server they agree by and, on Linux, the nursery that forks them.
ALSO = 2 if sys.platform == "linux" else 1

CONFIG = """\
config: {{lease_s: {lease_s}}}
backends:
  demo: {{provider: demo}}
  up: {{provider: openai, base_url: "{url}", model: u}}
models: {{m: {{backends: [demo]}}, slow: {{backends: [up], retries: 0}}}}
router: {{default: m, semantic: {{enabled: false}}}}
tools: {{plugins: [plugins]}}
"""


@contextmanager
def group(folder: Path, **variables: str) -> Iterator[Program]:
    """Two workers over the files in `folder`, whose temporary files are in a folder beside them."""
    (folder / "tmp").mkdir()
    with program(folder, "--workers", "2", variables={"TMPDIR": str(folder / "tmp"), **variables}) as running:
        yield running


def write(folder: Path, url: str = "http://127.0.0.1:9", lease_s: int = 100) -> None:
    for name in ("config", "routes", "plugins"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "config" / "gateway.yaml").write_text(CONFIG.format(url=url, lease_s=lease_s))
    (folder / "routes" / "hello.yaml").write_text("route: greet\nmodel: m\nkeywords: [hello]\n")


def log(running: Program, event: str) -> list[dict[str, Any]]:
    """The lines of the log that tell this."""
    lines = [json.loads(line) for line in running.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"].startswith(event)]


def workers(running: Program) -> dict[int, int]:
    """The process of each worker, as they said it themselves; of one that was replaced the newest."""
    return {one["worker"]: int(one["event"].split("[")[1][:-1]) for one in log(running, "Started server process")}


def below(pid: int) -> set[int]:
    """Processes that this one started and that are still there."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="ascii").rsplit(")", 1)[1].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.add(int(path.parent.name))
    return found


def there(pids: set[int]) -> set[int]:
    """Those that still run."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z":
                found.add(pid)
    return found


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Each request on a connection of its own, so that any worker may get it."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
        yield http


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)


@pytest.mark.timeout(300)
async def test_reloads_reach_every_worker_and_whichever_is_asked_answers_for_all(tmp_path: Path) -> None:
    write_files(tmp_path, 0)
    with group(tmp_path) as running:
        found = await reload_drill.run([running], reloads=50, seconds=20, clients=4)
        assert found.failed == []
        assert found.contradictions() == []
        assert found.outdated() == []
        assert len(found.reload_s) >= 5
        assert len(found.seen) > 50
        async with client() as http, sdk(running.url) as ai:
            first = await state(http, running.url)
            assert (first["replicas"], first["last_error"], first["stale"]) == (2, None, False)
            # Whoever kept a trace, the next one who is asked has it.
            for _ in range(8):
                raw = await ai.chat.completions.with_raw_response.create(
                    model="auto", messages=[{"role": "user", "content": "hello"}]
                )
                assert raw.headers["x-gateway-version"] == first["version"]
                async with http.get(f"{running.url}/v1/traces/{raw.headers['x-gateway-trace']}") as response:
                    assert response.status == 200
            # A refused reload is known to the other worker too, until one succeeds.
            good = (tmp_path / "routes" / "hello.yaml").read_text()
            for content, status in (("nonsense: 1\n", 400), (good, 200)):
                (tmp_path / "routes" / "hello.yaml").write_text(content)
                async with http.post(f"{running.url}/v1/reload") as response:
                    assert response.status == status
                errors = [(await state(http, running.url))["last_error"] for _ in range(8)]
                assert [error is None for error in errors] == [status == 200] * 8
            async with http.get(f"{running.url}/metrics") as response:
                text = await response.text()
        # Who took which connection is the system's affair: of both, what each has from its start is shown.
        counts = [line for line in text.splitlines() if line.startswith("hermes_config_replicas{")]
        assert {line.split('worker="')[1][0] for line in counts} == {"1", "2"}
        assert text.count("# TYPE hermes_requests_total ") == 1
        assert {line["worker"] for line in log(running, "version active")} == {1, 2}


@pytest.mark.timeout(300)
async def test_a_killed_worker_is_replaced_and_the_end_lets_every_request_finish(tmp_path: Path) -> None:
    async with ScriptedUpstream(then=answer("done").held()) as upstream, client() as http:
        write(tmp_path, upstream.base_url)
        with group(tmp_path) as running:
            pids = below(running.process.pid)
            assert len(pids) == 2 + ALSO, "two workers, the server they agree by, and where workers come from"

            async def hold(count: int) -> list[asyncio.Task[str]]:
                """So many requests that wait for the upstream."""
                already = len(upstream.requests)
                body: Any = {"model": "slow", "messages": [{"role": "user", "content": "hello"}]}

                async def one() -> str:
                    async with sdk(running.url) as ai:
                        return str((await ai.chat.completions.create(**body)).choices[0].message.content)

                tasks = [asyncio.create_task(one()) for _ in range(count)]
                await upstream.received(already + count, timeout_s=60)
                return tasks

            # Kill whichever worker has some of them.
            held = await hold(8)
            ended: list[tuple[float, int]] = []
            stop = asyncio.Event()

            async def load() -> None:
                body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
                while not stop.is_set():
                    begun, status = time.monotonic(), 0
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.post(f"{running.url}/v1/chat/completions", json=body) as response:
                            await response.read()
                            status = response.status
                    ended.append((begun, status))

            loading = [asyncio.create_task(load()) for _ in range(2)]
            # Their log says which process is whose.
            await until(lambda: _is(len(workers(running)) == 2))
            victim = workers(running)[2]
            os.kill(victim, signal.SIGKILL)
            await until(lambda: _is(not there({victim})))
            killed = time.monotonic()
            # Reloads need not wait for the lease of the dead, which would run for longer than this client waits.
            async with http.post(f"{running.url}/v1/reload") as response:
                assert (response.status, (await response.json())["generation"]) == (200, 1)
            await until(lambda: _is(bool(log(running, "a worker serves"))), timeout_s=120)
            assert [(line["worker"], line["code"]) for line in log(running, "a worker ended")] == [(2, -9)]
            await until(lambda: _replicas(http, running.url, 2))
            stop.set()
            await asyncio.gather(*loading)
            assert [one for one in ended if one[1] != 200 and one[0] > killed] == []
            assert len([one for one in ended if one[1] == 200]) > 10

            lost = len(upstream.aborts)
            more = await hold(6)
            pids |= below(running.process.pid)
            running.process.send_signal(signal.SIGTERM)
            await until(lambda: _refused(http, running.url))
            upstream.release()
            answers = await asyncio.gather(*held, *more, return_exceptions=True)
            assert [one for one in answers if one != "done" and not isinstance(one, openai.APIConnectionError)] == []
            assert len([one for one in answers if one != "done"]) == lost
            assert "done" in answers[:8] or lost == 8
            assert answers[8:] == ["done"] * 6
            assert await asyncio.to_thread(running.process.wait, 60) == 0
            assert there(pids) == set()
            assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.timeout(300)
async def test_workers_and_their_server_end_with_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    write(tmp_path)
    with group(tmp_path) as running:
        pids = below(running.process.pid)
        assert len(pids) == 2 + ALSO
        running.process.kill()
        await until(lambda: _is(not there(pids)))
        assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.timeout(300)
async def test_a_replaced_worker_serves_what_is_active_though_the_files_are_being_edited(tmp_path: Path) -> None:
    write(tmp_path, lease_s=12)  # who looks at the store does so every third of it
    with group(tmp_path) as running:
        async with client() as http:
            before = (await state(http, running.url))["version"]
            (tmp_path / "routes" / "hello.yaml").write_text("route: half a fi")
            await until(lambda: _is(len(workers(running)) == 2))
            embedded = below(running.process.pid) - set(workers(running).values())
            os.kill(workers(running)[1], signal.SIGKILL)
            await until(lambda: _is(bool(log(running, "a worker serves"))), timeout_s=120)
            assert (await state(http, running.url))["version"] == before
            # The server that they agree by is replaced too; what was active is published again under a higher number.
            for pid in embedded:
                os.kill(pid, signal.SIGKILL)

            async def published_again() -> bool:
                versions = {(await state(http, running.url))["version"] for _ in range(8)}
                return len(versions) == 1 and int(versions.pop().split("-")[0]) > int(before.split("-")[0])

            await until(published_again)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers do not fork")
@pytest.mark.timeout(300)
async def test_workers_share_what_was_loaded_once_and_differ_in_what_they_make(tmp_path: Path) -> None:
    write(tmp_path)
    config = tmp_path / "config" / "gateway.yaml"
    config.write_text(config.read_text().replace("enabled: false", "encoder: minilm"))
    (tmp_path / "routes" / "pay.yaml").write_text(
        "route: pay\nmodel: m\nutterances: [give me my money back, refund it]\n"
    )
    with group(tmp_path) as running:
        async with client() as http:
            traces = set()
            for _ in range(16):
                body = {"model": "auto", "messages": [{"role": "user", "content": "refund it"}]}
                async with http.post(f"{running.url}/v1/chat/completions", json=body) as response:
                    assert (response.status, response.headers["x-gateway-route"]) == (200, "pay")
                    traces.add(response.headers["x-gateway-trace"])
            # Chance was not forked with the rest.
            assert len(traces) == 16
            await until(lambda: _is(len(workers(running)) == 2))
            served = workers(running)
            for pid in served.values():
                assert own_mb(pid) < 90, "the weights alone are 90 MB, and were read by somebody else"
            # One that takes another's place loads nothing anew, and who loads may die: then workers start by themselves.
            nursery = next(
                pid
                for pid in below(running.process.pid) - {*served.values()}  # which bear its name
                if "nursery" in command(pid)
            )
            os.kill(served[1], signal.SIGKILL)
            await until(lambda: _is(len(log(running, "a worker serves")) == 1), timeout_s=60)
            os.kill(nursery, signal.SIGKILL)
            os.kill(workers(running)[2], signal.SIGTERM)
            await until(lambda: _is(len(log(running, "a worker serves")) == 2), timeout_s=120)
            ended = [(line["worker"], line["code"]) for line in log(running, "a worker ended")]
            assert ended == [(1, -signal.SIGKILL), (2, 0)]
            assert len(log(running, "the workers' nursery does not answer")) == 1
            async with http.get(f"{running.url}/healthz") as response:
                assert response.status == 200
        pids = below(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.process.wait, 60) == 0
        assert there(pids) == set()
        assert "terminate called" not in running.log


@pytest.mark.timeout(300)
async def test_a_limit_is_one_however_many_workers_and_connections_count_against_it(tmp_path: Path) -> None:
    write(tmp_path)
    limit, asked = 40, 512
    config = tmp_path / "config" / "gateway.yaml"
    config.write_text(
        config.read_text()
        + f"keys: {{auth: required, static: {{one: {{key: sk-one, limits: {{requests_per_min: {limit}}}}},"
        " root: {key: sk-root, roles: [admin]}}}\n"
    )
    with group(tmp_path) as running:
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:

            async def one() -> int:
                headers = {"authorization": "Bearer sk-one"}
                async with http.post(f"{running.url}/v1/chat/completions", json=body, headers=headers) as response:
                    await response.read()
                    return response.status

            begun = time.monotonic()
            statuses = await asyncio.gather(*(one() for _ in range(asked)))
            seconds = time.monotonic() - begun
            assert set(statuses) == {200, 429}
            # A minute's requests at once, and what a minute's rate adds while the others are still being asked.
            assert limit <= statuses.count(200) <= limit + int(seconds * limit / 60) + 1
            async with http.get(f"{running.url}/metrics", headers={"authorization": "Bearer sk-root"}) as response:
                text = await response.text()
        served = [
            line for line in text.splitlines() if line.startswith("hermes_requests_total{") and 'worker="' in line
        ]
        by_worker = dict.fromkeys("12", 0.0)
        for line in served:
            by_worker[line.split('worker="')[1][0]] += float(line.rsplit(" ", 1)[1])
        assert sum(by_worker.values()) >= limit
        assert min(by_worker.values()) > 0, "both took part"


def own_mb(pid: int) -> float:
    """Megabytes that this process has for itself alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return (sizes["Private_Dirty"] + sizes["Private_Clean"]) * 1024 / 1e6


def command(pid: int) -> str:
    """What this process was started as; of a worker that was forked, what forked it was."""
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")


@pytest.mark.timeout(300)
def test_what_keeps_workers_from_starting_is_told_once(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "plugins" / "broken.py").write_text("raise OSError")
    done = run(tmp_path, "serve", "--workers", "3", "--port", "0", TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "broken.py" in line] == [done.stderr.splitlines()[-1]]
    assert "Try:" not in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("database", "route", "told"),
    [
        ("sqlite:///data/hermes.db", "nonsense\n", "routes/hello.yaml:1: "),
        (
            "sqlite:///:memory:",
            "route: greet\nmodel: m\nkeywords: [hello]\n",
            "With --workers the database must be a file",
        ),
    ],
)
def test_wrong_files_are_told_before_there_are_workers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    database: str,
    route: str,
    told: str,
) -> None:
    write(tmp_path)
    (tmp_path / "routes" / "hello.yaml").write_text(route)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database)
    assert main(["serve", "--workers", "3", "--port", "0"]) == 1
    shown = capsys.readouterr()
    assert (len(shown.err.splitlines()), shown.err.count(told), shown.out) == (1, 1, "")


async def _is(value: bool) -> bool:
    return value


async def _replicas(http: aiohttp.ClientSession, url: str, count: int) -> bool:
    return bool((await state(http, url))["replicas"] == count)


async def _refused(http: aiohttp.ClientSession, url: str) -> bool:
    """Whether nobody accepts connections there any more."""
    try:
        async with http.get(f"{url}/healthz"):
            return False
    except aiohttp.ClientError:
        return True
