"""Gateways on sockets of this machine that share a Valkey server, each with its own files and its own wire to it.

Knows how to start one, write its files and ask it. What is expected is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gateway.app import Gateway, open_gateway
from gateway.settings import Settings
from tests.serving import listening, write_route
from tests.valkey import Server, Wire, wire

HELLO: Mapping[str, Any] = {"model": "m", "keywords": ["hello"]}


def config(**section: Any) -> dict[str, Any]:
    """A configuration that needs no network; `section` is its `config`."""
    return {
        # A loop that stands still for seconds must not cost anyone its lease. Who wants to see one lapse says so.
        "config": {"lease_s": 30, **section},
        "backends": {"demo": {"provider": "demo"}},
        "models": {"m": {"backends": ["demo"]}, "n": {"backends": ["demo"]}},
        "router": {"default": "m", "semantic": {"enabled": False}},
        "tools": {"plugins": ["plugins"]},
    }


@dataclass(frozen=True)
class Replica:
    """One gateway.

    Attributes:
        gateway: its inside.
        folder: its files.
        wire: its way to the server.
    """

    gateway: Gateway
    url: str
    folder: Path
    wire: Wire
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def reload(self) -> Any:
        """Reload, which has to succeed; the state after it."""
        status, found = await self.post("/v1/reload")
        assert status == 200, found
        return found

    async def state(self) -> Any:
        status, found = await self.get("/v1/config")
        assert status == 200, found
        return found

    async def ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def decided(self, text: str = "hello", model: str = "auto") -> tuple[str, str]:
        """Route and version of an answered chat."""
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as response:
            found = await response.json()
            assert response.status == 200, found
            return response.headers["x-gateway-route"], response.headers["x-gateway-version"]

    def write(self, **routes: Mapping[str, Any]) -> None:
        """Put these in the place of all routes."""
        write_files(self.folder, None, routes)


def write_files(
    folder: Path,
    settings: Mapping[str, Any] | None,
    routes: Mapping[str, Mapping[str, Any]] | None,
    plugins: Mapping[str, str] | None = None,
) -> None:
    """Write what is given; routes as a whole."""
    for name in ("routes", "plugins"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if settings is not None:
        (folder / "gateway.yaml").write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    if routes is not None:
        for path in (folder / "routes").iterdir():
            path.unlink()
        for name, route in routes.items():
            write_route(folder, name, route)
    for name, source in (plugins or {}).items():
        (folder / "plugins" / f"{name}.py").write_text(source)


@asynccontextmanager
async def replica(
    folder: Path,
    server: Server,
    settings: Mapping[str, Any] | None = None,
    routes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    plugins: Mapping[str, str] | None = None,
    away: bool = False,
    **variables: Any,
) -> AsyncIterator[Replica]:
    """Start one over the files in `folder`, written first where they are given.

    Args:
        folder: its files.
        server: what it shares.
        settings: the gateway's file.
        routes: route files by name.
        plugins: plugin files by name.
        away: whether the server cannot be reached at first.
        variables: more of the environment, by the variables' names.
    """
    if not (folder / "gateway.yaml").exists():
        settings, routes = settings or config(), routes if routes is not None else {"old": HELLO}
    write_files(folder, settings, routes, plugins)
    async with wire(server) as way:
        if away:
            way.cut()
        environment = Settings(REDIS_URL=way.url, DATABASE_URL=f"sqlite:///{folder / 'hermes.db'}", **variables)
        async with (
            open_gateway(folder / "gateway.yaml", folder / "routes", environment, root=folder) as gateway,
            listening(gateway) as url,
            aiohttp.ClientSession() as http,
        ):
            yield Replica(gateway, url, folder, way, http)


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    """Wait for something that comes by itself."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)
