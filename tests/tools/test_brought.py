"""Tool providers that plugins bring, the guide's own example among them."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError
from gateway.tools.lint import lint
from gateway.tools.providers import brought
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from tests.tools.workshop import open_workshop, plugin

GUIDE = (Path(__file__).parents[2] / "docs" / "tool-providers.md").read_text("utf-8")

PROVIDER = """
from gateway.tools import make_spec

LOG = []

def spec(name, **more):
    given = dict(name=name, description="Act when asked.", parameters={"type": "object"}, provider="far", origin="far:1")
    return make_spec(timeout_s=5, **{**given, **more})

class Far:
    name = "far"

    async def list(self):
        return [spec("act")]

    async def call(self, name, arguments, context):
        LOG.append(name)
        return [name, context.key]
"""


async def test_the_guide_s_example_is_a_provider_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    sql = re.search(r"```sql\n(.*?)```", GUIDE, re.DOTALL)
    assert python is not None
    assert sql is not None
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "queries.py").write_text(python[1], "utf-8")
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "open_orders.sql").write_text(sql[1], "utf-8")
    with sqlite3.connect("shop.db") as database:
        database.execute("create table orders (id, customer, status)")
        database.executemany("insert into orders values (?, ?, ?)", [(1, "ann", "sent"), (2, "ann", "done")])
    database.close()
    async with open_workshop(places=[tmp_path / "plugins"]) as workshop:
        assert await workshop.result("open_orders", customer="ann") == [{"id": 1, "status": "sent"}]
        assert "`customer` is missing" in str((await workshop.call("open_orders", {})).error)
        assert await workshop.registry.check() == ()
        assert lint(workshop.registry.specs["open_orders"]) == ()
        before = workshop.registry.digest
    (tmp_path / "queries" / "open_orders.sql").write_text(sql[1] + " and id > 1", "utf-8")
    async with open_workshop(places=[tmp_path / "plugins"]) as workshop:
        assert workshop.registry.digest != before


async def test_a_provider_needs_no_more_than_a_name_a_list_and_calls(tmp_path: Path) -> None:
    async with plugin(tmp_path, PROVIDER + "\ndef register(registry): registry.add_provider(Far())\n") as workshop:
        assert await workshop.result("act") == ["act", "key"]
        assert await workshop.registry.check() == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("class Made:\n    name = 'a b'\n", "needs a `name` of letters, digits and `_`, got 'a b'"),
        ("class Made(Far):\n    call = None\n", "tool provider `far` has no `call`"),
        ("class Made(Far):\n    async def list(self): raise OSError('no disk')\n", "`list` failed: no disk"),
        ("class Made(Far):\n    async def list(self): return 'act'\n", "`list` answered str"),
        ("class Made(Far):\n    async def list(self): return [5]\n", "`list` answered 5, specs are expected"),
        ("class Made(Far):\n    async def list(self): return [spec('a', provider='x')]\n", "it has to be 'far'"),
        ("class Made(Far):\n    async def list(self): return [spec('a', probed=True)]\n", "there is no `probe`"),
        ("class Made(Far):\n    async def list(self): return [spec('a'), spec('a')]\n", "already declared at far:1"),
        (
            "class Made(Far):\n    async def list(self):\n        import sys; sys.exit(3)\n",
            "`list` failed: SystemExit: 3",
        ),
        ("class Made(Far):\n    async def open(self): raise OSError('closed')\n", "`open` failed: closed"),
        ("class Made(Far):\n    name = 'python'\n", "two tool providers called `python`"),
    ],
)
async def test_what_is_no_provider_is_refused_at_load(tmp_path: Path, more: str, words: str) -> None:
    source = PROVIDER + more + "\ndef register(registry): registry.add_provider(Made())\n"
    with pytest.raises(ConfigError) as caught:
        async with plugin(tmp_path, source):
            pass
    assert words in str(caught.value.problems[0])


async def test_a_provider_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brought, "OPEN_S", 0.2)
    monkeypatch.setattr(brought, "CLOSE_S", 0.2)
    hanging = "class Made(Far):\n    async def {}(self):\n        import asyncio; await asyncio.Event().wait()\n"
    for step in ("list", "open"):
        source = PROVIDER + hanging.format(step) + "\ndef register(registry): registry.add_provider(Made())\n"
        with pytest.raises(ConfigError, match=f"`{step}` took longer than 0.2 s"):
            async with plugin(tmp_path / step, source):
                pass
    source = PROVIDER + hanging.format("close") + "\ndef register(registry): registry.add_provider(Made())\n"
    async with asyncio.timeout(20), plugin(tmp_path / "close", source) as workshop:
        assert await workshop.result("act") == ["act", "key"]


async def test_a_provider_is_opened_before_calls_and_closed_after_them(tmp_path: Path) -> None:
    made = """
class Made(Far):
    async def open(self): LOG.append("open")
    async def close(self): LOG.append("close")
    async def check(self): raise ValueError("unwell")
    async def probe(self, name, arguments, context): return True, LOG

def register(registry): registry.add_provider(Made())
"""
    async with plugin(tmp_path, PROVIDER + made) as workshop:
        await workshop.result("act")
        provider = workshop.registry.provider(workshop.registry.specs["act"])
        _, log = await provider.probe("act", {}, None)  # type: ignore[arg-type]
        assert log == ["open", "act"]
        (problem,) = await workshop.registry.check()
        assert "tool provider `far`: its check failed: unwell" in problem.message
    assert log == ["open", "act", "close"]


async def test_a_version_that_is_only_looked_at_opens_nothing(tmp_path: Path) -> None:
    made = "class Made(Far):\n    async def open(self): raise OSError('asked')\n"
    (tmp_path / "plugin.py").write_text(
        "from gateway.tools import tool\n"
        + PROVIDER
        + made
        + "\ndef register(registry): registry.add_provider(Made())\n"
    )
    registry = await Registry.build([PythonProvider([tmp_path])], ToolsConfig(), start=False)
    assert list(registry.specs) == ["act"]
    await registry.close()
