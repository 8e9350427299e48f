"""Open loop at a light load: what a subject adds to the latency of a request nobody else competes with.

Requests to all targets alternate on one clock, so that each sees the same noise of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.client import Answered, Client, connect

_ANSWER_TIMEOUT_S = 20.0


@dataclass(slots=True)
class Target:
    """One subject under the probe, and the answers it gave; times in milliseconds."""

    url: str
    request: Callable[[], bytes]
    total_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    errors: int = 0
    idle: list[Client] = field(default_factory=list)
    pending: dict[Client, asyncio.Future[Answered]] = field(default_factory=dict)

    def answered(self, client: Client, answer: Answered) -> None:
        """Hand the answer to who waits for it."""
        waiting = self.pending.pop(client, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def ask_once(self) -> None:
        """One request on an idle connection, or on a new one when none is idle."""
        while self.idle and self.idle[-1].closed:
            self.idle.pop()
        client = self.idle.pop() if self.idle else await connect(self.url, self.answered)
        waiting = self.pending[client] = asyncio.get_running_loop().create_future()
        client.ask(self.request())
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                answer = await waiting
        except TimeoutError:
            self.pending.pop(client, None)
            client.close()
            self.errors += 1
            return
        self.idle.append(client)
        if answer.ok:
            self.total_ms.append(1000 * answer.total_s)
            self.first_ms.append(1000 * answer.first_s)
        else:
            self.errors += 1

    def close(self) -> None:
        """Drop all connections."""
        for client in [*self.idle, *self.pending]:
            client.close()


async def open_loop(targets: Mapping[str, Target], *, rate: float, seconds: float) -> None:
    """Ask each target `rate` times a second for this long, in turn; the answers are kept in the targets."""
    try:
        for target in targets.values():
            for _ in range(10):
                await target.ask_once()
            target.total_ms.clear()
            target.first_ms.clear()
            target.errors = 0
        loop = asyncio.get_running_loop()
        start = loop.time() + 0.05
        step = 1 / rate / len(targets)
        async with asyncio.TaskGroup() as group:
            for i in range(int(rate * seconds)):
                for k, target in enumerate(targets.values()):
                    at = start + (i * len(targets) + k) * step
                    await asyncio.sleep(max(0.0, at - loop.time()))
                    group.create_task(target.ask_once())
    finally:
        for target in targets.values():
            target.close()


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of them don't exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
