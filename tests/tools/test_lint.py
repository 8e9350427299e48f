from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.tools.lint import lint
from gateway.tools.spec import make_spec
from tests.tools.workshop import open_workshop, plugin

GOOD = "Look up an order when the user asks for its status."
ONE = {"type": "object", "properties": {"a": {"type": "string", "description": "a thing"}}}


def found(description: str = GOOD, parameters: Any = None, **more: Any) -> list[str]:
    spec = make_spec(
        name="act",
        description=description,
        parameters=ONE if parameters is None else parameters,
        origin="made.py:7",
        **{"provider": "python", "timeout_s": 10, **more},
    )
    return [str(problem) for problem in lint(spec)]


def about(said: str, **more: Any) -> dict[str, Any]:
    return {"properties": {"a": {"type": "string", "description": said, **more}}}


@pytest.mark.parametrize(
    "description",
    [
        GOOD,
        "Track a shipment to see where a parcel is. " + "More. " * 50,
        "Return mail for the customer",
        "当用户询问订单状态时使用。" + "很长的说明" * 40,
        "查询天气，用于回答天气问题",
        "Находит заказ по номеру",
        "Call when v1.2 of a file is asked for.",
        "Use if asked\n\n" + "a " * 100,
    ],
)
def test_a_description_that_says_when_is_fine(description: str) -> None:
    assert found(description) == []


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ("Looks up orders.", "say when"),
        ("订单查询", "say when"),
        ("Use this when " + "very " * 20 + "much is asked. More.", "at most before the first full stop"),
        ("Use it when v1.2 is asked for and " + "very " * 20 + "long.", "at most before the first full stop"),
        ("当用户询问" + "订单" * 50, "at most before the first full stop"),
    ],
)
def test_a_first_sentence_is_short_and_says_when(description: str, words: str) -> None:
    (text,) = found(description)
    assert text.startswith("made.py:7: tool `act`: the first sentence")
    assert words in text


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"properties": {"a": {"type": "string"}}}, "parameter `a` has no description"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}}, "has no description"),
        ({"properties": {}, "required": ["b"]}, "`required` names `b`, which is no parameter"),
        (about("one of red, green and blue"), "give them as an enum"),
        (about("the order: 'asc' or 'desc'"), "give them as an enum"),
        (about("either day or night"), "give them as an enum"),
        (about("排序，可选值 asc、desc"), "give them as an enum"),
    ],
)
def test_parameters_are_described_and_closed_sets_are_enums(parameters: Any, words: str) -> None:
    (text,) = found(parameters=parameters)
    assert words in text


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string", "description": "a thing"}}},
        about("'asc' or 'desc'", enum=["asc", "desc"]),
        about("the order's number, for example SO-1 or SO-2"),
        about("a city or an IANA zone, for example Asia/Shanghai, Tokyo, 北京 or UTC"),
        about("a number of one of your orders"),
        {"properties": {"a": {"type": "integer", "description": "one of 1, 2, 3"}}},
    ],
)
def test_parameters_that_are_said_well_are_fine(parameters: Any) -> None:
    assert found(parameters=parameters) == []


def test_what_takes_long_is_to_be_a_run() -> None:
    assert found(timeout_s=30) == []
    assert "to be made a run" in found(timeout_s=31)[0]


def test_results_are_flat_or_say_what_is_needed_of_them() -> None:
    def holding(inner: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": inner}}

    line = {"type": "string"}
    lines = {"type": "array", "items": holding(line)}
    assert found(output=holding(lines)) == []
    deep = holding({"anyOf": [{"type": "null"}, {"type": "array", "items": holding(holding(line))}]})
    assert "objects in objects, 3 deep" in found(output=deep)[0]
    assert found(output=deep, result_fields=("a",)) == []
    assert found(output={"$ref": "#/$defs/N", "$defs": {"N": holding({"$ref": "#/$defs/N"})}}) != []


def test_a_writing_tool_without_a_check_is_a_warning_and_so_is_whatever_a_server_says() -> None:
    (problem,) = lint(_spec(writes=True))
    assert (problem.severity, "has no `check`" in problem.message) == ("warning", True)
    assert lint(_spec(writes=True, checked=True)) == ()
    assert [each.severity for each in lint(_spec(provider="docs", description="Looks."))] == ["warning"]
    assert [each.severity for each in lint(_spec(description="Looks."))] == ["error"]


def _spec(**more: Any) -> Any:
    given = {"name": "act", "description": GOOD, "parameters": ONE, "provider": "python", "origin": "made.py:7", **more}
    return make_spec(timeout_s=10, **given)


async def test_what_a_function_returns_is_known_by_its_type_hints(tmp_path: Path) -> None:
    source = """
    import pydantic
    class Line(pydantic.BaseModel):
        name: str
    class Part(pydantic.BaseModel):
        lines: list[Line]
    class Order(pydantic.BaseModel):
        parts: list[Part]

    @tool
    async def act() -> Order | None:
        '''Act when asked.'''

    @tool
    async def say() -> Any:
        '''Act when asked.'''

    def register(registry): registry.add(act, say)
    """
    async with plugin(tmp_path, source) as workshop:
        specs = workshop.registry.specs
        assert ["3 deep" in each.message for each in lint(specs["act"])] == [True]
        assert lint(specs["say"]) == ()


async def test_the_shipped_tools_pass() -> None:
    async with open_workshop(places=[Path(__file__).parents[2] / "plugins"], resources={"outbound": None}) as workshop:
        assert [str(problem) for spec in workshop.registry.specs.values() for problem in lint(spec)] == []
        assert await workshop.registry.check() == ()
