"""`hermes-gateway rollback`: an earlier version, published anew by a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import aiohttp

from gateway.commands.client import Unreachable, auth_headers, base_url, no_answer
from gateway.commands.files import print_problems, settings_of, tell
from gateway.errors import ConfigError, Problem
from gateway.settings import Settings

# The answer comes when all replicas have taken the version over, which may mean encoding all utterances.
_TIMEOUT_S = 300.0


def run(arguments: argparse.Namespace) -> int:
    """Go back; 1 where the gateway refuses."""
    try:
        settings = settings_of()
    except ConfigError as error:
        return tell(error)
    try:
        status, body = asyncio.run(_ask(settings, arguments.url, arguments.generation))
    except Unreachable as error:
        print(error, file=sys.stderr)
        return 3
    if status != 200:
        print(body.get("error", {}).get("message", f"the gateway answered {status}"), file=sys.stderr)
        print_problems(Problem(**problem) for problem in body.get("problems", ()))
        return 1
    count = body["replicas"]
    print(f"Version {body['version']} is active on {count} replica{'' if count == 1 else 's'}.")
    return 0


async def _ask(settings: Settings, given: str | None, generation: int | None) -> tuple[int, dict[str, Any]]:
    url = base_url(settings, given)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    wanted = {} if generation is None else {"generation": generation}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/v1/config/rollback", json=wanted, headers=auth_headers(settings)) as response,
        ):
            return response.status, await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise no_answer(url, error) from error
