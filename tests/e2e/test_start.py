"""What a start does first: it accepts requests, and only then reads an encoder's weights."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Served, native_config, serving
from tests.upstream import ScriptedUpstream, answer

ROOT = Path(__file__).resolve().parents[2]
ROUTES = {
    "refunds": {"model": "m", "utterances": ["I want my money back", "please refund my order"]},
    "weather": {"model": "m", "utterances": ["will it rain tomorrow", "do I need an umbrella today"]},
    "said": {"model": "m", "keywords": ["hello"]},
}

SERVER = """
import sys
from gateway.commands.loading import loaded
loaded("gateway.commands.serve")
from gateway.api.services import Drain
from gateway.commands.listening import Server
from gateway.config.models import ServerConfig

async def app(scope, receive, send): ...

server = Server(app, ServerConfig(), Drain(), lambda: None)
server.config.load()
server.config.lifespan_class(server.config)
assert server.config.loaded and server.config.asgi_version == "3.0" and server.config.loaded_app is app
unwanted = {"uvicorn.main", "click", "multiprocessing", "websockets"} & set(sys.modules)
assert not unwanted, unwanted
"""

FILES = """
import resource
from gateway.commands.listening import allow_connections
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard) if hard >= 0 else 256, hard))
allow_connections()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


async def reason(gateway: Served, text: str) -> tuple[Any, Any]:
    """The route of a text, and why."""
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    async with gateway.http.post(f"{gateway.url}/v1/route", json=body) as response:
        assert response.status == 200
        found = await response.json()
    return found["route"], found["reason"]


async def test_the_encoder_waits_until_connections_are_accepted(tmp_path: Path) -> None:
    accepts = asyncio.Event()
    async with ScriptedUpstream(then=answer("done")) as upstream:
        config = native_config(upstream.base_url, router={"default": "m", "semantic": {"encoder": "minilm"}})
        async with serving(tmp_path, config, ROUTES, listening=accepts) as gateway:
            for _ in range(3):
                assert await reason(gateway, "please refund my order") == (None, "encoder_loading")
                assert (await reason(gateway, "hello there"))[0] == "said"
            accepts.set()
            async with asyncio.timeout(60):
                while (await reason(gateway, "please refund my order"))[0] != "refunds":
                    await asyncio.sleep(0.02)


def test_a_server_that_is_about_to_serve_imports_nothing_of_uvicorns_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVER], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_as_many_connections_are_allowed_as_the_system_lets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILES], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    soft, hard = map(int, done.stdout.split())
    assert soft == min(65_536, hard if hard >= 0 else 65_536)
