"""Engines of runs over one database and one queue, with handlers that tests write: processes without their processes.

Knows starting, stopping, killing and standing still. What is asked is the test's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.api.errors import describe
from gateway.clock import SystemClock
from gateway.config.runs import RunsConfig, WebhookConfig
from gateway.errors import GatewayError
from gateway.runs.engine import Engine, Pace
from gateway.runs.memory_queue import MemoryQueue
from gateway.runs.queue import Queue
from gateway.runs.run import Attempt, Done, Handler, NewRun
from gateway.runs.stages import Stages
from gateway.runs.valkey_queue import ValkeyQueue
from gateway.store.run_records import RunRow
from gateway.store.sql import SqlStore
from tests.valkey import Server, valkey

# Short, but for the lease: a machine that tests may stand still for seconds, and its runs are its own all the same.
PACE = Pace(lease_s=8.0, look_s=0.1, missed_s=1.0, retry_s=0.2)
# For tests in which a lease is to lapse.
BRIEF = PACE._replace(lease_s=1.5)
Execute = Callable[[RunRow, Attempt], Awaitable[Done]]


class Counted:
    """Counts that a test may look at."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.endings: list[str] = []
        self.drops = 0

    def begun(self, waited_s: float) -> None:
        self.waits.append(waited_s)

    def ended(self, status: str, total_s: float) -> None:
        self.endings.append(status)

    def dropped(self) -> None:
        self.drops += 1


class Scripted:
    """A handler that is a function."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    async def execute(self, run: RunRow, attempt: Attempt) -> Done:
        return await self._execute(run, attempt)


@dataclass
class House:
    """A database, perhaps a server, and the engines over both.

    Attributes:
        dead: holders that are known not to live.
        writing: trace ids of runs of which an effect is still being made.
    """

    store: SqlStore
    server: Server | None
    stack: AsyncExitStack
    config: RunsConfig
    webhooks: Mapping[str, WebhookConfig]
    dead: set[str] = field(default_factory=set)
    writing: set[str] = field(default_factory=set)
    engines: list[Engine] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    _ids: Any = field(default_factory=lambda: itertools.count(1))
    _memory: MemoryQueue | None = None

    def queue(self, url: str | None = None) -> Queue:
        if self.server is None:
            self._memory = self._memory or MemoryQueue(SystemClock())
            return self._memory
        queue = ValkeyQueue(url or self.server.url, "hermes:", SystemClock(), idle_s=1.0)
        self.stack.push_async_callback(queue.close)
        return queue

    def engine(
        self,
        execute: Execute,
        *,
        executes: bool = True,
        pace: Pace = PACE,
        url: str | None = None,
        kinds: tuple[str, ...] = ("chat",),
        start: bool = True,
        handler: Handler | None = None,
    ) -> Engine:
        """One more process."""

        async def writes(trace_id: str, owner: str) -> bool:
            return trace_id in self.writing

        async def nobody(_: str) -> None:
            return None

        def recorded(error: GatewayError) -> dict[str, Any]:
            return {**describe(error).as_dict(), "status": describe(error).status}

        engine = Engine(
            self.store.runs,
            self.queue(url),
            {kind: handler or Scripted(execute) for kind in kinds}.get,
            executes=executes,
            holder=f"process {len(self.engines)}",
            alive=lambda holder: holder not in self.dead,
            writes=writes,
            describe=recorded,
            named=nobody,
            config=lambda: self.config,
            webhooks=lambda: self.webhooks,
            tally=self.counted,
            clock=SystemClock(),
            stages=Stages(self.store.journal, self.store.effects),
            pace=pace,
        )
        self.engines.append(engine)
        if start:
            engine.start()
        self.stack.push_async_callback(engine.close)
        return engine

    def kill(self, engine: Engine) -> None:
        """End a process as SIGKILL does: nothing is written any more."""
        worker = engine.worker
        for task in (*worker._loops, *worker._tasks, *engine._tasks):
            task.cancel()
        for running in worker._running.values():
            if running.work is not None:
                running.work.cancel()
        if engine._keeper._task is not None:
            engine._keeper._task.cancel()
        worker._loops.clear()
        self.dead.add(worker._holder)

    async def stop_still(self, engine: Engine) -> None:
        """Have a process stand still: it lives, and nothing of it moves, its signs of life neither."""
        worker = engine.worker
        still = [*worker._loops, *([engine._keeper._task] if engine._keeper._task is not None else [])]
        for task in still:
            task.cancel()
        await asyncio.wait(still)
        worker._loops.clear()

    def go_on(self, engine: Engine) -> None:
        """Have it move again, as if nothing had been."""
        engine.worker.start()
        engine._keeper.start()

    def new(self, **more: Any) -> NewRun:
        given = {"kind": "chat", "owner": "app", "body": b"{}", "trace_id": f"{next(self._ids):032x}", **more}
        return NewRun(**given)

    async def row(self, run: str) -> RunRow:
        found = await self.store.runs.get(run, None)
        assert found is not None
        return found

    async def over(self, run: str, within_s: float = 30.0) -> RunRow:
        """The run once it has ended."""
        async with asyncio.timeout(within_s):
            while not (row := await self.row(run)).over:
                await asyncio.sleep(0.02)
        return row

    async def until(self, run: str, status: str, within_s: float = 30.0) -> RunRow:
        async with asyncio.timeout(within_s):
            while (row := await self.row(run)).status != status:
                await asyncio.sleep(0.02)
        return row


@asynccontextmanager
async def house(
    folder: Path, *, shared: bool, webhooks: Mapping[str, WebhookConfig] | None = None, **config: Any
) -> AsyncIterator[House]:
    """A database in a folder, and with `shared` a server between processes."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(valkey()) if shared else None
        if not await asyncio.to_thread((folder / "hermes.db").exists):
            await fresh_database(folder / "hermes.db")
        store = SqlStore(f"sqlite:///{folder / 'hermes.db'}")
        stack.push_async_callback(store.close)
        await store.open()
        yield House(store, server, stack, RunsConfig(**config), webhooks or {})


_FRESH: list[bytes] = []


async def fresh_database(path: Path) -> None:
    """An empty database of today's tables; made by migrations once, which take longer than most tests."""
    if not _FRESH:
        store = SqlStore(f"sqlite:///{path}")
        await store.open()
        await store.close()
        _FRESH.append(await asyncio.to_thread(path.read_bytes))
    await asyncio.to_thread(path.write_bytes, _FRESH[0])


async def done(run: RunRow, attempt: Attempt) -> Done:
    """A run that does nothing."""
    return Done(b'{"done": true}')
