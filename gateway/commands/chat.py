"""`hermes-gateway chat`: a terminal conversation with a running gateway, showing each step."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import aiohttp
import msgspec

from gateway.chat.sse import SseParser
from gateway.commands.client import Unreachable, auth_headers, base_url, get_json, no_answer
from gateway.commands.files import settings_of, tell
from gateway.errors import ConfigError
from gateway.settings import Settings


def run(arguments: argparse.Namespace) -> int:
    """Talk until end of input."""
    try:
        settings = settings_of()
    except ConfigError as error:
        return tell(error)
    try:
        return asyncio.run(_talk(arguments, settings))
    except Unreachable as error:
        print(error, file=sys.stderr)
        return 3


async def _talk(arguments: argparse.Namespace, settings: Settings) -> int:
    url = base_url(settings, arguments.url)
    print(f"Talking to {url} as model {arguments.model!r}. An empty line or Ctrl-D ends.")
    messages: list[dict[str, Any]] = []
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)
    async with aiohttp.ClientSession(timeout=timeout, headers=auth_headers(settings)) as session:
        while True:
            try:
                said = await asyncio.to_thread(input, "\n> ")
            except EOFError:
                return 0
            if not said.strip():
                return 0
            messages.append({"role": "user", "content": said})
            body = {"model": arguments.model, "messages": messages, "stream": True}
            try:
                answer = await _ask(session, url, body, settings)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise no_answer(url, error) from error
            messages.append({"role": "assistant", "content": answer})


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], settings: Settings) -> str:
    parts: list[str] = []
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status >= 400:
            problem = await response.json()
            print(f"[{response.status}] {problem['error']['message']}")
            return ""
        headers = response.headers
        score = f", score {headers['x-gateway-score']}" if "x-gateway-score" in headers else ""
        print(
            f"[route {headers['x-gateway-route']} by {headers['x-gateway-strategy']}{score}; "
            f"model {headers['x-gateway-model']}; version {headers['x-gateway-version']}]"
        )
        parser = SseParser()
        async for data in response.content.iter_any():
            for payload in parser.feed(data):
                if payload == b"[DONE]":
                    continue
                chunk = msgspec.json.decode(payload)
                if "error" in chunk:
                    print(f"\n[error] {chunk['error']['message']}")
                for choice in chunk.get("choices", ()):
                    text = choice["delta"].get("content") or ""
                    parts.append(text)
                    print(text, end="", flush=True)
        print()
        trace_id = headers["x-gateway-trace"]
    await _show_steps(settings, url, trace_id)
    return "".join(parts)


async def _show_steps(settings: Settings, url: str, trace_id: str) -> None:
    """The tool calls of the turn, from its trace."""
    trace = await get_json(settings.model_copy(update={"gateway_url": url}), f"/v1/traces/{trace_id}")
    for event in (trace or {}).get("events", ()):
        data = event["data"]
        if event["type"] == "tool.started":
            print(f"[tool {data['name']} {msgspec.json.encode(data['arguments']).decode()}]")
        elif event["type"] == "tool.finished":
            print(f"[tool {data['name']} {'ok' if data['ok'] else 'failed'} in {data['seconds']:.3f} s]")
    print(f"[trace {trace_id}]")
