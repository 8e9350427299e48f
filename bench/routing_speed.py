"""What a decision by meaning costs in time: never seen before, remembered, and from the start of a process.

The machine is measured in the same run: of each decision the part that the encoder's own computation took, on the same
text, is told apart. What remains is what routing adds.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.routing_data import IntentSet
from bench.routing_rules import microseconds
from gateway.clock import SystemClock
from gateway.config.models import RouteConfig, RouterConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoder import Encoder
from gateway.routing.encoders.batching import BatchingEncoder
from gateway.routing.encoders.minilm_onnx import MiniLMEncoder
from gateway.routing.encoders.remembering import RememberingEncoder
from gateway.routing.encoders.use_multilingual import MultilingualEncoder
from gateway.routing.encoders.wrapped import WrappedEncoder
from gateway.routing.facts import Facts

# One text's encoding on a quiet machine, milliseconds, and what the whole decision may take there.
_ENCODER_ALONE = {"multilingual": 1.6, "minilm": 4.4}
_REACH = {"multilingual": 2.5, "minilm": 5.5}
_ASKED = 300
_REMEMBERED_BATCH = 50
_STARTS = 5
# Made-up utterances, and the routes that share them.
_SIZES = ((10, 2), (1_000, 50), (100_000, 500))
# How far a made-up utterance is from its route's middle.
_SPREAD = 0.8

_START = """
import asyncio, sys, yaml
from pathlib import Path
from gateway.clock import SystemClock
from gateway.config.models import RouteConfig, RouterConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoders.registry import Encoders
from gateway.routing.facts import Facts
async def main(name, question):
    encoders = Encoders()
    routes = [RouteConfig.model_validate(yaml.safe_load(path.read_text())) for path in sorted(Path("routes").glob("*.yaml"))]
    config = RouterConfig.model_validate({"default": "demo", "semantic": {"timeout_ms": 20000}})
    router = CompositeRouter(routes, config, "1-bench", encoders.get(name), SystemClock(), ["demo"])
    await router.prepare()
    decision = await router.decide(Facts(question))
    assert decision.strategy == "semantic", decision
    await router.close()
    await encoders.close()
asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


class _TimedMultilingual(MultilingualEncoder):
    """Keeps how long each computation took, without the way there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[float] = []

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        return _timed(self.spent, super()._encode, texts)


class _TimedMiniLM(MiniLMEncoder):
    """The same."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[float] = []

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        return _timed(self.spent, super()._encode, texts)


def _timed(
    spent: list[float], encode: Callable[[list[str]], NDArray[np.float32]], texts: list[str]
) -> NDArray[np.float32]:
    begun = time.thread_time()
    vectors = encode(texts)
    spent.append((time.thread_time() - begun) * 1000)
    return vectors


class _MadeUp(WrappedEncoder):
    """Gives made-up vectors to made-up utterances, and the wrapped encoder's to everything else."""

    def __init__(self, inner: Encoder, known: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__(inner)
        self._known = known

    async def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if texts[0] in self._known:
            return np.stack([self._known[text] for text in texts])
        return await self._inner.encode(texts)


@dataclass(frozen=True, slots=True)
class Decided:
    """What decisions by meaning took.

    Attributes:
        cpu_ms: of each that was never seen before, CPU milliseconds.
        encoder_ms: of each, the encoder's own part.
        wall_ms: of each, by the clock.
        learnt_s: CPU seconds before the first.
        remembered_us: CPU microseconds of one that was seen before.
    """

    cpu_ms: Sequence[float]
    encoder_ms: Sequence[float]
    wall_ms: Sequence[float]
    learnt_s: float
    remembered_us: float

    @property
    def added_ms(self) -> float:
        """What routing adds to the encoder's part, the median."""
        return statistics.median(whole - part for whole, part in zip(self.cpu_ms, self.encoder_ms, strict=True))

    def said(self, what: str, alone_ms: float, reach: float | None) -> list[str]:
        """As lines; `alone_ms` is what the encoder takes on a quiet machine, where a decision shall take `reach`."""
        whole, part = statistics.median(self.cpu_ms), statistics.median(self.encoder_ms)
        quiet = alone_ms * whole / part
        goal = "" if reach is None else f", {quiet:.2f} where the encoder takes {alone_ms:g} (reach {reach:g})"
        unseen = (
            f"decision {what}, never seen, CPU ms, p50: {whole:.2f} = encoder {part:.2f} + routing {self.added_ms:.2f}, "
            f"{whole / part:.2f} times the encoder{goal}; p95 {_p95(self.cpu_ms):.2f}; "
            f"wall p50 {statistics.median(self.wall_ms):.2f}; {1000 / statistics.fmean(self.cpu_ms):,.0f} a second and "
            f"core; head learnt in {self.learnt_s:.1f} s of CPU"
        )
        known = (
            f"decision {what}, remembered: {self.remembered_us:.1f} µs (reach 20); "
            f"{1e6 / self.remembered_us:,.0f} a second and core"
        )
        return [unseen, known]


def _encoder(name: str) -> _TimedMultilingual | _TimedMiniLM:
    return _TimedMultilingual() if name == "multilingual" else _TimedMiniLM()


def cold_decision(intents: IntentSet) -> list[str]:
    """Decisions about texts never seen before, with 20 utterances a route, for both packaged encoders."""
    utterances = intents.draw(20, 0)
    by_route: dict[str, list[str]] = {}
    for intent, text in zip(utterances.intents, utterances.texts, strict=True):
        by_route.setdefault(intent or "", []).append(text)
    routes = [_route(number, by_route[name]) for number, name in enumerate(sorted(by_route))]
    questions = intents.part("test").texts[:_ASKED]
    lines = []
    for name in ("multilingual", "minilm"):
        timed = _encoder(name)
        encoder = RememberingEncoder(BatchingEncoder(timed))
        said = f"by meaning, {name}, {len(utterances):,} utterances of {len(routes)} routes"
        decided = asyncio.run(_asked(routes, encoder, timed, questions))
        lines += decided.said(said, _ENCODER_ALONE[name], _REACH[name])
    return lines


def by_size(intents: IntentSet) -> list[str]:
    """Decisions about texts never seen before and about known ones, by the number of (made-up) utterances."""
    questions = intents.part("test").texts[:_ASKED]
    lines = []
    for count, routes in _SIZES:
        said = f"by meaning, multilingual, {count:,} made-up utterances of {routes} routes"
        lines += decided_among(count, routes, questions).said(said, _ENCODER_ALONE["multilingual"], None)
    return lines


def decided_among(count: int, routes: int, questions: Sequence[str]) -> Decided:
    """Decisions about these texts, with so many made-up utterances shared by so many routes."""
    timed = _encoder("multilingual")
    known = _made_up(count, routes, timed.dimensions)
    encoder = _MadeUp(BatchingEncoder(timed), known)
    texts = list(known)
    configs = [_route(number, texts[number::routes]) for number in range(routes)]
    return asyncio.run(_asked(configs, encoder, timed, questions))


def _made_up(count: int, routes: int, dimensions: int) -> dict[str, NDArray[np.float32]]:
    chance = np.random.default_rng(7)
    middles = chance.standard_normal((routes, dimensions), dtype=np.float32)
    vectors = np.repeat(middles[None], -(-count // routes), axis=0).reshape(-1, dimensions)[:count]
    vectors = vectors + _SPREAD * chance.standard_normal(vectors.shape, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    words = ("parcel", "refund", "invoice", "delay", "change", "address", "card", "limit", "fee", "login")
    named = (f"{words[n % 10]} {words[n // 10 % 10]} {words[n // 100 % 10]} number {n}" for n in range(count))
    return dict(zip(named, vectors, strict=True))


def _route(number: int, utterances: Iterable[str]) -> RouteConfig:
    return RouteConfig(route=f"r{number}", model="m", utterances=tuple(utterances))


async def _asked(
    routes: Sequence[RouteConfig],
    encoder: Encoder,
    timed: _TimedMultilingual | _TimedMiniLM,
    questions: Sequence[str],
) -> Decided:
    # Fixed numbers: finding them takes minutes for the largest, and a decision by them takes as long.
    config = RouterConfig.model_validate(
        {"default": "m", "semantic": {"timeout_ms": 60_000, "threshold": 0.3, "margin": 0.01}}
    )
    router = CompositeRouter(routes, config, "1-bench", encoder, SystemClock(), ["m"])
    begun = time.process_time()
    await router.prepare()
    learnt = time.process_time() - begun
    timed.spent.clear()
    wall, spent = [], []
    for text in questions:
        begun, cpu = time.perf_counter(), time.process_time()
        await router.decide(Facts(text))
        spent.append((time.process_time() - cpu) * 1000)
        wall.append((time.perf_counter() - begun) * 1000)
    remembered = await microseconds(router, Facts(questions[0]), _REMEMBERED_BATCH)
    await router.close()
    await encoder.close()
    return Decided(spent, list(timed.spent), wall, learnt, remembered)


def _p95(spent: Sequence[float]) -> float:
    return sorted(spent)[int(len(spent) * 0.95)]


def start_to_decision() -> list[str]:
    """From the start of a process to its first decision by meaning about the routes that are shipped."""
    return [
        _started("multilingual", "什么时候能收到我买的东西", 1.5),
        _started("auto", "when does my stuff arrive", None),
    ]


def _started(encoder: str, question: str, reach: float | None) -> str:
    wall, cpu = [], []
    for _ in range(_STARTS):
        begun, before = time.perf_counter(), _children()
        subprocess.run(
            [sys.executable, "-c", _START, encoder, question],
            check=True,
            timeout=300,
            cwd=Path(__file__).resolve().parents[1],
        )
        wall.append(time.perf_counter() - begun)
        cpu.append(_children() - before)
    goal = "" if reach is None else f" (reach {reach:g} s)"
    return (
        f"process start to first decision by meaning, {encoder}, shipped routes: wall {statistics.median(wall):.2f} s, "
        f"shortest {min(wall):.2f} s, CPU {statistics.median(cpu):.2f} s{goal}"
    )


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
