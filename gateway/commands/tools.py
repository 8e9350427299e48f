"""`hermes-gateway tools`: the registry; with `--check`, self-checks and lint; with `--lock`, the lock of MCP servers' tools."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from gateway.building import Builder
from gateway.clock import SystemClock
from gateway.commands.files import paths_of, print_problems, quiet_log, settings_of, tell
from gateway.config.files import display
from gateway.errors import ConfigError, Problem
from gateway.settings import Settings
from gateway.tools.lint import lint
from gateway.tools.lock import Lock, write_lock
from gateway.tools.providers.mcp import is_allowed
from gateway.tools.remote import RemoteTool
from gateway.tools.spec import ToolSpec
from gateway.turn.snapshot import Snapshot


def run(arguments: argparse.Namespace) -> int:
    """List; 1 where a self-check fails or a tool can be said better, with `--strict` also where there are warnings."""
    # What is wrong with a server when its tools are locked is told as a problem, or is no longer so.
    quiet_log("nothing" if arguments.lock else "warning")
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
                "deletes": spec.deletes,
                "needs_confirmation": spec.needs_confirmation,
                "confidence_gate": spec.confidence_gate,
                "compensate": spec.compensate or None,
                "requires": spec.requires,
                "allowed_roles": sorted(spec.allowed_roles),
                "retries": spec.retries,
                "cache_ttl_s": spec.cache_ttl_s,
                "shared_cache": spec.shared_cache,
                "result_fields": spec.result_fields,
                "sensitive": spec.sensitive,
                "price": spec.price,
                "checked": spec.checked,
                "timeout_s": spec.timeout_s,
                "spec_hash": spec.spec_hash,
            }
            for spec in specs
        ]
        print(msgspec.json.encode(rows).decode())
    elif not arguments.lock:
        for spec in specs:
            mark = _mark(spec)
            print(
                f"{spec.name}{mark}  {spec.description.splitlines()[0] if spec.description else ''}\n    {spec.origin}"
            )
    print_problems(problems)
    bad = [problem for problem in problems if problem.severity == "error" or arguments.strict]
    if arguments.check and not bad and not arguments.json:
        print("\nNo self-check failed, and lint found nothing." if not problems else "\nNothing but warnings.")
    return 1 if bad else 0


def _mark(spec: ToolSpec) -> str:
    """What to know of a tool before it is named somewhere."""
    said = ["deletes"] if spec.deletes else ["writes"] if spec.writes else []
    said += [f"after {', '.join(spec.requires)}"] if spec.requires else []
    said += [f"for {', '.join(sorted(spec.allowed_roles))}"] if spec.allowed_roles else []
    return f" ({'; '.join(said)})" if said else ""


async def _look(arguments: argparse.Namespace, settings: Settings) -> tuple[Sequence[ToolSpec], tuple[Problem, ...]]:
    config_path, routes_path = paths_of(arguments, settings)
    builder = Builder(config_path, routes_path, settings, SystemClock())
    try:
        snapshot = await builder.first()
        try:
            problems: tuple[Problem, ...] = ()
            if arguments.check:
                linted = (problem for spec in snapshot.tools.specs.values() for problem in lint(spec))
                problems = (*await snapshot.tools.check(), *linted)
            if arguments.lock:
                problems += await _lock(builder, snapshot)
            return tuple(snapshot.tools.specs.values()), problems
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()


async def _lock(builder: Builder, snapshot: Snapshot) -> tuple[Problem, ...]:
    """Write the tools that every server offers now, as far as they are allowed; nothing where one is away."""
    tools = snapshot.config.tools
    servers: dict[str, Sequence[RemoteTool]] = {}
    away = []
    for name, server in builder.mcp.servers(tools).items():
        found = None if server is None or server.error is not None else server.tools
        if found is None:
            away.append(f"the MCP server `{name}` is away")
        else:
            servers[name] = [tool for tool in found if is_allowed(tool.name, tools.mcp[name])]
    if away:
        # The version was told of them with place and reason.
        told = [each for each in builder.told if each.message.startswith(tuple(away))]
        return tuple(replace(each, message=f"{each.message}; the lock is left as it is") for each in told)
    await asyncio.to_thread(write_lock, builder.lock_path, Lock(servers))
    counts = ", ".join(f"{name} {len(found)}" for name, found in servers.items())
    print(f"Wrote {display(builder.lock_path)}; tools of each server: {counts or 'none'}.", file=sys.stderr)
    return ()
