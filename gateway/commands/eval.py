"""`hermes-gateway eval FILE.jsonl`: how well the router does on labelled lines, by the same code as the live path."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from gateway.building import Builder
from gateway.clock import SystemClock
from gateway.commands.files import paths_of, settings_of, tell
from gateway.commands.labelled import labelled_in
from gateway.errors import ConfigError, GatewayError
from gateway.routing.decision import Decision
from gateway.routing.evaluation import Line, evaluate, report
from gateway.settings import Settings
from gateway.turn.labelled import decide_all


def run(arguments: argparse.Namespace) -> int:
    """Evaluate; 1 where `all` is below `--min-accuracy`, or the file has mistakes."""
    try:
        settings = settings_of()
        lines, decisions = asyncio.run(_decide_all(arguments, settings))
    except ConfigError as error:
        return tell(error)
    except GatewayError as error:
        print(error.message, file=sys.stderr)
        return 1
    figures = evaluate(lines, decisions)
    if arguments.report is not None:
        arguments.report.write_text(report(figures, lines, decisions), encoding="utf-8")
    if arguments.json:
        print(msgspec.json.encode(figures).decode())
    elif arguments.report is None:
        print(report(figures, lines, decisions), end="")
    if arguments.min_accuracy is not None and figures.all < arguments.min_accuracy:
        print(f"all is {figures.all:.4f}, below --min-accuracy {arguments.min_accuracy}", file=sys.stderr)
        return 1
    return 0


async def _decide_all(arguments: argparse.Namespace, settings: Settings) -> tuple[list[Line], list[Decision]]:
    builder = Builder(*paths_of(arguments, settings), settings, SystemClock())
    try:
        snapshot = await builder.first()
        try:
            labelled = await asyncio.to_thread(labelled_in, arguments.file, snapshot)
            await snapshot.router.prepare()
            return [each.line for each in labelled], await decide_all(labelled, snapshot, explain=True)
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()
