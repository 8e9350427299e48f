"""`python -m bench.peers`: the gateway beside other gateways, at the same work, in turn, with the same instruments.

The gateway has everything on that production needs: a key to check, 1,000 keyword rules, a decision by meaning that a cache
holds, traces and metrics. The others pass requests on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import uvloop

from bench.load import closed_loop
from bench.peer_list import Peer, peers
from bench.probe import Target, open_loop, percentile
from bench.report import conditions
from bench.request import requests
from bench.subjects import Cores, Subject, SubjectFailed, free_port, pin, running, stop

_START_S: Final = 60.0
_WARM_UP_S: Final = 0.5
_PACED: Final = 16
# What is asked for: work, the peer that is the measure, and what the gateway may use of its CPU: at most, and better.
TARGETS: Final = (
    ("json", "gateway", "TensorZero", 1.0, 0.6),
    ("json", "gateway", "LiteLLM proxy", 1 / 35, 1 / 60),
    ("json", "gateway", "nginx", 12.0, 7.0),
    ("stream", "gateway", "TensorZero", 0.6, 0.3),
    ("stream", "gateway", "LiteLLM proxy", 1 / 80, 1 / 150),
    ("stream", "gateway, normalising", "TensorZero", 1.0, 0.6),
    ("stream", "gateway, normalising", "LiteLLM proxy", 1 / 50, 1 / 80),
    ("paced", "gateway", "nginx", 2.2, 1.8),
)


@dataclass(slots=True)
class Found:
    """What was measured of one peer: CPU milliseconds by work, one a round; added milliseconds; seconds; megabytes."""

    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    per_second: dict[str, list[float]] = field(default_factory=dict)
    added_ms: dict[str, list[float]] = field(default_factory=dict)
    start_s: float = math.nan
    idle_mb: float = math.nan
    errors: int = 0

    def cpu(self, work: str) -> float:
        """The median; NaN where nothing was measured."""
        return median(self.cpu_ms[work]) if self.cpu_ms.get(work) else math.nan


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--place", type=Path, required=True, help="where the peers' environments are")
    parser.add_argument("--rounds", type=int, default=3, help="windows for each peer and work (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window (default 2)")
    parser.add_argument(
        "--probe-seconds", type=float, default=5.0, help="light load of a round, 0 for none (default 5)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these peers alone")
    parser.add_argument("--work", nargs="+", choices=("json", "stream", "paced"), default=["json", "stream", "paced"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return parser.parse_args()


async def _run(given: argparse.Namespace) -> int:
    cores = Cores.of_this_machine()
    stated = conditions(cores, rounds=given.rounds, seconds=given.seconds, probe_s=given.probe_seconds)
    pin(0, cores.load)
    chosen = [peer for peer in peers(given.place.resolve()) if not given.only or peer.name in given.only]
    found = {peer.name: Found() for peer in chosen}
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=cores.load))
        served: list[tuple[Peer, Subject]] = []
        for peer in chosen:
            if peer.version is None:
                continue
            try:
                subject = await stack.enter_async_context(_served(peer, mock, cores, found[peer.name]))
            except SubjectFailed as error:
                print(f"{peer.name} did not start: {error}", file=sys.stderr)
                continue
            served.append((peer, subject))
        ceiling: dict[str, list[float]] = {}
        for number in range(given.rounds):
            for work in given.work:
                ceiling.setdefault(work, []).append(await _ceiling(mock, work, given.seconds))
                for peer, subject in served if number % 2 == 0 else reversed(served):
                    if work == "json" or peer.streams:
                        await _window(peer, subject, work, given.seconds, found[peer.name])
            for peer, subject in served:
                if given.probe_seconds:
                    await _probe(peer, subject, mock, given.probe_seconds, found[peer.name])
    for name, value in stated.items():
        print(f"{name}: {value}")
    print("peers:", "; ".join(f"{peer.name} {peer.version or 'not installed'}" for peer in chosen))
    print("ceiling of mock and load, requests a second:", {w: round(median(of)) for w, of in ceiling.items()})
    print()
    print(_table(chosen, found))
    print()
    print(_verdicts(found))
    if given.json:
        kept = {name: {each: getattr(of, each) for each in of.__slots__} for name, of in found.items()}
        versions = {peer.name: peer.version for peer in chosen}
        whole = {"conditions": stated, "versions": versions, "ceiling": ceiling, "found": kept}
        given.json.write_text(json.dumps(whole, indent=2) + "\n")
    return 0


@asynccontextmanager
async def _served(peer: Peer, mock: Subject, cores: Cores, found: Found) -> AsyncIterator[Subject]:
    """A peer's process until the block ends, from when it has answered a request."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as place:
        folder = Path(place)
        command = peer.start(folder, mock.url, port)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        with (folder / "output").open("w+b") as output:
            began = monotonic()
            process = await asyncio.create_subprocess_exec(
                *command, cwd=folder, env={**kept, **peer.environment}, stdout=output, stderr=output
            )
            try:
                pin(process.pid, cores.subject)
                while not await _answers(peer, port if not peer.says_port else _said_port(folder)):
                    if process.returncode is not None or monotonic() - began > _START_S:
                        output.seek(0)
                        raise SubjectFailed(output.read().decode(errors="replace")[-1500:])
                    await asyncio.sleep(0.01)
                found.start_s = monotonic() - began
                subject = Subject(peer.name, process.pid, port if not peer.says_port else _said_port(folder))
                await asyncio.sleep(1.0)
                found.idle_mb = subject.resident_mb()
                await _settled(peer, subject)
                yield subject
            finally:
                await stop(process)


async def _settled(peer: Peer, subject: Subject) -> None:
    """Ask until what is measured is the usual: every prompt that comes again is known."""
    asking = _asking(peer, subject.url, stream=False)
    targets = {"": Target(subject.url, asking)}
    for _ in range(3 if peer.different else 1):
        await open_loop(targets, rate=100, seconds=(peer.different or 20) / 100)


def _said_port(folder: Path) -> int:
    try:
        return int((folder / "port").read_text() or 0)
    except OSError:
        return 0


async def _answers(peer: Peer, port: int) -> bool:
    if not port:
        return False
    target = Target(f"http://127.0.0.1:{port}", _asking(peer, f"http://127.0.0.1:{port}", stream=False))
    try:
        await target.ask_once()
    except OSError:
        return False
    finally:
        target.close()
    return not target.errors


def _asking(peer: Peer, url: str, *, stream: bool, paced: bool = False) -> Callable[[], bytes]:
    headers = dict(peer.headers)
    return requests(
        url + peer.path,
        stream=stream,
        word="lanepaced" if paced and peer.path == "/v1" else peer.word,
        model=peer.model,
        headers=headers,
        different=peer.different,
    )


async def _window(peer: Peer, subject: Subject, work: str, seconds: float, found: Found) -> None:
    """One window of load on a peer."""
    paced = work == "paced"
    if paced and (peer.path != "/v1" or peer.headers or peer.name == "LiteLLM proxy"):
        return  # its upstream is the other one
    url = subject.url
    asking = _asking(peer, url, stream=work != "json", paced=paced)
    if paced and not peer.name.startswith("gateway"):
        asking = requests(f"{url}/paced/v1", stream=True, word=peer.word)
        if "FastAPI" in peer.name:
            return  # it knows one path
    connections = _PACED if paced else peer.stream_connections if work == "stream" else 64
    load = await closed_loop(
        url,
        asking,
        connections=connections,
        warm_up_s=max(_WARM_UP_S, peer.seconds / 2),
        seconds=max(seconds, peer.seconds),
        cpu_s=subject.cpu_s,
    )
    found.errors += load.errors
    if load.requests:
        found.cpu_ms.setdefault(work, []).append(load.cpu_ms)
        found.per_second.setdefault(work, []).append(load.per_second)


async def _ceiling(mock: Subject, work: str, seconds: float) -> float:
    url = mock.url + ("/paced/v1" if work == "paced" else "/v1")
    asking = requests(url, stream=work != "json", word="lane")
    connections = _PACED if work == "paced" else 64
    load = await closed_loop(
        url, asking, connections=connections, warm_up_s=0.2, seconds=min(1.0, seconds), cpu_s=mock.cpu_s
    )
    return load.per_second


async def _probe(peer: Peer, subject: Subject, mock: Subject, seconds: float, found: Found) -> None:
    """Latencies at a light load, of the peer and of the mock alone, on one clock."""
    for stream in (False, True) if peer.streams else (False,):
        direct = requests(f"{mock.url}/v1", stream=stream, word="lane")
        targets = {
            "direct": Target(mock.url, direct),
            "peer": Target(subject.url, _asking(peer, subject.url, stream=stream)),
        }
        await open_loop(targets, rate=20 if peer.name == "LiteLLM proxy" else 50, seconds=seconds)
        found.errors += targets["peer"].errors
        ours, theirs = targets["peer"], targets["direct"]
        if stream:
            added = percentile(ours.first_ms, 0.5) - percentile(theirs.first_ms, 0.5)
            found.added_ms.setdefault("first byte", []).append(added)
            continue
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            added = percentile(ours.total_ms, share) - percentile(theirs.total_ms, share)
            found.added_ms.setdefault(name, []).append(added)


def _table(chosen: list[Peer], found: dict[str, Found]) -> str:
    header = (
        "subject",
        "CPU ms",
        "req/s",
        "CPU ms/stream",
        "paced",
        "+p50 ms",
        "+p99 ms",
        "first byte",
        "start s",
        "MB",
    )
    lines: list[tuple[str, ...]] = [header]
    for peer in chosen:
        of = found[peer.name]
        if peer.version is None:
            lines.append((peer.name, "not installed", *[""] * 8))
            continue
        added = {name: median(values) for name, values in of.added_ms.items()}
        rate = median(of.per_second["json"]) if of.per_second.get("json") else math.nan
        lines.append(
            (
                peer.name + (f" ({of.errors} failed)" if of.errors else ""),
                _number(of.cpu("json"), 3),
                _number(rate, 0),
                _number(of.cpu("stream"), 3) if peer.streams else "fails",
                _number(of.cpu("paced"), 2),
                _number(added.get("p50", math.nan), 2),
                _number(added.get("p99", math.nan), 2),
                _number(added.get("first byte", math.nan), 2),
                _number(of.start_s, 2),
                _number(of.idle_mb, 0),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    shown = (
        "  ".join(
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join(shown)


def _verdicts(found: dict[str, Found]) -> str:
    """The ratios that are asked for, round by round."""
    lines = []
    for work, ours, theirs, must, reach in TARGETS:
        mine, other = found.get(ours, Found()), found.get(theirs, Found())
        pairs = zip(mine.cpu_ms.get(work, []), other.cpu_ms.get(work, []), strict=False)
        ratios = [one / another for one, another in pairs if another]
        if not ratios:
            lines.append(f"{work}: {ours} / {theirs}: not measured")
            continue
        verdict = "reached" if max(ratios) <= reach else "met" if max(ratios) <= must else "MISSED"
        said = ", ".join(f"{ratio:.3g}" for ratio in ratios)
        lines.append(f"{work}: {ours} / {theirs}: {said} (must {must:.3g}, reach {reach:.3g}): {verdict}")
    lines += _latencies(found)
    return "\n".join(lines)


def _latencies(found: dict[str, Found]) -> list[str]:
    """The latencies that are asked for: medians of the rounds."""
    lines = []
    for kind, theirs, must, reach in (("p50", "nginx", 3.5, 2.5), ("p99", "TensorZero", 1.5, 1.0)):
        mine, other = found.get("gateway", Found()).added_ms.get(kind), found.get(theirs, Found()).added_ms.get(kind)
        if mine and other and median(other) > 0:
            ratio = median(mine) / median(other)
            verdict = "reached" if ratio <= reach else "met" if ratio <= must else "MISSED"
            lines.append(f"added {kind}: gateway / {theirs}: {ratio:.3g} (must {must:g}, reach {reach:g}): {verdict}")
    own = found.get("gateway", Found())
    for name, value, must, reach in (
        ("first byte of a stream, added p50 ms", median(own.added_ms.get("first byte", [math.nan])), 1.3, 0.8),
        ("start to first answer, s", own.start_s, 1.0, 0.6),
    ):
        if not math.isnan(value):
            verdict = "reached" if value <= reach else "met" if value <= must else "MISSED"
            lines.append(f"{name}: {value:.2f} (must {must:g}, reach {reach:g}): {verdict}")
    return lines


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def main() -> Any:
    """Exit code 0; 1 when the mock didn't start."""
    return uvloop.run(_run(_options()))


if __name__ == "__main__":
    sys.exit(main())
