"""What a command's import brings along, and that what waits is there when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(
    path.stem
    for path in (ROOT / "gateway" / "commands").glob("*.py")
    if "def run(" in path.read_text(encoding="utf-8") or path.stem == "serve_worker"
)
# What a gateway starts without, unless its configuration asks for it; with each of them it was slower and larger.
NOT_AT_START = {
    "aiohttp",
    "alembic",
    "asyncpg",
    "click",
    "cryptography",
    "dotenv",
    "fastapi",
    "gateway.backends.demo.demo",
    "gateway.backends.litellm",
    "jsonschema_rs",
    "litellm",
    "mcp",
    "numpy",
    "onnxruntime",
    "opentelemetry",
    "phonenumbers",
    "prometheus_client.exposition",
    "pydantic_settings",
    "redis",
    "rich",
    "sqlalchemy.dialects.postgresql.base",
    "sqlalchemy.orm",
    "stdnum",
    "uvicorn.main",
}
# 76 on the machine it was measured on, and 115 at first; other systems' libraries are larger or smaller.
MOST_MB = 94

STARTED = """
import json, os, sys
from gateway.commands.loading import loaded
loaded("gateway.commands.serve")
names = sorted(sys.modules)
pages = int(open("/proc/self/statm").read().split()[1]) if os.path.exists("/proc/self/statm") else 0
print(json.dumps([names, pages * os.sysconf("SC_PAGE_SIZE") / 1e6]))
"""
ASKED_LATER = """
from gateway.commands.loading import loaded
serve = loaded("gateway.commands.serve")
import rich, uvicorn
from prometheus_client import start_http_server
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.dialects import postgresql
from gateway.store.database import create_async_engine as ours
assert postgresql.JSONB and postgresql.asyncpg.dialect
assert rich and AsyncSession and callable(start_http_server) and create_async_engine is ours
import os, pydantic.plugin._loader as plugins
assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
class Later(__import__("pydantic").BaseModel): number: int
assert plugins._plugins is not None, "models of later modules get the plugins that are installed"
assert uvicorn.Server in serve.Server.__mro__ and uvicorn.__version__
try:
    uvicorn.nonsense
except AttributeError as error:
    assert "nonsense" in str(error)
else:
    raise AssertionError("that is no attribute")
"""
EACH = "import sys\nfrom gateway.commands.loading import loaded\nfor name in sys.argv[1:]: loaded('gateway.commands.' + name)"


def ran(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def started() -> Any:
    return json.loads(ran(STARTED))


def test_a_start_imports_nothing_that_only_some_gateways_use(started: Any) -> None:
    assert "gateway.app" in started[0]
    assert NOT_AT_START & set(started[0]) == set()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say how large a process is")
def test_what_is_imported_stays_small(started: Any) -> None:
    assert 0 < started[1] < MOST_MB


def test_what_was_left_out_is_there_for_whoever_asks_later() -> None:
    ran(ASKED_LATER)


def test_every_command_can_be_loaded_so() -> None:
    assert {"serve", "serve_worker", "check", "worker"} <= set(COMMANDS)
    ran(EACH, *COMMANDS)
