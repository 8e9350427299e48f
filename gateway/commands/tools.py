"""`hermes-gateway tools`: the registry; with `--check`, the tools' self-checks."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import msgspec

from gateway.building import Builder
from gateway.clock import SystemClock
from gateway.commands.files import paths_of, print_problems, settings_of, tell
from gateway.errors import ConfigError, Problem
from gateway.settings import Settings
from gateway.tools.spec import ToolSpec


def run(arguments: argparse.Namespace) -> int:
    """List; 1 where a self-check fails."""
    try:
        settings = settings_of()
        specs, problems = asyncio.run(_look(arguments, settings))
    except ConfigError as error:
        return tell(error)
    if arguments.json:
        rows = [
            {
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.parameters,
                "provider": spec.provider,
                "origin": spec.origin,
                "writes": spec.writes,
                "timeout_s": spec.timeout_s,
                "spec_hash": spec.spec_hash,
            }
            for spec in specs
        ]
        print(msgspec.json.encode(rows).decode())
    else:
        for spec in specs:
            mark = " (writes)" if spec.writes else ""
            print(
                f"{spec.name}{mark}  {spec.description.splitlines()[0] if spec.description else ''}\n    {spec.origin}"
            )
    print_problems(problems)
    if arguments.check and not problems and not arguments.json:
        print("\nNo self-check failed.")
    return 1 if problems else 0


async def _look(arguments: argparse.Namespace, settings: Settings) -> tuple[Sequence[ToolSpec], tuple[Problem, ...]]:
    config_path, routes_path = paths_of(arguments, settings)
    builder = Builder(config_path, routes_path, settings, SystemClock())
    try:
        snapshot = await builder.first()
        try:
            problems = await snapshot.tools.check() if arguments.check else ()
            return tuple(snapshot.tools.specs.values()), problems
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()
