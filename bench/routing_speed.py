"""What a decision by meaning costs in time: cold, on one thread, and from the start of a process."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.routing_data import IntentSet
from gateway.clock import SystemClock
from gateway.config.models import RouteConfig, RouterConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoders.registry import Encoders
from gateway.routing.facts import Facts

_ASKED = 300
_START = """
import asyncio, yaml
from pathlib import Path
from gateway.clock import SystemClock
from gateway.config.models import RouteConfig, RouterConfig
from gateway.routing.composite import CompositeRouter
from gateway.routing.encoders.registry import Encoders
from gateway.routing.facts import Facts
async def main():
    encoders = Encoders()
    routes = [RouteConfig.model_validate(yaml.safe_load(path.read_text())) for path in sorted(Path("routes").glob("*.yaml"))]
    config = RouterConfig.model_validate({"default": "demo", "semantic": {"timeout_ms": 20000}})
    router = CompositeRouter(routes, config, "1-bench", encoders.get("auto"), SystemClock(), ["demo"])
    await router.prepare()
    decision = await router.decide(Facts("when does my stuff arrive"))
    assert decision.strategy == "semantic", decision
    await router.close()
    await encoders.close()
asyncio.run(main())
"""


def cold_decision(intents: IntentSet) -> list[str]:
    """p50 and p95 of decisions about texts never seen before, with 20 utterances a route, for both packaged encoders."""
    return [asyncio.run(_cold(intents, name, goal)) for name, goal in (("multilingual", 2.5), ("minilm", 5.5))]


async def _cold(intents: IntentSet, encoder: str, goal: float) -> str:
    utterances = intents.draw(20, 0)
    by_route: dict[str, list[str]] = {}
    for intent, text in zip(utterances.intents, utterances.texts, strict=True):
        by_route.setdefault(intent or "", []).append(text)
    names = {name: f"r{number}" for number, name in enumerate(sorted(by_route))}
    routes = [RouteConfig(route=names[name], model="m", utterances=tuple(texts)) for name, texts in by_route.items()]
    config = RouterConfig.model_validate({"default": "m", "semantic": {"timeout_ms": 20_000}})
    encoders = Encoders()
    router = CompositeRouter(routes, config, "1-bench", encoders.get(encoder), SystemClock(), ["m"])
    begun = time.perf_counter()
    await router.prepare()
    prepared = time.perf_counter() - begun
    spent, cpu = [], time.process_time()
    for text in intents.part("test").texts[:_ASKED]:
        begun = time.perf_counter()
        await router.decide(Facts(text))
        spent.append((time.perf_counter() - begun) * 1000)
    cpu = (time.process_time() - cpu) / len(spent) * 1000
    await router.close()
    await encoders.close()
    spent.sort()
    return (
        f"decision by meaning, {encoder}, {len(utterances)} utterances, cold: p50 {statistics.median(spent):.2f} ms, "
        f"p95 {spent[int(len(spent) * 0.95)]:.2f} ms, CPU {cpu:.2f} ms (reach p50 {goal} ms); ready after {prepared:.1f} s"
    )


def start_to_decision() -> str:
    """Wall time from the start of a process to its first decision by meaning about the routes that are shipped."""
    spent = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", _START], check=True, timeout=120, cwd=Path(__file__).resolve().parents[1])
        spent.append(time.perf_counter() - begun)
    return f"process start to first decision by meaning, shipped routes: {statistics.median(spent):.2f} s (reach 1.5 s)"
