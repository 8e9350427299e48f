"""One operation of an HTTP service as a tool, and the operations that a configuration describes itself.

Pure values. Knows where each argument goes; does not know how a request is written or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.config.http_tools import HttpServiceConfig, HttpToolConfig, placeholders

Place = Literal["path", "query", "header", "body"]
Style = Literal["form", "spaceDelimited", "pipeDelimited", "deepObject", "simple", "json"]
BodyKind = Literal["json", "form", "text"]

READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one argument goes.

    Attributes:
        argument: its name in the tool's schema.
        place: the part of the request.
        name: its name there; empty for an argument that is the whole body.
        style: how lists and objects are written, by OpenAPI's words; `json` for JSON text.
        explode: whether a list's items are parameters of their own.
    """

    argument: str
    place: Place
    name: str
    style: Style = "form"
    explode: bool = True


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: the tool's name.
        description: what the model reads.
        method: upper case.
        path: the template below the base URL, `{name}` for path parameters.
        parameters: JSON Schema of the arguments.
        placed: where the arguments go.
        body: how the body is written; None where there is none.
        origin: where it was described, `file:line`.
        writes: whether it changes something.
        timeout_s: seconds of its own, or None.
        remote_name: what its service calls it, where that has given the name; empty for others.
    """

    name: str
    description: str
    method: str
    path: str
    parameters: Mapping[str, Any]
    placed: tuple[Placed, ...]
    body: BodyKind | None
    origin: str
    writes: bool
    timeout_s: float | None = None
    remote_name: str = ""


def described_operations(config: HttpServiceConfig, origin: Callable[[str], str]) -> tuple[Operation, ...]:
    """The operations that stand in the configuration itself; `origin` says where one of this name does."""
    return tuple(_described(name, tool, origin(name)) for name, tool in config.tools.items())


def _described(name: str, tool: HttpToolConfig, origin: str) -> Operation:
    in_path = placeholders(tool.path)
    has_body = tool.method in {"POST", "PUT", "PATCH"}
    placed = []
    for parameter in tool.parameters:
        if parameter in in_path:
            placed.append(Placed(parameter, "path", parameter, "simple", explode=False))
        elif parameter in tool.header:
            placed.append(Placed(parameter, "header", tool.header[parameter], "simple", explode=False))
        elif has_body and parameter not in tool.query:
            placed.append(Placed(parameter, "body", parameter))
        else:
            placed.append(Placed(parameter, "query", parameter))
    required = tool.required
    if required is None:
        required = tuple(key for key, schema in tool.parameters.items() if "default" not in schema)
    required = tuple(dict.fromkeys((*required, *in_path)))
    schema: dict[str, Any] = {"type": "object", "properties": dict(tool.parameters), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return Operation(
        name=name,
        description=tool.description,
        method=tool.method,
        path=tool.path,
        parameters=schema,
        placed=tuple(placed),
        body=tool.body if any(each.place == "body" for each in placed) else None,
        origin=origin,
        writes=tool.method not in READING if tool.writes is None else tool.writes,
        timeout_s=tool.timeout_s,
    )
