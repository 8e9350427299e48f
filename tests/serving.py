"""A whole gateway on a real socket of this machine, in the test's own event loop.

Knows how to write files, start and stop. What is asked of it is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import uvicorn
import yaml

from gateway.api.connection import Connection
from gateway.app import Gateway, open_gateway
from gateway.settings import Settings

ROOT = Path(__file__).resolve().parent.parent


# A plugin with a tool that only reads.
NOW = """
from gateway.tools import tool

@tool
async def now() -> str:
    "The time."
    return "10:00"

def register(registry):
    registry.add(now)
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway that listens.

    Attributes:
        gateway: its inside.
        url: `http://127.0.0.1:PORT`.
        folder: where its files are: `gateway.yaml`, `routes/`, `plugins/`.
        http: an HTTP client without base URL or key.
    """

    gateway: Gateway
    url: str
    folder: Path
    http: aiohttp.ClientSession

    def sdk(self, key: str = "any", **options: Any) -> openai.AsyncOpenAI:
        """An unmodified OpenAI client; the caller closes it or uses it as a context manager."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **{"max_retries": 0, **options})

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Mapping[str, str], Any]:
        """POST JSON; status, headers (lower case) and parsed body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(self.url + path, json=body, headers=named) as response:
            return response.status, _lower(response.headers), await response.json()

    async def get(self, path: str, **headers: str) -> tuple[int, Mapping[str, str], Any]:
        """GET; status, headers (lower case) and parsed body, or text where it is no JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.get(self.url + path, headers=named) as response:
            is_json = response.content_type == "application/json"
            return response.status, _lower(response.headers), await (response.json() if is_json else response.text())

    async def ask(self, method: str, path: str, body: Any, **headers: str) -> tuple[int, Mapping[str, str], Any]:
        """Any method; a GET takes no body."""
        if method == "GET":
            return await self.get(path, **headers)
        if method == "POST":
            return await self.post(path, body, **headers)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, self.url + path, headers=named) as response:
            return response.status, _lower(response.headers), await response.json()

    async def raw_stream(self, body: Any, **headers: str) -> bytes:
        """The bytes of a streamed answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = {"stream": True, **body}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=request, headers=named) as response:
            return await response.read()

    async def trace(self, trace_id: str) -> dict[str, Any]:
        """The trace of an answer, by the `x-gateway-trace` it came with."""
        status, _, body = await self.get(f"/v1/traces/{trace_id}")
        assert status == 200, body
        found: dict[str, Any] = body
        return found


def native_config(base_url: str, **more: Any) -> dict[str, Any]:
    """A configuration with one OpenAI-protocol backend `b1` at this address, model `m`, no routes needed.

    `more` is merged at the top level; a `backend` entry is merged into the backend.
    """
    backend = {"provider": "openai", "base_url": base_url, "model": "upstream-model", **more.pop("backend", {})}
    config: dict[str, Any] = {
        "backends": {"b1": backend},
        "models": {"m": {"backends": ["b1"], "retries": 0}},
        "router": {"default": "m", "semantic": {"enabled": False}},
        "tools": {"plugins": []},
    }
    config.update(more)
    return config


@asynccontextmanager
async def serving(
    folder: Path,
    config: Mapping[str, Any],
    routes: Mapping[str, Mapping[str, Any]] | None = None,
    plugins: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve a configuration; `options` are `open_gateway`'s.

    Args:
        folder: an empty folder of the test.
        config: `gateway.yaml`; its database goes into the folder unless it says otherwise.
        routes: route files by name without `.yaml`; their `route` is the name unless they say otherwise.
        plugins: plugin files by name without `.py`; the configuration's `tools.plugins` names `plugins` then.
        settings: the environment; an empty one by default.
        options: handed on.
    """
    whole: dict[str, Any] = {"storage": {"database": f"sqlite:///{folder / 'hermes.db'}"}, **config}
    if plugins is not None:
        whole["tools"] = {**whole.get("tools", {}), "plugins": ["plugins"]}
        (folder / "plugins").mkdir(exist_ok=True)
        for name, source in plugins.items():
            (folder / "plugins" / f"{name}.py").write_text(source)
    (folder / "gateway.yaml").write_text(yaml.safe_dump(whole, allow_unicode=True, sort_keys=False))
    (folder / "routes").mkdir(exist_ok=True)
    for name, route in (routes or {}).items():
        write_route(folder, name, route)
    async with (
        open_gateway(
            folder / "gateway.yaml", folder / "routes", settings or Settings(), root=folder, **options
        ) as gateway,
        listening(gateway) as url,
        aiohttp.ClientSession() as http,
    ):
        yield Served(gateway, url, folder, http)


def write_route(folder: Path, name: str, route: Mapping[str, Any]) -> None:
    """Write or overwrite one route file."""
    text = yaml.safe_dump({"route": name, **route}, allow_unicode=True, sort_keys=False)
    (folder / "routes" / f"{name}.yaml").write_text(text)


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[str]:
    """Put a gateway on a free port; its address."""
    server = _Prompt(
        uvicorn.Config(
            gateway.app,
            loop="none",
            http=Connection,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            # As the program does: uvicorn would take the word of whoever is on this machine.
            proxy_headers=False,
        )
    )
    # The protocol is named, or the event loop leaves Nagle's algorithm on: 40 ms an answer.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    # `serve` would take the signal handlers of the test process; `_serve` does the rest of it.
    task = asyncio.create_task(server._serve([sock]))
    try:
        async with asyncio.timeout(10):
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.timeout(10):
                await task
        sock.close()


class _Prompt(uvicorn.Server):
    """uvicorn's server, which looks ten times a second whether it should end and waits as long again: too long, two thousand
    times over.
    """

    async def main_loop(self) -> None:
        """Until it should end."""
        ticks = 0
        while not self.should_exit:
            if ticks % 10 == 0:
                await self.on_tick(ticks // 10)
            ticks += 1
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of everybody."""
        for listener in self.servers:
            listener.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        # Requests whose clients have gone end by themselves; what they are at needs the gateway for as long.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while self.server_state.tasks:
                    await asyncio.sleep(0.005)
        await asyncio.wait_for(self._wait_tasks_to_complete(), 10)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
