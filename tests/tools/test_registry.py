from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.models import ToolsConfig
from gateway.errors import ConfigError
from gateway.security.principal import Principal
from gateway.tools.providers.python import PythonProvider
from gateway.tools.registry import Registry
from tests.tools.recording_provider import RecordingProvider, spec
from tests.tools.workshop import open_workshop, write_plugin

ALICE = Principal("key")


async def build(*names: str, **settings: object) -> Registry:
    return await Registry.build([RecordingProvider([spec(name) for name in names])], ToolsConfig(**settings))  # type: ignore[arg-type]


def names(registry: Registry, *arguments: object) -> list[str]:
    return [each.name for each in registry.fitting(*arguments)]  # type: ignore[arg-type]


async def test_tools_are_offered_in_the_order_they_were_named_and_once() -> None:
    registry = await build("a", "b", "c")
    assert names(registry, ["c", "a", "c", "unknown"], ALICE) == ["c", "a"]


async def test_no_names_means_the_default_and_an_empty_list_means_none() -> None:
    registry = await build("a", "b", default=("b",))
    assert names(registry, None, ALICE) == ["b"]
    assert names(registry, [], ALICE) == []
    assert names(await build("a"), None, ALICE) == []


async def test_a_request_may_narrow_the_offer_and_never_widen_it() -> None:
    registry = await build("a", "b", "c")
    assert names(registry, ["a", "b"], ALICE, ["b", "c"]) == ["b"]
    assert names(registry, ["a", "b"], ALICE, []) == []


async def test_a_key_is_offered_only_what_it_may_use() -> None:
    provider = RecordingProvider([spec("open"), spec("secret", allowed_roles=frozenset({"admin"}))])
    registry = await Registry.build([provider], ToolsConfig())
    assert names(registry, ["open", "secret"], ALICE) == ["open"]
    assert names(registry, ["open", "secret"], Principal("k", roles=frozenset({"admin"}))) == ["open", "secret"]
    assert names(registry, ["open", "secret"], Principal("k", tools=frozenset({"secret"}))) == []
    assert names(registry, ["open"], Principal("k", tools=frozenset({"open"}))) == ["open"]


async def test_a_name_declared_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    source = "@tool\nasync def same() -> None:\n    'Act.'\n\ndef register(registry): registry.add(same)\n"
    first, second = write_plugin(tmp_path, source, "first"), write_plugin(tmp_path, source, "second")
    with pytest.raises(ConfigError) as caught:
        await Registry.build([PythonProvider([tmp_path])], ToolsConfig())
    assert [str(problem) for problem in caught.value.problems] == [
        f"{second}:3: tool `same` is already declared at {first}:3"
    ]


@pytest.mark.parametrize("name", ["with space", "点", "a" * 65, "a.b", ""])
async def test_a_name_models_cannot_call_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="models can call names of"):
        await build(name)


async def test_every_problem_of_every_provider_is_reported_and_all_are_closed() -> None:
    one = RecordingProvider([spec("a"), spec("a", origin="later.py:9")], name="one")
    two = RecordingProvider([spec("b", parameters={"$ref": "#/nowhere"})], name="two")
    with pytest.raises(ConfigError) as caught:
        await Registry.build([one, two], ToolsConfig())
    assert [problem.line for problem in caught.value.problems] == [9, 1]
    assert one.closed
    assert two.closed


async def test_the_digest_changes_with_any_tool_and_with_nothing_else(tmp_path: Path) -> None:
    source = "@tool\nasync def act(a: {}) -> None:\n    'Act.'\n\ndef register(registry): registry.add(act)\n"
    digests = []
    for folder, kind in (("one", "int"), ("two", "int"), ("three", "str")):
        write_plugin(tmp_path / folder, source.format(kind))
        async with open_workshop(places=[tmp_path / folder]) as workshop:
            digests.append(workshop.registry.digest)
    assert digests[0] == digests[1] != digests[2]
