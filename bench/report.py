"""What a run says: its conditions, its table of ratios, and the same as JSON."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.gateway import RULES
from bench.request import PROMPT_BYTES
from bench.rounds import Row, Samples
from bench.subjects import Cores

_PACKAGES = ("hermes-gateway", "uvicorn", "starlette", "fastapi", "aiohttp", "uvloop", "httptools", "msgspec")


def conditions(cores: Cores, *, rounds: int, seconds: float, probe_s: float) -> dict[str, Any]:
    """Everything a reader needs to judge the figures or to repeat them."""
    pinned = cores.subject is not None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),  # noqa: TID251 - a report bears the real date
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "load average at start": [round(value, 2) for value in os.getloadavg()],
        "pinning": f"subject on core {cores.subject}, mock and load on core {cores.load}" if pinned else "none",
        "request": f"model auto, prompt of {PROMPT_BYTES} bytes, every one different",
        "gateway": f"one worker, {RULES} keyword rules, key required, traces to SQLite, access log off",
        "rounds": rounds,
        "seconds a window": seconds,
        "seconds of light load": probe_s,
    }


def table(rows: Sequence[Row], samples: Samples) -> str:
    """The table of a run, one line for each row and subject."""
    header = ("work", "subject", "CPU ms", "req/s", "CPU / relay", "added p50 ms", "added p99 ms", "first byte +p50")
    lines: list[tuple[str, ...]] = [header]
    for row in rows:
        for name in row.subjects:
            if name not in samples.loads.get(row.name, {}):
                continue
            ratios = samples.ratios(row.name, name) if name != "direct" else []
            lines.append(
                (
                    row.name,
                    name if name != "direct" else "direct (mock's own)",
                    _number(samples.cpu_ms(row.name, name), 3),
                    _number(samples.per_second(row.name, name), 0),
                    _number(median(ratios) if ratios else math.nan, 2),
                    *(
                        _number(samples.added_ms(row.name, name, share), 2) if name != "direct" else ""
                        for share in (0.5, 0.99)
                    ),
                    _number(samples.added_ms(row.name, name, 0.5, "first"), 2) if name != "direct" else "",
                )
            )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(_line(line, widths) for line in lines)


# Each row with a tool round, and the row that is the same without.
TOOL_ROUNDS: Final = {
    "json-tool-round": "json",
    "stream-tool-round": "stream",
    "json-write-round": "json",
    "stream-write-round": "stream",
}


def tool_rounds_ms(samples: Samples) -> dict[str, float]:
    """CPU that one server-run tool round adds to a turn: a turn with one, less a turn without; where both were measured."""
    added = {
        row: samples.cpu_ms(row, "gateway") - samples.cpu_ms(without, "gateway") for row, without in TOOL_ROUNDS.items()
    }
    return {row: value for row, value in added.items() if math.isfinite(value)}


def as_json(rows: Sequence[Row], samples: Samples, stated: dict[str, Any]) -> dict[str, Any]:
    """Conditions, medians and every round's ratio, ready for `json.dump`; what was not measured is null."""
    measured: dict[str, Any] = {}
    for row in rows:
        ratios = samples.ratios(row.name)
        measured[row.name] = {
            "ratios": [round(ratio, 4) for ratio in ratios],
            "ratio": _finite(median(ratios)) if ratios else None,
            "subjects": {
                name: {
                    "cpu_ms": _finite(samples.cpu_ms(row.name, name)),
                    "per_second": _finite(samples.per_second(row.name, name)),
                    "requests": sum(load.requests for load in loads),
                    "errors": sum(load.errors for load in loads),
                    "added_p50_ms": _finite(samples.added_ms(row.name, name, 0.5)),
                    "added_p99_ms": _finite(samples.added_ms(row.name, name, 0.99)),
                    "first_byte_added_p50_ms": _finite(samples.added_ms(row.name, name, 0.5, "first")),
                }
                for name, loads in samples.loads.get(row.name, {}).items()
            },
        }
    tool_rounds = {row: round(value, 4) for row, value in tool_rounds_ms(samples).items()}
    return {"conditions": stated, "errors": samples.errors, "rows": measured, "tool_round_cpu_ms": tool_rounds}


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
