"""The guide's example is a plugin that works, and its tables name what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from gateway.tools import tool
from gateway.tools.provider import HOOK_NAMES
from tests.tools.workshop import open_workshop

GUIDE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text("utf-8")


async def test_the_first_example_is_a_plugin_that_works(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    (tmp_path / "stock.py").write_text(found[1], "utf-8")
    async with open_workshop(places=[tmp_path]) as workshop:
        assert await workshop.result("stock_level", article="KB-87") == {"available": 42}
        (spec,) = workshop.registry.specs.values()
        assert spec.parameters["properties"]["warehouse"]["description"] == "where to look"


async def test_every_argument_hook_and_example_tool_is_documented() -> None:
    async with open_workshop(places=[Path(__file__).parents[2] / "plugins"], resources={"outbound": None}) as workshop:
        names = [*inspect.signature(tool).parameters, *HOOK_NAMES]
        assert [name for name in names if f"`{name}" not in GUIDE] == []
        assert [name for name in workshop.registry.specs if f"`{name}(" not in GUIDE] == []


async def test_the_example_tools_say_when_to_use_them_in_a_short_first_sentence() -> None:
    async with open_workshop(places=[Path(__file__).parents[2] / "plugins"], resources={"outbound": None}) as workshop:
        for spec in workshop.registry.specs.values():
            assert len(spec.description.split(".")[0]) <= 100
            for about in spec.parameters["properties"].values():
                assert about["description"]
        assert await workshop.registry.check() == ()
