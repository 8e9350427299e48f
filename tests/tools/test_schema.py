from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Annotated, Any, Literal, Optional, Union

import pydantic
import pytest
from typing_extensions import TypedDict

from gateway.tools import ToolContext
from gateway.tools.schema import Signature, Unreadable, read_docstring, read_signature
from gateway.tools.spec import InvalidArguments
from gateway.tools.validate import ArgumentValidator
from tests.tools.workshop import context


class Mode(enum.Enum):
    FAST = "fast"
    FULL = "full"


class Place(TypedDict):
    city: str
    zip: str


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Node(pydantic.BaseModel):
    name: str
    kids: list[Node] = []


class Order(pydantic.BaseModel):
    """An order."""

    order_id: str = pydantic.Field(description="its number", pattern="^SO-")
    title: str = ""


def takes_everything(
    text: str,
    number: int,
    ratio: float,
    flag: bool,
    names: list[str],
    table: dict[str, int],
    mode: Mode,
    literal: Literal["a", "b"],
    maybe: Optional[int],  # noqa: UP045 - both spellings are read
    either: Union[int, str],  # noqa: UP007
    limited: Annotated[int, pydantic.Field(ge=1, le=10, description="from the type")],
    day: dt.date,
    moment: dt.datetime,
    place: Place,
    size: Size,
    tree: Node,
    anything: Any,
    default: int = 3,
) -> dict[str, Any]:
    return locals()


def signature(function: Any, explicit: Any = None) -> Signature:
    return read_signature(function, explicit)


def test_every_kind_of_type_hint_becomes_a_schema() -> None:
    schema = signature(takes_everything).parameters
    properties = schema["properties"]
    assert properties["text"] == {"type": "string"}
    assert properties["number"] == {"type": "integer"}
    assert properties["ratio"] == {"type": "number"}
    assert properties["flag"] == {"type": "boolean"}
    assert properties["names"] == {"type": "array", "items": {"type": "string"}}
    assert properties["table"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert properties["literal"] == {"enum": ["a", "b"], "type": "string"}
    assert properties["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert properties["limited"] == {"type": "integer", "minimum": 1, "maximum": 10, "description": "from the type"}
    assert properties["day"] == {"type": "string", "format": "date"}
    assert properties["default"] == {"type": "integer", "default": 3}
    assert properties["anything"] == {}
    assert schema["$defs"]["Mode"] == {"enum": ["fast", "full"], "type": "string"}
    assert schema["$defs"]["Node"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/Node"}
    assert schema["additionalProperties"] is False
    assert "default" not in schema["required"]
    assert "maybe" in schema["required"]
    ArgumentValidator(schema)


def test_arguments_arrive_as_the_types_the_function_declares() -> None:
    arguments = {
        "text": "t", "number": 1, "ratio": 2, "flag": True, "names": ["n"], "table": {"a": 1}, "mode": "full",
        "literal": "b", "maybe": None, "either": "e", "limited": 10, "day": "2024-03-18",
        "moment": "2024-03-18T10:00:00Z", "place": {"city": "杭州", "zip": "310000"}, "size": {"width": 2},
        "tree": {"name": "a", "kids": [{"name": "b"}]}, "anything": [1, {"x": None}],
    }  # fmt: skip
    read = signature(takes_everything)
    valid = ArgumentValidator(read.parameters).validate(arguments)
    got = takes_everything(**read.bind(valid, context()))
    assert got["mode"] is Mode.FULL
    assert got["day"] == dt.date(2024, 3, 18)
    assert got["moment"] == dt.datetime(2024, 3, 18, 10, tzinfo=dt.UTC)
    assert got["size"] == Size(2, 1)
    assert got["tree"] == Node(name="a", kids=[Node(name="b")])
    assert got["place"] == {"city": "杭州", "zip": "310000"}
    assert got["anything"] == [1, {"x": None}]
    assert got["default"] == 3


def test_a_value_that_fits_the_schema_but_not_the_type_names_its_parameter() -> None:
    def tool(day: dt.date) -> None: ...

    with pytest.raises(InvalidArguments, match="`day`"):
        signature(tool).bind({"day": "2024-02-31"}, context())


def test_the_docstring_gives_the_description_and_the_parameters_texts() -> None:
    def tool(order_id: str, count: int = 1) -> None:
        """Look up an order when the user asks for it.

        It knows all of them: since 2020.

        order_id: the order's number,
            for example SO-2024-0318
        count: how many
        """

    read = signature(tool)
    assert read.description == "Look up an order when the user asks for it.\n\nIt knows all of them: since 2020."
    assert read.parameters["properties"]["order_id"]["description"] == "the order's number, for example SO-2024-0318"
    assert read.parameters["properties"]["count"]["description"] == "how many"


def test_an_args_section_is_read_too_and_what_follows_it_is_left_out() -> None:
    text = "Look.\n\nArgs:\n    a (str): the first\n    b: the second\n\nReturns:\n    Nothing: at all"
    assert read_docstring(text, frozenset({"a", "b"})) == ("Look.", {"a": "the first", "b": "the second"})
    assert read_docstring("看。\n\na：第一个\nb： 第二个", frozenset({"a", "b"})) == (
        "看。\n\na：第一个",
        {"b": "第二个"},
    )


def test_the_context_is_handed_over_and_not_part_of_the_schema() -> None:
    def tool(ctx: ToolContext, text: str = "x") -> Any: ...
    def other(text: str, where: ToolContext | None = None) -> Any: ...

    for function, name in ((tool, "ctx"), (other, "where")):
        read = signature(function)
        assert list(read.parameters["properties"]) == ["text"]
        given = context()
        assert read.bind({"text": "y"}, given) == {"text": "y", name: given}


def test_a_model_as_the_single_parameter_is_the_schema() -> None:
    def tool(order: Order, ctx: ToolContext) -> Any: ...

    read = signature(tool)
    assert read.parameters["required"] == ["order_id"]
    assert read.parameters["properties"]["title"] == {"default": "", "type": "string"}
    assert read.parameters["properties"]["order_id"]["description"] == "its number"
    assert read.parameters["additionalProperties"] is False
    assert read.bind({"order_id": "SO-1"}, context())["order"] == Order(order_id="SO-1")


def test_a_model_that_contains_itself_stays_an_object_at_the_top() -> None:
    def tool(tree: Node) -> Any: ...

    schema = signature(tool).parameters
    assert schema["type"] == "object"
    assert ArgumentValidator(schema).validate({"name": "a", "kids": [{"name": "b"}]})


def test_names_that_clash_with_a_models_attributes_work() -> None:
    def tool(schema: str, copy: int, _hidden: bool, model_config: str, json: str = "") -> Any: ...

    read = signature(tool)
    values = {"schema": "s", "copy": 1, "_hidden": True, "model_config": "m"}
    assert list(read.parameters["properties"]) == ["schema", "copy", "_hidden", "model_config", "json"]
    assert read.bind(values, context()) == values


def test_a_function_without_parameters_has_an_empty_closed_schema() -> None:
    def tool() -> None: ...

    assert signature(tool).parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_default_without_a_json_form_is_kept_by_the_function() -> None:
    marker = object()

    def tool(text: str = "a", other: Any = marker) -> Any: ...

    assert "default" not in signature(tool).parameters["properties"]["other"]
    assert signature(tool).bind({}, context()) == {}


def no_type(a) -> None: ...  # type: ignore[no-untyped-def]
def many(*a: int) -> None: ...
def named(**a: int) -> None: ...
def positional(a: int, /) -> None: ...
def no_json(a: type[int] | memoryview) -> None: ...
def field_default(a: int = pydantic.Field(1)) -> None: ...


@pytest.mark.parametrize("function", [no_type, many, named, positional, no_json, field_default])
def test_a_parameter_that_makes_no_schema_is_named(function: Any) -> None:
    with pytest.raises(Unreadable):
        signature(function)


def test_an_explicit_schema_stands_and_has_to_fit_the_function() -> None:
    def tool(a: int, b: int = 1) -> None: ...

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    read = signature(tool, schema)
    assert read.parameters == schema
    assert read.bind({"a": 1}, context()) == {"a": 1}
    wrongs: list[dict[str, Any]] = [{"type": "array"}, {"properties": {"c": {}}}, {"properties": {"a": {}}}]
    for wrong in wrongs:
        with pytest.raises(Unreadable):
            signature(tool, wrong)
