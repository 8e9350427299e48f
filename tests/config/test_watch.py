"""Watching files: when a change is a reload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config import watch
from gateway.config.watch import Watch
from gateway.errors import ConfigError, GatewayError, StoreUnavailable


class Reloads:
    """Counts reloads and raises what it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[GatewayError] = []

    async def reload(self) -> None:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[Reloads]:
    (folder / "routes").mkdir()
    (folder / "plugins").mkdir()
    (folder / "gateway.yaml").write_text("a: 1")
    reloads = Reloads()
    it = Watch(folder / "gateway.yaml", folder / "routes", [folder / "plugins"], reloads)
    it.start()
    try:
        yield reloads
    finally:
        await it.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.03)
    monkeypatch.setattr(watch, "_AGAIN_S", 0.03)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def looks(count: int) -> None:
    """Time enough for so many looks."""
    await asyncio.sleep(count * 0.05)


@pytest.mark.parametrize("name", ["gateway.yaml", "routes/a.yaml", "plugins/tool.py", "plugins/deep/_part.py"])
async def test_a_change_is_one_reload(tmp_path: Path, name: str) -> None:
    async with watching(tmp_path) as reloads:
        await looks(3)
        assert reloads.count == 0
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("changed: 1")
        await until(lambda: reloads.count == 1)
        await looks(4)
        assert reloads.count == 1
        path.unlink()
        await until(lambda: reloads.count == 2)


async def test_files_that_are_being_written_are_left_alone_until_they_rest(tmp_path: Path) -> None:
    async with watching(tmp_path) as reloads:
        for number in range(40):
            (tmp_path / "gateway.yaml").write_text("a" * number)
            await asyncio.sleep(0.01)
            assert reloads.count == 0
        await until(lambda: reloads.count == 1)


async def test_a_refused_change_is_tried_once_and_one_that_could_not_be_published_again(tmp_path: Path) -> None:
    async with watching(tmp_path) as reloads:
        reloads.errors = [ConfigError(())]
        (tmp_path / "gateway.yaml").write_text("b: 22")
        await until(lambda: reloads.count == 1)
        await looks(4)
        assert reloads.count == 1
        reloads.errors = [StoreUnavailable("away"), StoreUnavailable("away")]
        (tmp_path / "gateway.yaml").write_text("c: 333")
        await until(lambda: reloads.count == 4)
        await looks(4)
        assert reloads.count == 4
