"""Closed loop: a fixed number of connections, each asking again as soon as it is answered.

Measures how much work a saturated subject does, and its CPU time for it. Latencies under light load are `probe.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from bench.client import Answered, Client, connect


@dataclass(frozen=True, slots=True)
class Load:
    """One measured window.

    Attributes:
        requests: complete answers.
        errors: everything else that came back.
        seconds: length of the window.
        cpu_s: CPU time, user and system, that the subject used in it.
    """

    requests: int
    errors: int
    seconds: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        """Complete answers a second."""
        return self.requests / self.seconds

    @property
    def cpu_ms(self) -> float:
        """The subject's CPU milliseconds per complete answer; infinite when there was none."""
        return 1000 * self.cpu_s / self.requests if self.requests else float("inf")


async def closed_loop(
    url: str,
    request: Callable[[], bytes],
    *,
    connections: int,
    warm_up_s: float,
    seconds: float,
    cpu_s: Callable[[], float],
) -> Load:
    """Load `url` for `warm_up_s` and `seconds`, of which the latter are measured. Raises OSError if it is away."""
    requests = errors = 0

    def answered(client: Client, answer: Answered) -> None:
        nonlocal requests, errors
        if answer.ok:
            requests += 1
        else:
            errors += 1
        if not client.closed:
            client.ask(request())

    clients = [await connect(url, answered) for _ in range(connections)]
    try:
        for client in clients:
            client.ask(request())
        await asyncio.sleep(warm_up_s)
        first, first_errors, first_cpu, start = requests, errors, cpu_s(), perf_counter()
        await asyncio.sleep(seconds)
        done, failed, used, took = requests - first, errors - first_errors, cpu_s() - first_cpu, perf_counter() - start
    finally:
        for client in clients:
            client.close()
    return Load(done, failed, took, used)
