from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config.models import ToolsConfig
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from gateway.tools.self_checks import SelfChecks
from tests.serving import native_config, serving
from tests.tools.workshop import write_plugin

PLUGIN = """
import asyncio
STATE = {}
async def check():
    STATE["begun"].set()
    await asyncio.Event().wait()

@tool(check=check)
async def act() -> None:
    '''Act.'''

def register(registry): registry.add(act)
"""


async def told(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """The log up to a line with these words."""
    text = ""
    async with asyncio.timeout(30):
        while words not in text:
            await asyncio.sleep(0.02)
            text += capsys.readouterr().err
    return text


async def test_a_failing_check_is_told_and_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = (
        "from gateway.tools import tool\n\n"
        "@tool(check=lambda: {}['database'])\n"
        "def act() -> None:\n    'Act.'\n\n"
        "def register(registry): registry.add(act)\n"
    )
    async with serving(tmp_path, native_config("http://127.0.0.1:9/v1"), plugins={"act": plugin}) as gateway:
        assert "its check failed: 'database'" in await told(capsys, "a tool's check failed")
        status, _, _ = await gateway.get("/readyz")
        assert status == 200
        (gateway.folder / "plugins" / "act.py").write_text(plugin.replace("'database'", "'table'"))
        status, _, _ = await gateway.post("/v1/reload", {})
        assert status == 200
        await told(capsys, "its check failed: 'table'")


async def test_checks_of_an_older_version_end_with_it(tmp_path: Path) -> None:
    write_plugin(tmp_path, PLUGIN)
    provider = PythonProvider([tmp_path])
    registry = await Registry.build([provider], ToolsConfig())
    (module,) = (module for _, module in provider._files.modules)
    begun = module.STATE["begun"] = asyncio.Event()
    checks = SelfChecks()
    checks.begin(registry)
    await asyncio.wait_for(begun.wait(), 10)
    (running,) = (task for task in asyncio.all_tasks() if task.get_name() == "self-checks")
    checks.begin(registry)
    await asyncio.wait([running], timeout=10)
    assert running.cancelled()
    await asyncio.wait_for(checks.close(), 10)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "self-checks"]
    await registry.close()
