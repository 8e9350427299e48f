from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError
from gateway.tools import ToolContext, Tools, tool
from gateway.tools.decorator import deletes_by_name
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from tests.tools.workshop import plugin, write_plugin


async def problems(folder: Path, source: str) -> list[str]:
    write_plugin(folder, source)
    with pytest.raises(ConfigError) as caught:
        await Registry.build([PythonProvider([folder])], ToolsConfig())
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    "argument",
    [
        "needs_confirmation=True",
        "confidence_gate=True",
        "requires=('other',)",
        "sensitive=('phone',)",
        "result_fields=['a']",
        "cache_ttl_s=60",
        "shared_cache=True",
        "compensate='undo'",
        "price=0.1",
    ],
)
async def test_an_argument_this_version_does_not_serve_is_refused_by_file_line_and_name(
    tmp_path: Path, argument: str
) -> None:
    source = f"""
    @tool({argument})
    async def act() -> None:
        '''Act.'''

    def register(registry): registry.add(act)
    """
    name = argument.split("=", maxsplit=1)[0]
    assert await problems(tmp_path, source) == [f"plugin.py:4: tool `act`: `{name}` is not supported by this version"]


@pytest.mark.parametrize(
    ("declared", "name", "refused"),
    [
        ("@tool", "delete_order", True),
        ("@tool", "dropTable", True),
        ("@tool", "删除订单", True),
        ("@tool(deletes=True)", "act", True),
        ("@tool(deletes=False)", "remove_background", False),
        ("@tool", "list_removed", False),
        ("@tool", "dropdown", False),
        ("@tool(writes=True)", "send", False),
    ],
)
async def test_deleting_tools_are_refused_and_others_are_not(
    tmp_path: Path, declared: str, name: str, refused: bool
) -> None:
    source = f"""
    {declared}
    async def {name}() -> None:
        '''Act.'''

    def register(registry): registry.add({name})
    """
    if refused:
        assert "`deletes` is not supported" in (await problems(tmp_path, source))[0]
    else:
        async with plugin(tmp_path, source) as workshop:
            assert list(workshop.registry.specs) == [name]


@pytest.mark.parametrize("argument", ["timeout_s=0", "retries=-1", "retries=1, writes=True", "parameters=5"])
async def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, argument: str) -> None:
    source = f"""
    @tool({argument})
    async def act() -> None:
        '''Act.'''

    def register(registry): registry.add(act)
    """
    assert any(argument.split("=", maxsplit=1)[0] in problem for problem in await problems(tmp_path, source))


def test_a_decorated_function_stays_a_plain_function() -> None:
    @tool
    def bare(number: int) -> int:
        """Double."""
        return number * 2

    @tool(name="other", timeout_s=3)
    def named(number: int) -> int:
        """Double."""
        return number * 2

    tools = Tools()
    tools.add(bare, named)
    assert (bare(2), named(3)) == (4, 6)
    assert [(each.name, each.timeout_s) for each in tools.declarations] == [("bare", 10), ("other", 3)]
    assert tools.problems == []


def test_only_tools_can_be_added() -> None:
    with pytest.raises(TypeError, match="decorate it with @tool"):
        Tools().add(print)


def test_words_that_delete_count_as_words_only() -> None:
    assert deletes_by_name("user-remove")
    assert deletes_by_name("purgeCache")
    assert not deletes_by_name("undeleted_items")
    assert ToolContext is not None
