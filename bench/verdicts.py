"""What the gateway may cost beside its peers, and whether it did: at most, and better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.peer_rounds import Found, middle


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is asked for: CPU of one over CPU of another, at most, and better."""

    work: str
    ours: str
    theirs: str
    must: float
    reach: float


CPU: Final = (
    Goal("json", "gateway", "TensorZero", 1.0, 0.6),
    Goal("json", "gateway", "LiteLLM proxy", 1 / 35, 1 / 60),
    Goal("json", "gateway", "nginx", 12.0, 7.0),
    Goal("stream", "gateway", "TensorZero", 0.6, 0.3),
    Goal("stream", "gateway", "LiteLLM proxy", 1 / 80, 1 / 150),
    Goal("stream", "gateway, normalising", "TensorZero", 1.0, 0.6),
    Goal("stream", "gateway, normalising", "LiteLLM proxy", 1 / 50, 1 / 80),
    Goal("paced", "gateway", "nginx", 2.2, 1.8),
)
# What a light load adds: medians.
_ADDED: Final = (Goal("p50", "gateway", "nginx", 3.5, 2.5), Goal("p99", "gateway", "TensorZero", 1.5, 1.0))
# The CPU ratios at one connection and at many, over those at 64.
_HOLDS: Final = (1.3, 1.15)
_FEW_AND_MANY: Final = ("json, 1 connection", "json, 512 connections")


def verdicts(found: Mapping[str, Found]) -> list[str]:
    """A line for each figure: what was measured, what is asked for, and whether it is met in every round."""
    of = {name: found.get(name, Found()) for name in {"gateway", *found}}
    return [
        *(_cpu(target, of) for target in CPU),
        *(_added(target, of) for target in _ADDED),
        *_alone(of),
        *_connections(of),
    ]


def _cpu(target: Goal, found: Mapping[str, Found]) -> str:
    ratios = _ratios(found, target.work, target.ours, target.theirs)
    said = f"CPU, {target.work}: {target.ours} / {target.theirs}"
    return _line(said, ratios, max(ratios, default=math.nan), target.must, target.reach)


def _added(target: Goal, found: Mapping[str, Found]) -> str:
    mine = found.get(target.ours, Found()).added(target.work)
    other = found.get(target.theirs, Found()).added(target.work)
    ratio = mine / other if other > 0 else math.nan
    return _line(f"added {target.work}: {target.ours} / {target.theirs}", [ratio], ratio, target.must, target.reach)


def _alone(found: Mapping[str, Found]) -> list[str]:
    own, bare = found["gateway"], found.get("gateway, no encoder", Found())
    tool = [
        one - without
        for one, without in zip(own.cpu_ms.get("tool round", ()), own.cpu_ms.get("json", ()), strict=False)
    ]
    figures: tuple[tuple[str, Sequence[float], float, float], ...] = (
        ("first byte of a stream, added p50 ms", own.added_ms.get("first byte", ()), 1.3, 0.8),
        ("start to first answer, s", own.start_s, 1.0, 0.6),
        ("idle without encoder, MB", bare.idle_mb, 90.0, 65.0),
        ("CPU of a server-run tool round, ms", tool, 0.8, 0.4),
    )
    return [_line(said, values, middle(values), must, reach) for said, values, must, reach in figures]


def _connections(found: Mapping[str, Found]) -> list[str]:
    lines = []
    for theirs in ("TensorZero", "nginx"):
        usual = middle(_ratios(found, "json", "gateway", theirs))
        for work in _FEW_AND_MANY:
            held = middle(_ratios(found, work, "gateway", theirs)) / usual
            lines.append(_line(f"gateway / {theirs}, {work} over 64", [held], held, *_HOLDS))
    return lines


def _ratios(found: Mapping[str, Found], work: str, ours: str, theirs: str) -> list[float]:
    mine, other = found.get(ours, Found()), found.get(theirs, Found())
    pairs = zip(mine.cpu_ms.get(work, ()), other.cpu_ms.get(work, ()), strict=False)
    return [one / another for one, another in pairs if another]


def _line(said: str, values: Sequence[float], judged: float, must: float, reach: float) -> str:
    if math.isnan(judged):
        return f"{said}: not measured"
    verdict = "reached" if judged <= reach else "met" if judged <= must else "MISSED"
    return f"{said}: {', '.join(f'{value:.3g}' for value in values)} (must {must:.3g}, reach {reach:.3g}): {verdict}"
