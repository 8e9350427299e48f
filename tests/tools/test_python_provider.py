from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from tests.tools.workshop import open_workshop, plugin, write_plugin

VALUE = """
VALUE = {value!r}

@tool
def value() -> Any:
    "Tell the value."
    return VALUE

def register(registry): registry.add(value)
"""


async def refused(*places: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        await Registry.build([PythonProvider(places)], ToolsConfig())
    assert not [name for name in sys.modules if name.startswith("_hermes_plugins_")]
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("import nowhere_to_be_found", 3, "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\nx = 1 / 0", 4, "ZeroDivisionError: division by zero"),
        ("def broken(:\n    pass", 3, "SyntaxError: "),
        ("raise SystemExit(2)", 3, "SystemExit: 2"),
        ("raise KeyboardInterrupt", 3, "KeyboardInterrupt"),
        ("raise ValueError('\\ud800')", 3, "ValueError: ?"),
        ("def register(registry):\n    raise SystemExit(2)", 4, "SystemExit: 2"),
        ("async def lifespan():\n    raise SystemExit(2)\n    yield", 0, "RuntimeError: SystemExit: 2"),
        ("def register(registry):\n    registry.add(print)", 4, "TypeError: `print` is no tool"),
        ("async def register(registry): ...", 3, "`register` must be a plain `def`"),
        ("def on_answer(answer): ...", 3, "hook `on_answer` must be an `async def`"),
        ("@tool\ndef bare(): ...\ndef register(registry): registry.add(bare)", 3, "tool `bare`: it needs a docstring"),
        (
            "@tool\ndef loose(a):\n    'Act.'\ndef register(registry): registry.add(loose)",
            3,
            "tool `loose`: parameter `a` has no type",
        ),
        (
            "@tool\ndef many():\n    'Act.'\n    yield 1\ndef register(registry): registry.add(many)",
            3,
            "tool `many`: a tool returns one value",
        ),
        ("async def lifespan():\n    raise ValueError('no disk')\n    yield", 4, "ValueError: no disk"),
        ("def lifespan():\n    return 5", 0, "TypeError: lifespan must be"),
    ],
)
async def test_a_plugin_that_cannot_be_used_is_a_problem_with_file_and_line(
    tmp_path: Path, source: str, line: int, text: str
) -> None:
    file = write_plugin(tmp_path, source)
    (problem,) = await refused(tmp_path)
    assert problem.startswith(f"{file}:{line}: {text}")


async def test_problems_of_all_plugins_are_reported_together(tmp_path: Path) -> None:
    write_plugin(tmp_path, "1 / 0", "a")
    write_plugin(tmp_path, "import nowhere_to_be_found", "b")
    assert len(await refused(tmp_path, tmp_path / "missing")) == 3


async def test_only_plugins_are_loaded_and_the_rest_lies_still(tmp_path: Path) -> None:
    write_plugin(tmp_path, VALUE.format(value=1))
    write_plugin(tmp_path, "1 / 0", "_draft")
    write_plugin(tmp_path / "notes", "1 / 0", "inner")
    (tmp_path / "readme.md").write_text("1 / 0")
    write_plugin(tmp_path, "async def chat(request): ...", "backend")
    async with open_workshop(places=[tmp_path]) as workshop:
        assert list(workshop.registry.specs) == ["value"]


async def test_a_plugin_may_be_one_file_or_a_package_and_import_its_neighbours(tmp_path: Path) -> None:
    write_plugin(tmp_path, "NUMBER = 7", "_shared")
    write_plugin(tmp_path, "from ._shared import NUMBER\n" + VALUE.replace("{value!r}", "NUMBER"), "uses")
    write_plugin(tmp_path / "package", "WORD = 'inner'", "words")
    package = VALUE.replace("{value!r}", "WORD").replace("value", "package_value")
    write_plugin(tmp_path / "package", "from .words import WORD\n" + package, "__init__")
    async with open_workshop(places=[tmp_path]) as workshop:
        assert (await workshop.result("value"), await workshop.result("package_value")) == (7, "inner")
    async with open_workshop(places=[tmp_path / "uses.py"]) as workshop:
        assert list(workshop.registry.specs) == ["value"]


async def test_two_gateways_hold_separate_copies_and_an_edit_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write_plugin(tmp_path, VALUE.format(value=111))
    async with open_workshop(places=[tmp_path]) as old:
        # Same length, most likely the same second: cached bytecode would not notice.
        write_plugin(tmp_path, VALUE.format(value=222))
        async with open_workshop(places=[tmp_path]) as new:
            assert (await old.result("value"), await new.result("value")) == (111, 222)
            assert old.registry.digest != new.registry.digest
        assert await old.result("value") == 111
    assert not any(file.suffix == ".pyc" for _, _, files in os.walk(tmp_path) for file in map(Path, files))


LIFESPAN = """
from contextlib import asynccontextmanager
import pathlib

LOG = pathlib.Path(__file__).with_name("log.txt")

def note(text):
    with LOG.open("a") as file: file.write(text + "\\n")

async def lifespan():
    note("{name} starts")
    yield {yields}
    note("{name} stops")

@tool
async def {name}_resources(ctx: ToolContext) -> list[str]:
    "List resources."
    return sorted(ctx.resources)

def register(registry): registry.add({name}_resources)
"""


async def test_lifespans_start_in_order_stop_in_reverse_and_share_what_they_yield(tmp_path: Path) -> None:
    write_plugin(tmp_path, LIFESPAN.format(name="one", yields="{'database': 1}"), "one")
    write_plugin(tmp_path, LIFESPAN.format(name="two", yields="object()"), "two")
    async with open_workshop(places=[tmp_path], resources={"outbound": None}) as workshop:
        assert await workshop.result("one_resources") == ["database", "outbound", "two"]
    assert (tmp_path / "log.txt").read_text().splitlines() == ["one starts", "two starts", "two stops", "one stops"]


async def test_a_lifespan_may_be_a_context_manager(tmp_path: Path) -> None:
    source = LIFESPAN.format(name="one", yields="None").replace(
        "async def lifespan", "@asynccontextmanager\nasync def lifespan"
    )
    async with plugin(tmp_path, source) as workshop:
        assert await workshop.result("one_resources") == []
    assert (tmp_path / "log.txt").read_text().splitlines() == ["one starts", "one stops"]


async def test_two_resources_of_one_name_are_refused_and_what_had_started_stops(tmp_path: Path) -> None:
    write_plugin(tmp_path, LIFESPAN.format(name="one", yields="{'db': 1}"), "one")
    write_plugin(tmp_path, LIFESPAN.format(name="two", yields="{'db': 2}"), "two")
    (problem,) = await refused(tmp_path)
    assert "lifespan() yields `db`" in problem
    assert (tmp_path / "log.txt").read_text().splitlines()[2:] == ["two stops", "one stops"]


async def test_looking_at_tools_starts_nothing(tmp_path: Path) -> None:
    write_plugin(tmp_path, LIFESPAN.format(name="one", yields="{}"), "one")
    registry = await Registry.build([PythonProvider([tmp_path])], ToolsConfig(), start=False)
    assert list(registry.specs) == ["one_resources"]
    await registry.close()
    assert not (tmp_path / "log.txt").exists()


async def test_hooks_are_collected_in_the_order_of_their_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_plugin(tmp_path, f"async def on_answer(answer): return {name!r}", name)
    async with open_workshop(places=[tmp_path]) as workshop:
        hooks = workshop.registry.hooks
        assert [await hook(None) for hook in hooks["on_answer"]] == ["a", "b"]
        assert hooks["on_event"] == ()


async def test_self_checks_run_and_name_what_fails(tmp_path: Path) -> None:
    source = """
    async def fine(): ...
    def broken(): raise OSError("no key")

    @tool(check=fine)
    async def a() -> None:
        "Act."

    @tool(check=broken)
    async def b() -> None:
        "Act."

    def register(registry): registry.add(a, b)
    """
    async with plugin(tmp_path, source) as workshop:
        (problem,) = await workshop.registry.check()
        assert str(problem) == f"{tmp_path}/plugin.py:11: tool `b`: its check failed: no key"


async def test_a_timeout_that_the_author_left_alone_is_the_configured_one(tmp_path: Path) -> None:
    source = """
    @tool
    async def usual() -> None:
        "Act."

    @tool(timeout_s=3, retries=2, allowed_roles=["admin"], writes=False, name="other", description="When asked.")
    async def own() -> None:
        "Act."

    def register(registry): registry.add(usual, own)
    """
    async with plugin(tmp_path, source, timeout_s=25) as workshop:
        usual, other = workshop.registry.specs.values()
        assert (usual.timeout_s, other.timeout_s) == (25, 3)
        assert (other.name, other.description, other.retries) == ("other", "When asked.", 2)
        assert other.allowed_roles == {"admin"}


async def test_dates_and_models_reach_the_tool_as_such(tmp_path: Path) -> None:
    source = """
    import datetime as dt
    from pydantic import BaseModel

    class Trip(BaseModel):
        to: str
        on: dt.date

    @tool
    def weekday(day: dt.date) -> int:
        "Tell the weekday."
        return day.weekday()

    @tool
    def book(trip: Trip) -> Trip:
        "Book."
        return trip.model_copy(update={"to": trip.to.upper()})

    def register(registry): registry.add(weekday, book)
    """
    async with plugin(tmp_path, source) as workshop:
        assert await workshop.result("weekday", day="2024-03-18") == 0
        assert await workshop.result("book", to="rome", on="2024-03-18") == {"to": "ROME", "on": "2024-03-18"}
        wrong: Any = await workshop.call("weekday", {"day": "2024-02-31"})
        assert wrong.error.startswith("Invalid arguments for `weekday`: `day`")


@pytest.mark.parametrize(
    ("source", "line"),
    [("import nowhere_to_be_found", 3), ("x = (", 3), ("def register(registry):\n    registry.nothing()", 4)],
)
async def test_problems_of_a_relative_folder_have_its_path_and_the_line(
    source: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path / "plugins", source)
    monkeypatch.chdir(tmp_path)
    (problem,) = await refused(Path("plugins"))
    assert problem.startswith(f"plugins/plugin.py:{line}: ")


async def test_a_tool_that_is_declared_and_never_added_is_a_problem(tmp_path: Path) -> None:
    write_plugin(tmp_path, '@tool\ndef value() -> int:\n    "Tell the value."\n    return 1')
    assert await refused(tmp_path) == [
        f"{tmp_path}/plugin.py:3: tool `value` is never added: the file has no `register(registry)`"
    ]


async def test_a_tool_that_register_forgets_is_a_problem(tmp_path: Path) -> None:
    source = """
    @tool
    def value() -> int:
        "Tell the value."
        return 1

    @tool
    def other() -> int:
        "Tell another."
        return 2

    def register(registry): registry.add(value)
    """
    write_plugin(tmp_path, source)
    assert await refused(tmp_path) == [
        f"{tmp_path}/plugin.py:9: tool `other` is never added: `register` does not add it"
    ]


async def test_two_tools_of_one_name_are_told_by_paths_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        write_plugin(tmp_path / "plugins", VALUE.format(value=1), name)
    monkeypatch.chdir(tmp_path)
    (problem,) = await refused(Path("plugins"))
    assert problem == "plugins/two.py:6: tool `value` is already declared at plugins/one.py:6"


async def test_a_plugin_that_never_ends_its_import_is_given_up(tmp_path: Path) -> None:
    file = write_plugin(tmp_path, "import threading\nthreading.Event().wait(1)")
    provider = PythonProvider([tmp_path], import_timeout_s=0.1)
    with pytest.raises(ConfigError, match=r"importing it took longer than 0\.1 s") as caught:
        await provider.list()
    assert caught.value.problems[0].file == str(file)


async def test_hooks_that_exit_or_were_cancelled_inside_fail_and_stop_nothing(tmp_path: Path) -> None:
    write_plugin(tmp_path, "async def on_request(request, principal):\n    raise SystemExit(2)", "a")
    write_plugin(
        tmp_path, "import asyncio\nasync def on_request(request, principal):\n    raise asyncio.CancelledError", "b"
    )
    provider = PythonProvider([tmp_path])
    await provider.list()
    exits, cancelled = provider.hooks["on_request"]
    with pytest.raises(RuntimeError, match="SystemExit: 2"):
        await exits(None, None)
    with pytest.raises(RuntimeError, match="cancelled from within"):
        await cancelled(None, None)
    await provider.close()


async def test_a_hook_that_is_cancelled_from_outside_stays_cancelled(tmp_path: Path) -> None:
    write_plugin(
        tmp_path, "import asyncio\nasync def on_request(request, principal):\n    await asyncio.Event().wait()"
    )
    provider = PythonProvider([tmp_path])
    await provider.list()
    (waits,) = provider.hooks["on_request"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await waits(None, None)
    await provider.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("before_tools", "did you mean `before_tool`?"),
        ("Before_Tool", "did you mean `before_tool`?"),
        ("after_call", "there are `on_request`"),
        ("on_startup", "there are `on_request`"),
        ("_on_startup", None),
        ("once", None),
    ],
)
async def test_a_misspelt_hook_is_a_mistake_with_its_place(tmp_path: Path, name: str, said: str | None) -> None:
    write_plugin(tmp_path, f"async def {name}(call, context): ...\ndef register(registry): ...")
    provider = PythonProvider([tmp_path])
    if said is None:
        assert await provider.list() == ()
        return
    with pytest.raises(ConfigError) as raised:
        await provider.list()
    (problem,) = raised.value.problems
    assert f"`{name}` looks like a hook and is none" in problem.message
    assert said in problem.message
    assert problem.line == 3
