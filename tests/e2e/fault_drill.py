"""Three upstreams that fail in every way there is, one gateway process, and clients that check each word they get.

Run by the suite for a while and by `make faults` for 20,000 requests. Each prompt has its own answer, so that a word which
is repeated, missing or somebody else's shows. Looked for: an answer that is neither right nor one right error, one that
comes after its deadline, and whatever is left in the process when all is over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from tests.e2e.program import Program, program
from tests.upstream import (
    DONE,
    Pause,
    Reply,
    ScriptedUpstream,
    UpstreamRequest,
    _Connection,
    answer,
    body,
    error,
    f,
    hang_up,
    stream,
    u,
    words,
)

PATH = "/v1/chat/completions"
MODELS = ("ordered", "weighted", "least_busy", "fastest", "standby")
DEADLINE_S = 8.0
# What a busy machine may take on top, for both processes are on it.
LATE_S = 10.0
ERRORS = {
    429: {"rate_limit_exceeded", "queue_full"},
    502: {"upstream_error"},
    503: {"upstream_unavailable"},
    504: {"upstream_timeout"},
}


def config(bases: list[str], folder: Path) -> dict[str, Any]:
    """One model for each way to balance, and one whose backends are all but down, with a fallback."""
    names = [f"b{number}" for number, _ in enumerate(bases, 1)]
    backends: dict[str, Any] = {
        name: {
            "provider": "openai",
            "base_url": base,
            "model": "flaky",
            "api_keys": [f"{name}-key-1", f"{name}-key-2"],
            "max_concurrency": 24,
            "timeout_s": 3,
            "first_token_timeout_s": 1.5,
            "idle_timeout_s": 1.5,
        }
        for name, base in zip(names, bases, strict=True)
    }
    backends["away"] = {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "none"}
    models: dict[str, Any] = {
        balance: {"backends": names, "balance": balance, "retries": 1} for balance in MODELS if balance != "standby"
    }
    models["standby"] = {"backends": ["away"], "retries": 0, "fallbacks": ["least_busy"]}
    return {
        "storage": {"database": f"sqlite:///{folder / 'hermes.db'}"},
        "backends": backends,
        "models": models,
        "router": {"default": "ordered", "semantic": {"enabled": False}},
        "tools": {"plugins": []},
    }


def text_for(number: int) -> str:
    """The answer to the prompt with this number: words that stand nowhere else."""
    return " ".join(f"w{number}.{position}" for position in range(4 + number % 13))


class Flaky(ScriptedUpstream):
    """An upstream with moods: well, sick, or not there at all.

    Attributes:
        ills: the share of requests that go wrong.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(then=self._reply)
        self.ills = 0.1
        self.done: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._place = socket.socket()

    async def __aenter__(self) -> Self:
        # Bound and never listening: it keeps the port while nobody answers there.
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("127.0.0.1", 0))
        await self.come_back()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.close()
        await super().__aexit__(kind, error, trace)

    async def leave(self) -> None:
        """Refuse connections and drop those there are."""
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*(connection.close() for connection in list(self._open)))

    async def come_back(self) -> None:
        """Listen (again) where it was."""
        loop, port = asyncio.get_running_loop(), self._place.getsockname()[1]
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port, reuse_port=True)

    async def moods(self) -> None:
        """Change for ever."""
        while True:
            await asyncio.sleep(self._dice.uniform(0.5, 2))
            mood = self._dice.choices(["well", "sick", "away"], [5, 3, 1])[0]
            self.ills = {"well": 0.05, "sick": 0.3, "away": 1.0}[mood]
            if mood == "away":
                await self.leave()
                await asyncio.sleep(self._dice.uniform(0.2, 0.6))
                await self.come_back()
                self.ills = 0.05

    def _reply(self, request: UpstreamRequest) -> Reply:
        # What was answered is of no use any more, and there will be many.
        self.requests.clear()
        self.aborts.clear()
        asked = request.json
        text = text_for(int(asked["messages"][-1]["content"].split()[-1]))
        good = self._good(text, streamed=bool(asked.get("stream")))
        if self._dice.random() >= self.ills:
            self.done["well"] += 1
            return good
        how, ill = self._dice.choice(list(self._ills(good).items()))
        self.done[how] += 1
        return ill

    def _good(self, text: str, *, streamed: bool) -> Reply:
        return stream(words(text), f("stop"), u(5, 7), DONE) if streamed else answer(text)

    def _ills(self, good: Reply) -> dict[str, Reply]:
        half = self._dice.randrange(len(good.body))
        return {
            "429": error(
                429, "slow down", code="rate_limit_exceeded", headers={"retry-after": str(self._dice.randrange(2))}
            ),
            "500": error(500, "went wrong"),
            "503": error(503, "overloaded", headers={"retry-after": "1"}),
            "garbage": body(b"<html>hello</html>", headers={"content-type": "text/html"}),
            "garbage in JSON": body(b'{"choices": [{"mess'),
            "garbage in a stream": stream(b"data: {nonsense\n\n", DONE),
            "hangs up": hang_up(),
            "resets": good.reset_at(half),
            "ends early": good.eof_at(half),
            "cuts": good.end_at(self._dice.randrange(len(good.body) // 2)) if good.transfer == "chunked" else hang_up(),
            "stalls": good.delayed(5),
            "stalls in the middle": Reply(good.status, good.headers, (good.body[:half], Pause(5)), transfer="chunked"),
            "slow": good.delayed(0.3),
        }


@dataclass
class Found:
    """What happened.

    Attributes:
        ends: how many requests ended in which way.
        wrong: requests that ended in no right way.
    """

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    left: dict[str, tuple[float, float]] = field(default_factory=dict)
    recovered: bool = False
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def leaked(self) -> dict[str, tuple[float, float]]:
        """What there was more of afterwards than before."""
        return {name: pair for name, pair in self.left.items() if pair[1] > pair[0]}


async def one(http: aiohttp.ClientSession, url: str, number: int, dice: random.Random) -> tuple[str, str | None]:
    """Ask once; how it ended, and what was wrong with that."""
    streamed = dice.random() < 0.5
    asked = {
        "model": dice.choice(MODELS),
        "messages": [{"role": "user", "content": f"tell me {number}"}],
        "stream": streamed,
    }
    headers = {"x-gateway-deadline-ms": str(int(DEADLINE_S * 1000))}
    leaves = dice.random() < 0.02
    async with http.post(url + PATH, json=asked, headers=headers) as response:
        if leaves:
            await asyncio.sleep(dice.uniform(0, 0.05))
            response.close()
            return "left", None
        raw = await response.read()
        if response.status != 200:
            return f"error {response.status}", _error_fault(response.status, json.loads(raw)["error"])
        if not streamed:
            choice = json.loads(raw)["choices"][0]
            right = (choice["message"]["content"], choice["finish_reason"]) == (text_for(number), "stop")
            return "answered", None if right else f"{choice!r} is not the answer to {number}"
    return _streamed(raw, text_for(number))


def _error_fault(status: int, told: dict[str, Any]) -> str | None:
    right = set(told) == {"message", "type", "param", "code"} and told["code"] in ERRORS.get(status, ())
    clean = not re.search(r"127\.0\.0\.1|Traceback|key-\d", told["message"])
    return None if right and clean else f"{status} {told!r} is not a right error"


def _streamed(raw: bytes, text: str) -> tuple[str, str | None]:
    """How a stream ended, and what was wrong with it."""
    events = [event for event in raw.split(b"\n\n") if event and not event.startswith(b":")]
    if not raw.endswith(b"data: [DONE]\n\n") or not all(event.startswith(b"data: ") for event in events):
        return "stream", f"the stream of {text!r} has no end: {raw[-200:]!r}"
    said, roles, ends, failure = "", 0, list[str](), None
    for payload in (json.loads(event[6:]) for event in events[:-1]):
        if "error" in payload:
            failure = payload["error"]
            continue
        for choice in payload["choices"]:
            said += choice["delta"].get("content") or ""
            roles += "role" in choice["delta"]
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    if failure is not None:
        right = text.startswith(said) and not ends and set(failure) == {"message", "type", "param", "code"}
        return "error in stream", None if right else f"{said!r} {failure!r} {ends} is no right end of {text!r}"
    return "answered", None if (said, roles, ends) == (text, 1, ["stop"]) else f"{said!r} {roles} {ends} for {text!r}"


async def client(found: Found, http: aiohttp.ClientSession, url: str, numbers: Iterator[int], until: float) -> None:
    """Ask one after the other until nothing is left to ask, or time is up."""
    for number in numbers:
        if time.monotonic() > until:
            return
        started = time.monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S + LATE_S):
                end, fault = await one(http, url, number, random.Random(number))
        except (TimeoutError, aiohttp.ClientError, ValueError, KeyError) as failure:
            end, fault = "broken", f"{number}: {failure!r}"
        found.ends[end] += 1
        found.slowest_s = max(found.slowest_s, time.monotonic() - started)
        if fault is not None:
            found.wrong.append(fault)


async def holdings(http: aiohttp.ClientSession, running: Program) -> dict[str, float]:
    """What the process holds: files and sockets, tasks, turns, calls at backends."""
    async with http.get(f"{running.url}/metrics") as response:
        text = await response.text()
    figures = [("tasks", "hermes_tasks"), ("busy", "hermes_backend_busy"), ("waiting", "hermes_backend_waiting")]
    held = {name: sum(_figures(text, metric)) for name, metric in [*figures, ("turns", "hermes_turns")]}
    return held | {"fds": float(len(_open(running.process.pid)))}


def _open(pid: int) -> list[str]:
    """What its descriptors lead to; the database's own files apart, of which the store's connections keep a few open."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(each.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if not target.endswith((".db", ".db-wal", ".db-shm")):
            found.append(target)
    return found


def _figures(text: str, metric: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]


@asynccontextmanager
async def flaky() -> AsyncIterator[list[Flaky]]:
    """Three of them, each with its moods."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Flaky(seed)) for seed in (1, 2, 3)]


@contextmanager
def serving(folder: Path, bases: list[str]) -> Iterator[Program]:
    """The gateway process."""
    (folder / "config").mkdir(parents=True, exist_ok=True)
    (folder / "routes").mkdir(exist_ok=True)
    (folder / "config" / "gateway.yaml").write_text(yaml.safe_dump(config(bases, folder)))
    with program(folder) as running:
        yield running


async def run(folder: Path, requests: int, seconds: float, clients: int) -> Found:
    """All of it: ask, let them recover, count what is left."""
    found = Found()
    async with contextlib.AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(flaky())
        # Started beside the loop: what it waits for are the child's words, not ours.
        gateway = serving(folder, [upstream.base_url for upstream in upstreams])
        running = await asyncio.to_thread(gateway.__enter__)
        stack.callback(gateway.__exit__, None, None, None)
        async with aiohttp.ClientSession() as http:
            before = await holdings(http, running)
        moods = [asyncio.create_task(upstream.moods()) for upstream in upstreams]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            numbers = iter(range(requests))
            until = time.monotonic() + seconds
            await asyncio.gather(*(client(found, http, running.url, numbers, until) for _ in range(clients)))
            for mood in moods:
                mood.cancel()
            await asyncio.gather(*moods, return_exceptions=True)
            for upstream in upstreams:
                upstream.ills = 0
                if upstream._server is None or not upstream._server.is_serving():
                    await upstream.come_back()
                found.faults += upstream.done
            found.recovered = await _recovered(http, running.url)
        for upstream in upstreams:
            await upstream.leave()
        await _settled(found, running, before)
        for upstream in upstreams:
            await upstream.come_back()
    return found


async def _recovered(http: aiohttp.ClientSession, url: str, within_s: float = 90) -> bool:
    """Whether all breakers close and every request is answered again."""
    until, right = time.monotonic() + within_s, 0
    while right < 30 and time.monotonic() < until:
        end, fault = await one(http, url, 1_000_000 + right, random.Random(right))
        right = right + 1 if end in {"answered", "left"} and fault is None else 0
        if not right:
            await asyncio.sleep(0.25)
    return right >= 30


async def _settled(found: Found, running: Program, before: dict[str, float], within_s: float = 15) -> None:
    """Compare with before; what only needs a moment gets it."""
    until = time.monotonic() + within_s
    while True:
        async with aiohttp.ClientSession() as http:
            after = await holdings(http, running)
        found.left = {name: (before[name], after[name]) for name in before}
        if not found.leaked or time.monotonic() > until:
            return
        await asyncio.sleep(0.25)


def drill(folder: Path, requests: int, seconds: float, clients: int = 48) -> Found:
    """The whole of it, in a folder of its own."""
    return asyncio.run(run(folder, requests, seconds, clients))


def main() -> int:
    """Run it and say what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=48)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = drill(Path(folder), arguments.requests, arguments.seconds, arguments.clients)
    report = {
        "requests": found.ends.total(),
        "ends": dict(found.ends.most_common()),
        "faults": dict(found.faults.most_common()),
        "wrong": len(found.wrong),
        "slowest_s": round(found.slowest_s, 2),
        "recovered": found.recovered,
        "before_and_after": found.left,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report, indent=2))
    for fault in found.wrong[:5]:
        print(fault, file=sys.stderr)
    return int(bool(found.wrong or found.leaked or not found.recovered))


if __name__ == "__main__":
    sys.exit(main())
