"""`hermes-gateway explain TEXT`: the decision and why, by the same code as the live path."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from gateway.building import Builder
from gateway.chat.blocks import Message, Text
from gateway.chat.request import ChatRequest
from gateway.clock import SystemClock
from gateway.commands.files import paths_of, settings_of, tell
from gateway.errors import ConfigError
from gateway.routing.decision import Decision
from gateway.routing.explain import explanation, explanation_text
from gateway.security.principal import Principal
from gateway.settings import Settings
from gateway.turn.prepare import Wishes, decide
from gateway.turn.snapshot import Snapshot


def run(arguments: argparse.Namespace) -> int:
    """Explain one text."""
    try:
        settings = settings_of()
        decision = asyncio.run(_explain(arguments, settings))
    except ConfigError as error:
        return tell(error)
    if decision is None:
        print(f"--key: there is no key {arguments.key!r} under keys.static", file=sys.stderr)
        return 2
    print(msgspec.json.encode(explanation(decision)).decode() if arguments.json else explanation_text(decision))
    return 0


async def _explain(arguments: argparse.Namespace, settings: Settings) -> Decision | None:
    config_path, routes_path = paths_of(arguments, settings)
    builder = Builder(config_path, routes_path, settings, SystemClock())
    try:
        snapshot = await builder.first()
        try:
            return await _decision(arguments, snapshot)
        finally:
            await builder.dismiss(snapshot)
    finally:
        await builder.close()


async def _decision(arguments: argparse.Namespace, snapshot: Snapshot) -> Decision | None:
    await snapshot.router.prepare()
    principal: Principal | None = Principal("local")
    if arguments.key is not None:
        principal = snapshot.keys.named(arguments.key)
    if principal is None:
        return None
    request = ChatRequest(
        model=snapshot.config.router.model,
        messages=(Message("user", (Text(arguments.text),)),),
        stream=False,
        include_usage=False,
        tools=(),
        tool_choice=None,
        parallel_tool_calls=None,
        n=1,
        user=None,
        fields={},
    )
    return await decide(request, principal, Wishes(tags=frozenset(arguments.tag)), snapshot, explain=True)
