"""The measurement itself: rows of work, each given to its subjects in turn, round after round.

Interleaved, and in another order each round, so that a slow minute of the machine hits all of them alike. What counts
is the ratio within a round; the median over rounds is what is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from bench.load import Load, closed_loop
from bench.probe import Target, open_loop, percentile
from bench.request import PROMPT_BYTES, requests
from bench.subjects import Subject

WARM_UP_S: Final = 0.3


# Subjects that are gateways: the usual one, and one whose callers are limited by counters in a shared server.
GATEWAYS = ("gateway", "limited")


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work.

    Attributes:
        name: how it is asked for and printed.
        path: where the mock and the relay serve it; the gateway always gets `/v1`.
        word: what in the prompt makes the gateway choose the same.
        subjects: who does it.
        connections: of the closed loop.
        probe_rate: requests a second of the light load, 0 for none.
        prompt_bytes: length of the prompt.
        tools: how many tools of the client's own the request offers.
    """

    name: str
    stream: bool
    path: str = "/v1"
    word: str = "lane"
    subjects: tuple[str, ...] = ("direct", "relay", "gateway", "limited")
    connections: int = 64
    probe_rate: float = 0.0
    prompt_bytes: int = PROMPT_BYTES
    tools: int = 0

    def target(self, subject: Subject) -> tuple[str, Callable[[], bytes]]:
        """The URL and the requests for this subject."""
        url = subject.url + ("/v1" if subject.name in GATEWAYS else self.path)
        more = {"tools": [_tool(number) for number in range(self.tools)]} if self.tools else None
        asking = requests(url, stream=self.stream, word=self.word, prompt_bytes=self.prompt_bytes, more=more)
        return url, asking


def _tool(number: int) -> dict[str, Any]:
    about = "Look up an order by its number, and say where it is, when it comes and what it holds."
    named = {"type": "string", "description": "The order's number, for example SO-2024-0318"}
    parameters = {"type": "object", "properties": {"order_id": named}, "required": ["order_id"]}
    return {
        "type": "function",
        "function": {"name": f"look_up_{number}", "description": about, "parameters": parameters},
    }


ROWS: Final = (
    Row("json", stream=False, probe_rate=50),
    Row("stream", stream=True, probe_rate=50),
    # Fewer connections: 64 streams of 53 writes each would measure the mock's timers.
    Row("stream-paced", stream=True, path="/paced/v1", word="lanepaced", connections=16),
    Row("json-compatible", stream=False, word="lanecompatible", subjects=("relay", "gateway")),
    Row("stream-compatible", stream=True, word="lanecompatible", subjects=("relay", "gateway")),
    # What is large: each beside the relay, and beside the usual row.
    Row("json-200kb", stream=False, subjects=("relay", "gateway"), connections=16, prompt_bytes=200_000),
    Row("json-64-tools", stream=False, subjects=("relay", "gateway"), tools=64),
    Row("stream-2000", stream=True, path="/long/v1", word="lanelong", subjects=("relay", "gateway"), connections=16),
    Row("json-tool-round", stream=False, path="/tools/v1", word="lanetool", subjects=("gateway",)),
    Row("stream-tool-round", stream=True, path="/tools/v1", word="lanetool", subjects=("gateway",)),
    # Each commits five times before it answers: with more connections than this they would wait for the disk, not work.
    Row("json-write-round", stream=False, path="/writes/v1", word="lanewrite", subjects=("gateway",), connections=16),
    Row("stream-write-round", stream=True, path="/writes/v1", word="lanewrite", subjects=("gateway",), connections=16),
)


@dataclass(slots=True)
class Samples:
    """What was measured: windows by row and subject, one a round; light-load latencies in milliseconds."""

    loads: dict[str, dict[str, list[Load]]] = field(default_factory=dict)
    latencies: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    errors: int = 0

    def cpu_ms(self, row: str, subject: str) -> float:
        """Median CPU milliseconds per request; NaN when it wasn't measured."""
        return _median([load.cpu_ms for load in self.loads.get(row, {}).get(subject, [])])

    def per_second(self, row: str, subject: str) -> float:
        """Median requests a second; NaN when it wasn't measured."""
        return _median([load.per_second for load in self.loads.get(row, {}).get(subject, [])])

    def ratios(self, row: str, subject: str = "gateway", reference: str = "relay") -> list[float]:
        """CPU per request of one subject over another's, for each round in which both were measured."""
        of = self.loads.get(row, {})
        pairs = zip(of.get(subject, []), of.get(reference, []), strict=False)
        return [ours.cpu_ms / theirs.cpu_ms for ours, theirs in pairs if ours.requests and theirs.requests]

    def added_ms(self, row: str, subject: str, share: float, kind: str = "total") -> float:
        """What a subject adds to this percentile of the direct latency; NaN when it wasn't measured."""
        of = self.latencies.get(row, {})
        if subject not in of or "direct" not in of:
            return math.nan
        return percentile(of[subject][kind], share) - percentile(of["direct"][kind], share)


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


async def measure(
    rows: Sequence[Row],
    subjects: Mapping[str, Subject],
    *,
    rounds: int,
    seconds: float,
    probe_s: float,
    tell: Callable[[str], None],
) -> Samples:
    """Measure all rows: `rounds` windows of `seconds` for each subject, then a light load of `probe_s`, if any."""
    samples = Samples()
    for number in range(rounds):
        for row in rows:
            names = [name for name in row.subjects if name in subjects]
            # The other way round every second time: whoever comes first finds the caches of another subject.
            for name in names if number % 2 == 0 else reversed(names):
                tell(f"round {number + 1}/{rounds}: {row.name}, {name}")
                load = await _window(row, subjects[name], seconds)
                samples.loads.setdefault(row.name, {}).setdefault(name, []).append(load)
                samples.errors += load.errors
    for row in rows:
        if row.probe_rate and probe_s and "direct" in subjects:
            tell(f"light load: {row.name}")
            targets = {name: Target(*row.target(subjects[name])) for name in row.subjects if name in subjects}
            await open_loop(targets, rate=row.probe_rate, seconds=probe_s)
            samples.latencies[row.name] = {
                name: {"total": target.total_ms, "first": target.first_ms} for name, target in targets.items()
            }
            samples.errors += sum(target.errors for target in targets.values())
    return samples


async def _window(row: Row, subject: Subject, seconds: float) -> Load:
    url, request = row.target(subject)
    return await closed_loop(
        url, request, connections=row.connections, warm_up_s=WARM_UP_S, seconds=seconds, cpu_s=subject.cpu_s
    )
