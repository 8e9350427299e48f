"""The JSON Schema of a Python function's arguments, from its type hints and docstring, and the way back to its values.

Knows pydantic. Does not know how a call is validated before (`validate.py`) or run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from gateway.tools.spec import InvalidArguments, ToolContext

_SECTION = re.compile(
    r"^\s*(args|arguments|parameters|returns?|raises|yields|examples?|参数|返回)\s*[:：]\s*$", re.IGNORECASE
)
_NAMED = re.compile(r"^(\s*)[*`]{0,2}(\w+)[*`]{0,2}\s*(?:\([^)]*\))?\s*[:：]\s+(\S.*)$")


class Unreadable(Exception):
    """A function whose parameters make no schema; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function takes its arguments.

    Attributes:
        description: the docstring up to its first parameter line.
        parameters: JSON Schema of the arguments, an object schema.
        context: the name of the parameter that takes the ToolContext, or None.
        model: turns validated JSON into the types the function declares; None where an explicit schema stands for them.
        whole: the name of the one parameter that takes the model itself, or None.
        names: field of the model to parameter name.
    """

    description: str
    parameters: Mapping[str, Any]
    context: str | None
    model: type[BaseModel] | None
    whole: str | None
    names: Mapping[str, str]

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """The keyword arguments of one call.

        Raises:
            InvalidArguments: a value fits the schema but not the declared type (31 February, a model's own validator).
        """
        if self.model is None:
            bound = dict(arguments)
        else:
            try:
                made = self.model.model_validate(arguments)
            except ValidationError as error:
                raise InvalidArguments("; ".join(_fault(each) for each in error.errors()[:5])) from error
            if self.whole is not None:
                bound = {self.whole: made}
            else:
                # Parameters that were not given keep the function's own default, the same object as in a plain call.
                bound = {self.names[name]: getattr(made, name) for name in made.model_fields_set}
        if self.context is not None:
            bound[self.context] = context
        return bound


def read_signature(function: Callable[..., Any], explicit: Mapping[str, Any] | None = None) -> Signature:
    """Read a function's parameters; `explicit` is a schema that its author wrote instead.

    Raises:
        Unreadable: a parameter has no type, a type has no JSON form, or the explicit schema does not fit the function.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise Unreadable(f"its type hints cannot be read: {error}") from error
    parameters = dict(inspect.signature(function).parameters)
    context = next((name for name in parameters if _is_context(hints.get(name))), None)
    if context is not None:
        del parameters[context]
    description, texts = read_docstring(inspect.getdoc(function) or "", frozenset(parameters))
    if explicit is not None:
        _check_explicit(explicit, parameters)
        whole_schema = {"type": "object", "properties": {}, **explicit}
        return Signature(description, whole_schema, context, None, None, {})
    whole = _whole_model(parameters, hints)
    if whole is not None:
        name, model = whole
        return Signature(description, _schema_of(model, closed=True), context, model, name, {})
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for position, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise Unreadable(f"parameter `{parameter}`: only parameters that can be given by name are supported")
        if name not in hints:
            raise Unreadable(f"parameter `{name}` has no type; write `{name}: str`, for example")
        # Fields have names of their own: `schema`, `copy` or `_x` would clash with a model's attributes.
        field = f"p{position}"
        names[field] = name
        fields[field] = (hints[name], _field(name, parameter, hints[name], texts.get(name)))
    try:
        made = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, TypeError) as error:
        raise Unreadable(_strange(parameters, hints) or str(error).split("\n", 1)[0]) from error
    return Signature(description, _schema_of(made, closed=True), context, made, None, names)


def read_output(function: Callable[..., Any]) -> Mapping[str, Any] | None:
    """JSON Schema of what a function returns, where its type hints say so."""
    try:
        hint = get_type_hints(function, include_extras=True).get("return", Any)
        return None if hint is Any else TypeAdapter(hint).json_schema(mode="serialization", schema_generator=_Quiet)
    except (NameError, TypeError, AttributeError, SyntaxError, PydanticUserError):
        return None


def read_docstring(text: str, names: frozenset[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the texts of its `name: text` lines.

    A line that is indented deeper than its `name:` continues it. Google's `Args:` sections are read too.
    """
    description: list[str] = []
    texts: dict[str, str] = {}
    current: str | None = None
    indent = 0
    ended = False
    for line in text.splitlines():
        found = _NAMED.match(line)
        if found and found[2] in names:
            current, indent, ended = found[2], len(found[1]), True
            texts[current] = found[3].strip()
        elif _SECTION.match(line):
            current, ended = None, True
        elif current is not None and line.strip() and len(line) - len(line.lstrip()) > indent:
            texts[current] += " " + line.strip()
        else:
            current = None
            if not ended:
                description.append(line)
    return "\n".join(description).strip(), texts


def _is_context(hint: Any) -> bool:
    return any(
        isinstance(each, type) and issubclass(each, ToolContext) for each in (hint, *getattr(hint, "__args__", ()))
    )


def _whole_model(parameters: Mapping[str, Any], hints: Mapping[str, Any]) -> tuple[str, type[BaseModel]] | None:
    if len(parameters) != 1:
        return None
    name = next(iter(parameters))
    hint = hints.get(name)
    return (name, hint) if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _check_explicit(schema: Any, parameters: Mapping[str, inspect.Parameter]) -> None:
    if not isinstance(schema, Mapping):
        raise Unreadable(f"`parameters` must be a JSON Schema as a dict, got {schema!r}")
    if schema.get("type", "object") != "object":
        raise Unreadable(f"`parameters` must describe an object, got type {schema.get('type')!r}")
    properties = schema.get("properties", {})
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [name for name in properties if name not in parameters]
    if unknown:
        raise Unreadable(f"`parameters` names `{unknown[0]}`, which the function does not take")
    required = schema.get("required", ())
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in required:
            raise Unreadable(f"the function needs `{name}`, which `parameters` does not require")


def _field(name: str, parameter: inspect.Parameter, hint: Any, text: str | None) -> Any:
    described = any(isinstance(extra, FieldInfo) and extra.description for extra in getattr(hint, "__metadata__", ()))
    if isinstance(parameter.default, FieldInfo):
        raise Unreadable(f"parameter `{name}`: write Field(...) into Annotated, not as the default")
    default = ... if parameter.default is parameter.empty else parameter.default
    about: dict[str, Any] = {"alias": name}
    if text and not described:
        about["description"] = text
    return Field(default, **about)


def _strange(parameters: Mapping[str, Any], hints: Mapping[str, Any]) -> str | None:
    """Which parameter's type pydantic does not know, in words of the plugin's author."""
    for name in parameters:
        try:
            TypeAdapter(hints[name])
        except (PydanticUserError, TypeError):
            kind = getattr(hints[name], "__name__", None) or str(hints[name])
            fitting = "`str`, `dict`, a dataclass, a `TypedDict` (of `typing_extensions` before Python 3.12) or a pydantic model"
            return f"parameter `{name}`: `{kind}` has no JSON form; take {fitting}"
    return None


class _Quiet(GenerateJsonSchema):
    """Defaults without a JSON form are left out of the schema; the function has them all the same."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def _schema_of(model: type[BaseModel], *, closed: bool) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_Quiet)
    except PydanticUserError as error:
        raise Unreadable(str(error).split("\n", 1)[0]) from error
    root = schema.get("$ref")
    if isinstance(root, str):
        # A model that contains itself is a reference at the top; models want an object there.
        schema = {**schema["$defs"][root.rsplit("/", 1)[-1]], "$defs": schema["$defs"]}
    schema = _untitled(schema)
    if model.model_config.get("title") is None:
        schema.pop("description", None)
    schema.setdefault("properties", {})
    if closed:
        schema.setdefault("additionalProperties", False)
    return {"type": "object", **schema}


def _untitled(schema: Any) -> Any:
    """The schema without the titles pydantic makes up: they cost tokens and say nothing."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in {"properties", "$defs"} and isinstance(value, dict):
            out[key] = {name: _untitled(inner) for name, inner in value.items()}
        elif key in {"default", "enum", "const", "examples"}:
            out[key] = value
        else:
            out[key] = _untitled(value)
    return out


def _fault(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"]) or "arguments"
    return f"`{path}`: {error['msg']}"
