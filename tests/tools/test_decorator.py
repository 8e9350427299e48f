from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError
from gateway.tools import ToolContext, Tools, tool
from gateway.tools.decorator import deletes_by_name
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from gateway.tools.spec import ToolSpec
from tests.tools.workshop import plugin, write_plugin


async def problems(folder: Path, source: str) -> list[str]:
    write_plugin(folder, source)
    with pytest.raises(ConfigError) as caught:
        await Registry.build([PythonProvider([folder])], ToolsConfig())
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("argument", "fault"),
    [
        ("writes=True, compensate='undo'", "`compensate` names `undo`, and there is no such tool"),
        ("writes=True, compensate='look'", "`compensate` names `look`, which only reads: it would undo nothing"),
        ("compensate='look'", "`compensate` is for tools with `writes=True`"),
        ("writes=True, compensate=7", "`compensate` must be a tool, or a tool's name, got 7"),
        ("needs_confirmation=1", "`needs_confirmation` must be True or False, got 1"),
    ],
)
async def test_what_gates_and_undoes_a_tool_is_checked_when_it_is_loaded(
    tmp_path: Path, argument: str, fault: str
) -> None:
    source = f"""
    @tool({argument})
    async def act() -> None:
        '''Act.'''

    @tool
    async def look() -> None:
        '''Look.'''

    def register(registry): registry.add(act, look)
    """
    assert await problems(tmp_path, source) == [f"plugin.py:4: tool `act`: {fault}"]


@pytest.mark.parametrize(
    ("declared", "name", "deletes", "writes"),
    [
        ("@tool", "delete_order", True, True),
        ("@tool", "dropTable", True, True),
        ("@tool(deletes=True)", "act", True, True),
        ("@tool(deletes=False)", "remove_background", False, False),
        ("@tool(deletes=False, writes=True)", "delete_draft", False, True),
        ("@tool", "list_removed", False, False),
        ("@tool", "dropdown", False, False),
        ("@tool(writes=True)", "send", False, True),
    ],
)
async def test_what_deletes_is_known_by_its_name_and_writes_unless_its_author_says_otherwise(
    tmp_path: Path, declared: str, name: str, deletes: bool, writes: bool
) -> None:
    source = f"""
    {declared}
    async def {name}() -> None:
        '''Act.'''

    def register(registry): registry.add({name})
    """
    async with plugin(tmp_path, source) as workshop:
        spec = workshop.registry.specs[name]
    assert (spec.deletes, spec.writes) == (deletes, writes)


async def test_what_an_author_says_of_a_tool_is_in_its_spec_and_decides_its_hash(tmp_path: Path) -> None:
    async def made(declared: str) -> ToolSpec:
        source = f"""
        @tool
        async def other() -> None:
            '''Act.'''

        @tool({declared})
        async def act() -> None:
            '''Act.'''

        def register(registry): registry.add(act, other)
        """
        async with plugin(tmp_path, source) as workshop:
            return workshop.registry.specs["act"]

    said = ["requires=['other']", "result_fields=['a.b', 'c']", "cache_ttl_s=60", "cache_ttl_s=60, shared_cache=True"]
    specs = [await made(each) for each in ["", *said, "price=0.1", "retries=2", "check=lambda: None"]]
    assert (specs[1].requires, specs[2].result_fields, specs[3].cache_ttl_s) == (("other",), ("a.b", "c"), 60)
    assert (specs[4].shared_cache, specs[5].price, specs[6].retries, specs[7].checked) == (True, 0.1, 2, True)
    assert (await made("requires='other', result_fields='c'")).requires == ("other",)
    assert len({each.spec_hash for each in specs}) == len(specs)


@pytest.mark.parametrize(
    "argument",
    [
        "timeout_s=0",
        "retries=-1",
        "retries=11",
        "parameters=5",
        "cache_ttl_s=-1",
        "cache_ttl_s=60, writes=True",
        "shared_cache=True",
        "price=-1",
        "price=float('nan')",
        "check={}, writes=True",
        "check=5",
        "probe=print",
    ],
)
async def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, argument: str) -> None:
    source = f"""
    @tool({argument})
    async def act() -> None:
        '''Act.'''

    def register(registry): registry.add(act)
    """
    assert any(argument.split("=", maxsplit=1)[0] in problem for problem in await problems(tmp_path, source))


async def test_a_check_may_be_a_call_that_has_to_succeed(tmp_path: Path) -> None:
    source = """
    @tool(check={"number": "5"})
    async def double(number: int) -> int:
        '''Double.'''
        return number * 2

    @tool(check={"number": 5})
    def halve(number: int) -> int:
        '''Halve.'''
        raise ValueError(f"{number} is odd")

    def register(registry): registry.add(double, halve)
    """
    async with plugin(tmp_path, source) as workshop:
        found = [problem.message for problem in await workshop.registry.check()]
    assert found == ["tool `halve`: its check failed: 5 is odd"]


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
    assert deletes_by_name("删除订单")
    assert not deletes_by_name("undeleted_items")
    assert ToolContext is not None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("timeout_s='fast'", "`timeout_s` must be a number, got 'fast'"),
        ("cache_ttl_s=True", "`cache_ttl_s` must be a number, got True"),
        ("price=float('inf')", "`price` must be a number, got inf"),
        ("retries=1.5", "`retries` must be a whole number, got 1.5"),
        ("writes='no'", "`writes` must be True or False, got 'no'"),
        ("requires=5", "`requires` must be a list of tools' names, got 5"),
        ("description=5", "`description` must be text, got 5"),
        ("parameters='object'", "`parameters` must be a JSON Schema, as a dict, got 'object'"),
        ("sensitive=True", "`sensitive` must be a list of parameters' names and of paths in the result, got True"),
        (
            "allowed_roles='boss'",
            "`allowed_roles`: there is no role `boss`; there are admin, approver, metrics, set_tags, set_user",
        ),
        ("writes=True, idempotency_key='order'", "`idempotency_key` names `order`, which is no parameter"),
        ("writes=True, probe=lambda order: None", "`probe` takes `order`, which is no parameter of the tool"),
    ],
)
async def test_an_argument_that_cannot_be_is_told_with_file_and_line_and_stops_nothing_else(
    tmp_path: Path, argument: str, message: str
) -> None:
    source = f"""
    @tool({argument})
    async def act(number: int = 1) -> None:
        '''Act.'''

    def register(registry): registry.add(act)
    """
    assert await problems(tmp_path, source) == [f"plugin.py:4: tool `act`: {message}"]


async def test_a_probe_gets_the_tools_own_default_where_the_model_left_an_argument_out(tmp_path: Path) -> None:
    source = """
    def paid(order: str, amount: int) -> int:
        return amount

    @tool(writes=True, probe=paid)
    async def pay(order: str, amount: int = 7) -> int:
        '''Pay.'''
        return amount

    def register(registry): registry.add(pay)
    """
    async with plugin(tmp_path, source) as workshop:
        spec = workshop.registry.specs["pay"]
        context = ToolContext(None, "k", None, None, "0" * 32, "once")
        assert await workshop.registry.provider(spec).probe("pay", {"order": "A"}, context) == (True, 7)


@pytest.mark.parametrize("what", ["functools.partial(print, 1)", "C()", "C().run", "print"])
async def test_what_is_no_function_is_refused_where_it_is_declared(tmp_path: Path, what: str) -> None:
    source = "import functools\nclass C:\n    def __call__(self): ...\n    def run(self): ...\n"
    write_plugin(tmp_path, f"{source}mine = tool(name='t', description='x')({what})\n")
    with pytest.raises(ConfigError, match=r"plugin\.py:\d+: TypeError: @tool takes a function, not a "):
        await Registry.build([PythonProvider([tmp_path])], ToolsConfig())
