"""`python -m bench.routing`: how well and how fast meaning decides, beside references with the same vectors.

Utterances come from a set's `train` part, questions from its `test` part, thresholds from the utterances alone unless the
row says otherwise. A figure is the mean over five draws of the utterances with the 95 % interval of that mean; where all
utterances are taken there is one draw, and the interval is that of a share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

# Before numpy is imported: one thread, as the figures state.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from bench.routing_data import IntentSet, Sample, Vectors, load, unencoded  # noqa: E402
from bench.routing_rules import rules  # noqa: E402
from bench.routing_speed import by_size, cold_decision, start_to_decision  # noqa: E402
from gateway.routing.calibration import Lines  # noqa: E402
from gateway.routing.encoders.registry import Encoders  # noqa: E402
from gateway.routing.head import fit_head  # noqa: E402
from gateway.routing.index import Index  # noqa: E402

_SETS = ("clinc150", "banking77", "smp_ecdt_zh", "zh_support")
_ENCODERS = {"clinc150": "minilm", "banking77": "minilm", "smp_ecdt_zh": "multilingual", "zh_support": "multilingual"}
_FIXED = 0.82
# Of the linear head that is a reference: the best on training and validation parts.
_HEAD_SCALE = np.float32(4)
_HEAD_SHRINKAGE = 1.0
# Of Student's distribution with four degrees of freedom: the mean of five draws.
_T95 = 2.776
_ROUTERS = ("hermes", "fixed", "linear", "peer")
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Found:
    """What a router made of some questions: the best route, whether it was taken, and how high it stood."""

    best: tuple[str | None, ...]
    taken: Sequence[bool]
    height: Vectors


@dataclass
class Table:
    """Figures by row, measure and router."""

    targets: dict[tuple[str, str], float | None] = field(default_factory=dict)
    values: dict[tuple[str, str, str], list[tuple[float, int]]] = field(default_factory=dict)

    def add(self, row: str, router: str, measured: Mapping[str, tuple[float, int]]) -> None:
        for measure, value in measured.items():
            if (row, measure) in self.targets:
                self.values.setdefault((row, measure, router), []).append(value)

    def lines(self) -> list[str]:
        heads = ("Hermes", "max >= 0.82", "linear head", "semantic-router")
        out = [
            f"| {'set and utterances':<34} | {'measure':<10} | {' | '.join(f'{name:<16}' for name in heads)} | reach |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for (row, measure), target in self.targets.items():
            if (row, measure, "hermes") not in self.values:
                continue
            cells = [_cell(self.values.get((row, measure, router))) for router in _ROUTERS]
            mark = "" if target is None else f"{target:g} {self._mark(row, measure, target)}"
            out.append(f"| {row:<34} | {measure:<10} | {' | '.join(f'{cell:<16}' for cell in cells)} | {mark} |")
        return out

    def _mark(self, row: str, measure: str, target: float) -> str:
        own, *others = (
            statistics.fmean(value for value, _ in found)
            for router in _ROUTERS
            if (found := self.values.get((row, measure, router)))
        )
        return "yes" if own >= target else "NO, but above the references" if own > max(others, default=1) else "NO"


def _cell(values: list[tuple[float, int]] | None) -> str:
    if not values:
        return "-"
    shares = [value for value, _ in values]
    mean = statistics.fmean(shares)
    if len(shares) > 1:
        half = (_T95 if len(shares) == 5 else 2.0) * statistics.stdev(shares) / math.sqrt(len(shares))
    else:
        half = 1.96 * math.sqrt(max(mean * (1 - mean), 0) / values[0][1])
    return f"{mean:.3f} ± {half:.3f}"


def measures(questions: Sample, found: Found) -> dict[str, tuple[float, int]]:
    """Shares, each with the number of questions it is a share of."""
    wanted = np.asarray([intent or "" for intent in questions.intents])
    best = np.asarray([route or "" for route in found.best])
    taken = np.asarray(found.taken)
    known = set(found.best) | set(questions.intents)
    inside = np.asarray([intent is not None and intent in known for intent in questions.intents])
    right = best == wanted
    out: dict[str, tuple[float, int]] = {
        "top-1": (float(right[inside].mean()), int(inside.sum())),
        "in-scope": (float((right & taken)[inside].mean()), int(inside.sum())),
        "all": (float(np.where(inside, right & taken, ~taken).mean()), len(best)),
    }
    strange = ~inside
    if strange.any():
        rejected = int((~taken[strange]).sum())
        precision = rejected / max(int((~taken).sum()), 1)
        recall = rejected / int(strange.sum())
        out["OOS recall"] = recall, int(strange.sum())
        out["OOS F1"] = 2 * precision * recall / max(precision + recall, 1e-9), int(strange.sum())
        out["AUROC"] = auroc(found.height[inside], found.height[strange]), len(best)
    return out


def auroc(friends: Vectors, strangers: Vectors) -> float:
    """The chance that a question of a known route stands above one of none; half of it for equals."""
    _, inverse, counts = np.unique(np.concatenate([friends, strangers]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    count = len(friends)
    return float((ranks[:count].sum() - count * (count + 1) / 2) / (count * len(strangers)))


def hermes(utterances: Sample, questions: Sample, lines: Sample | None = None) -> Found:
    pairs = [(intent or "", text) for intent, text in zip(utterances.intents, utterances.texts, strict=True)]
    given = Lines(lines.texts, lines.vectors, lines.intents) if lines is not None else None
    index = Index(pairs, utterances.vectors, lines=given)
    # As `Index.judge` decides, for all questions at once; `tests/routing/test_bench_routing.py` holds the two together.
    scores = index.scorer.scores(questions.texts, questions.vectors).astype(np.float64).round(5)
    best = scores.argmax(axis=1)
    top = scores[np.arange(len(best)), best]
    second = np.partition(scores, -2, axis=1)[:, -2]
    taken = (top >= np.asarray(index.thresholds)[best]) & ((top - second).round(5) >= index.margin)
    return Found(tuple(index.routes[number] for number in best), taken.tolist(), top.astype(np.float32))


def fixed(utterances: Sample, questions: Sample) -> Found:
    alike = questions.vectors @ utterances.vectors.T
    best = alike.argmax(axis=1)
    height = alike[np.arange(len(best)), best]
    return Found(tuple(utterances.intents[place] for place in best), (height >= _FIXED).tolist(), height)


def linear(utterances: Sample, questions: Sample) -> Found:
    """The best rule known before: a linear head over the vectors alone picks. It rejects nothing."""
    routes = sorted({intent or "" for intent in utterances.intents})
    number = {route: place for place, route in enumerate(routes)}
    owner = np.asarray([number[intent or ""] for intent in utterances.intents], np.intp)
    head = fit_head(_HEAD_SCALE * utterances.vectors, owner, len(routes), _HEAD_SHRINKAGE)
    said = head.logits(_HEAD_SCALE * questions.vectors)
    return Found(tuple(routes[place] for place in said.argmax(axis=1)), [True] * len(questions), said.max(axis=1))


def peer(python: Path | None, utterances: Sample, questions: Sample) -> Found | None:
    if python is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        asked, answered = Path(folder) / "asked.npz", Path(folder) / "answered.json"
        np.savez(
            asked,
            utterances=np.asarray(utterances.texts),
            routes=np.asarray([intent or "" for intent in utterances.intents]),
            vectors=utterances.vectors,
            asked=np.asarray(questions.texts),
            questions=questions.vectors,
        )
        done = subprocess.run(
            [python, _HERE / "routing_peer.py", asked, answered],
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
        if done.returncode:
            print(f"semantic-router failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        best = json.loads(answered.read_text())
    return Found(tuple(best), [route is not None for route in best], np.zeros(len(best), np.float32))


def _compare(table: Table, row: str, utterances: Sample, questions: Sample, python: Path | None, seed: int) -> None:
    table.add(row, "hermes", measures(questions, hermes(utterances, questions)))
    table.add(row, "fixed", measures(questions, fixed(utterances, questions)))
    table.add(row, "linear", _picks(measures(questions, linear(utterances, questions))))
    # It takes minutes where the others take seconds: one draw.
    asked = peer(python, utterances, questions) if seed == 0 else None
    if asked is not None:
        measured = measures(questions, asked)
        measured.pop("AUROC", None)
        table.add(row, "peer", measured)


def _picks(measured: dict[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
    """Of a reference that rejects nothing, what can be compared."""
    return {"top-1": measured["top-1"]}


def _missing_quarter(intents: Sequence[str], seed: int) -> frozenset[str]:
    order = np.random.default_rng(1000 + seed).permutation(sorted(intents))
    return frozenset(order[: len(order) // 4].tolist())


def quality(sets: Mapping[str, IntentSet], draws: int, python: Path | None) -> Table:
    """Every row; sets that are not there are left out."""
    table = Table()
    for row, measure, target in _ROWS:
        table.targets[row, measure] = target
    plans: list[tuple[str, str, int | None]] = [
        ("CLINC150, 10 a route", "clinc150", 10),
        ("CLINC150, 20 a route", "clinc150", 20),
        ("BANKING77, 10 a route", "banking77", 10),
        ("BANKING77, all", "banking77", None),
        ("SMP, 10 a route", "smp_ecdt_zh", 10),
        ("SMP, all", "smp_ecdt_zh", None),
        ("zh_support, 8 a route", "zh_support", None),
    ]
    for row, name, count in plans:
        if name not in sets:
            continue
        questions = sets[name].part("test")
        for seed in range(draws if count is not None else 1):
            print(f"  {row}, draw {seed}", file=sys.stderr, flush=True)
            _compare(table, row, sets[name].draw(count, seed), questions, python, seed)
    if "zh_support" in sets:
        one = sets["zh_support"]
        _compare(
            table, "zh_support, English utterances", one.draw(None, 0, split="train_en"), one.part("test"), python, 0
        )
    if "clinc150" in sets:
        one, row = sets["clinc150"], "CLINC150, all, lines from valid"
        print(f"  {row}", file=sys.stderr, flush=True)
        utterances, questions = one.draw(None, 0), one.part("test")
        table.add(row, "hermes", measures(questions, hermes(utterances, questions, one.part("valid"))))
        table.add(row, "fixed", measures(questions, fixed(utterances, questions)))
    if "banking77" in sets:
        one = sets["banking77"]
        for row, count in (("BANKING77, quarter unknown, 10", 10), ("BANKING77, quarter unknown, all", None)):
            for seed in range(draws):
                print(f"  {row}, draw {seed}", file=sys.stderr, flush=True)
                utterances = one.draw(count, seed, without=_missing_quarter(one.intents, seed))
                known, questions = set(utterances.intents), one.part("test")
                asked = Sample(
                    questions.texts,
                    tuple(intent if intent in known else None for intent in questions.intents),
                    questions.vectors,
                )
                table.add(row, "hermes", measures(asked, hermes(utterances, asked)))
                table.add(row, "fixed", measures(asked, fixed(utterances, asked)))
    return table


_ROWS: tuple[tuple[str, str, float | None], ...] = (
    ("CLINC150, 10 a route", "all", 0.87),
    ("CLINC150, 10 a route", "in-scope", 0.88),
    ("CLINC150, 10 a route", "OOS recall", 0.83),
    ("CLINC150, 10 a route", "top-1", None),
    ("CLINC150, 10 a route", "AUROC", None),
    ("CLINC150, 20 a route", "all", 0.89),
    ("CLINC150, 20 a route", "OOS F1", 0.81),
    ("CLINC150, 20 a route", "in-scope", None),
    ("CLINC150, 20 a route", "OOS recall", None),
    ("CLINC150, all, lines from valid", "in-scope", 0.93),
    ("CLINC150, all, lines from valid", "OOS F1", 0.85),
    ("CLINC150, all, lines from valid", "OOS recall", None),
    ("BANKING77, 10 a route", "top-1", 0.87),
    ("BANKING77, 10 a route", "in-scope", None),
    ("BANKING77, all", "top-1", 0.935),
    ("BANKING77, quarter unknown, 10", "AUROC", 0.84),
    ("BANKING77, quarter unknown, all", "AUROC", 0.90),
    ("SMP, 10 a route", "top-1", 0.87),
    ("SMP, 10 a route", "in-scope", None),
    ("SMP, all", "top-1", 0.93),
    ("zh_support, 8 a route", "top-1", 0.82),
    ("zh_support, 8 a route", "all", 0.82),
    ("zh_support, English utterances", "top-1", 0.75),
    ("zh_support, English utterances", "all", None),
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=_HERE.parents[1] / "shared/data/intents", help="folder of the sets"
    )
    parser.add_argument("--vectors", type=Path, default=_HERE.parent / ".venv/.bench-vectors", help="kept between runs")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=_SETS, default=list(_SETS))
    parser.add_argument("--peer", type=Path, help="python of an environment that has semantic-router")
    parser.add_argument("--only", choices=("quality", "speed"), help="one half of it")
    return parser.parse_args()


async def _sets(given: argparse.Namespace) -> dict[str, IntentSet]:
    encoders, sets = Encoders(), {}
    if given.only == "speed":
        # Texts will do.
        return {name: unencoded(given.data, name) for name in given.sets if (given.data / f"{name}.jsonl").is_file()}
    for name in given.sets:
        if not (given.data / f"{name}.jsonl").is_file():
            print(f"{name} is left out: there is no {given.data / name}.jsonl")
            continue
        sets[name] = await load(given.data, name, encoders.get(_ENCODERS[name]), given.vectors)
    await encoders.close()
    return sets


def _speeds(sets: Mapping[str, IntentSet]) -> Iterator[Callable[[], list[str]]]:
    yield rules
    if "clinc150" in sets:
        yield partial(cold_decision, sets["clinc150"])
        yield partial(by_size, sets["clinc150"])
    yield start_to_decision


def main() -> int:
    given = _options()
    python = given.peer if given.peer is not None and given.peer.exists() else None
    sets = asyncio.run(_sets(given))
    if not sets:
        print("No intent set was found: there is nothing to measure. Say where they are with --data.")
        return 2
    if given.only != "speed":
        begun = time.monotonic()
        table = quality(sets, given.draws, python)
        print("\n".join(table.lines()))
        print(f"\n{given.draws} draws, one thread, {time.monotonic() - begun:.0f} s; semantic-router: draw 0.")
        if python is None:
            print(
                "semantic-router is not installed for this bench: its column is empty (`make bench-routing` installs it)."
            )
    if given.only != "quality":
        for measure in _speeds(sets):
            print("\n".join(measure()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
