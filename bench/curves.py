"""`python -m bench.curves FILE`: how figures grow, as curves: with the load, the size of a request, the number of rules and utterances.

Writes them as JSON; `bench/plots.py` draws them. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import uvloop

from bench import gateway
from bench.load import closed_loop
from bench.peer_list import Peer, peers
from bench.peer_process import served_by
from bench.peer_rounds import asking, middle, settled
from bench.probe import Target, open_loop, percentile
from bench.report import conditions
from bench.request import requests
from bench.routing_rules import LATIN, decided_in
from bench.routing_speed import decided_among
from bench.subjects import Cores, Subject, SubjectFailed, pin, running
from bench.workers import measured

_BESIDE: Final = ("nginx", "Starlette + aiohttp relay", "gateway", "TensorZero")
_RATES: Final = (50, 100, 200, 400, 800, 1200, 1600, 2000)
_PROMPTS: Final = (2_000, 8_000, 32_000, 128_000, 512_000)
_RULES: Final = (10, 100, 1_000, 10_000, 100_000)
_RULE_CHARACTERS: Final = (200, 20_000)
# Made-up utterances, and the routes that share them.
_UTTERANCES: Final = ((10, 2), (100, 10), (1_000, 50), (10_000, 100), (100_000, 500))
_QUESTIONS: Final = 100
_WORKERS: Final = (1, 2, 4)


@dataclass(slots=True)
class Curve:
    """One picture: what stands at its axes, and its lines as points (x, y) by name."""

    name: str
    title: str
    across: str
    up: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, line: str, x: float, y: float) -> None:
        """A further point of a line."""
        self.lines.setdefault(line, []).append((x, y))


async def _latency(served: list[tuple[Peer, Subject]], rounds: int, seconds: float) -> list[Curve]:
    """Percentiles of the whole answer's latency, without load up to more than some can do."""
    half = Curve("latency-p50", "Latency at p50", "requests a second", "ms")
    most = Curve("latency-p99", "Latency at p99", "requests a second", "ms")
    for rate in _RATES:
        measured: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(rounds):
            for peer, subject in served:
                target = Target(subject.url, asking(peer, subject.url, stream=False))
                await open_loop({"": target}, rate=rate, seconds=seconds)
                got = len(target.total_ms) / seconds
                shares = percentile(target.total_ms, 0.5), percentile(target.total_ms, 0.99)
                measured.setdefault(peer.name, []).append((got, *shares))
        for name, of in measured.items():
            half.add(name, rate, middle([each[1] for each in of]))
            most.add(name, rate, middle([each[2] for each in of]))
    return [half, most]


async def _sizes(subjects: dict[str, Subject], rounds: int, seconds: float) -> Curve:
    """CPU of a request by the length of its prompt."""
    curve = Curve("cpu-body", "CPU of a request by its size", "KB of prompt", "CPU ms")
    for size in _PROMPTS:
        measured: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, subject in subjects.items():
                load = await closed_loop(
                    subject.url,
                    requests(f"{subject.url}/v1", stream=False, word="lane", prompt_bytes=size),
                    connections=16,
                    warm_up_s=0.3,
                    seconds=seconds,
                    cpu_s=subject.cpu_s,
                )
                measured.setdefault(name, []).append(load.cpu_ms)
        for name, of in measured.items():
            curve.add(name, size / 1000, middle(of))
    return curve


def _rules() -> Curve:
    """A decision by rule, by the number of keywords."""
    curve = Curve("decision-rules", "A decision by rule", "keywords", "CPU µs")
    chance = random.Random(7)
    words = LATIN.words(chance, max(_RULES))
    text = LATIN.text(chance)
    for count in _RULES:
        spent = decided_in(words[:count], [text[:length] for length in _RULE_CHARACTERS])
        for length, found in zip(_RULE_CHARACTERS, spent, strict=True):
            curve.add(f"{length:,} characters", count, found)
    return curve


def _utterances() -> Curve:
    """A decision by meaning, by the number of utterances."""
    curve = Curve("decision-utterances", "A decision by meaning", "utterances", "CPU µs")
    text = LATIN.text(random.Random(7))
    questions = [text[at : at + 60] for at in range(0, 60 * _QUESTIONS, 60)]
    for count, routes in _UTTERANCES:
        decided = decided_among(count, routes, questions)
        curve.add("never seen", count, 1000 * middle(decided.cpu_ms))
        curve.add("of it routing's own", count, 1000 * decided.added_ms)
        curve.add("remembered", count, decided.remembered_us)
    return curve


async def _workers(rounds: int, seconds: float) -> Curve:
    """What groups of workers do in all: as much as the cores that mock and load leave them."""
    curve = Curve("throughput-workers", "Throughput by the number of workers", "workers", "requests a second")
    for group in await measured(_WORKERS, rounds=rounds, seconds=seconds, connections=64, encoder=None):
        curve.add("as measured", group.count, middle(group.per_second))
        curve.add("if each had a core", group.count, 1000 * group.count / middle(group.cpu_ms))
    return curve


async def _over_sockets(given: argparse.Namespace, cores: Cores) -> list[Curve]:
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=cores.load))
        served = []
        for peer in peers(given.place.resolve()):
            if peer.name in _BESIDE and peer.version is not None:
                try:
                    subject = await stack.enter_async_context(served_by(peer, mock, cores))
                except SubjectFailed as error:
                    print(f"{peer.name} did not start: {error}", file=sys.stderr)
                    continue
                await settled(peer, subject)
                served.append((peer, subject))
        curves = await _latency(served, given.rounds, given.seconds)
        # Every prompt is another one here, and is not to be judged by its meaning first.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        config, routes = gateway.write(place, mock.url)
        arguments = gateway.serving(config, routes)
        bare = await stack.enter_async_context(running("gateway", arguments, core=cores.subject, ready_path="/readyz"))
        beside = {peer.name: subject for peer, subject in served if "gateway" not in peer.name and peer.path == "/v1"}
        return [*curves, await _sizes({**beside, "gateway": bare}, given.rounds, given.seconds)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description=__doc__)
    parser.add_argument("file", type=Path, help="where the curves go, as JSON")
    parser.add_argument("--place", type=Path, required=True, help="where the peers' environments are")
    parser.add_argument("--rounds", type=int, default=3, help="of each point (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each point and round (default 2)")
    return parser.parse_args()


def main() -> int:
    """Exit code 0; 1 when the mock didn't start."""
    given = _options()
    cores = Cores.of_this_machine()
    stated = conditions(cores, rounds=given.rounds, seconds=given.seconds, probe_s=given.seconds)
    steps: tuple[Callable[[], Curve], ...] = (_rules, _utterances)
    curves = [step() for step in steps]
    curves.append(uvloop.run(_workers(given.rounds, given.seconds)))
    pin(0, cores.load)
    curves += uvloop.run(_over_sockets(given, cores))
    given.file.write_text(json.dumps({"conditions": stated, "curves": [asdict(curve) for curve in curves]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
