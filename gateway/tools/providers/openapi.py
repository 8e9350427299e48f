"""The operations of an OpenAPI document as tools.

Knows which operations are chosen, what they are called, and where their arguments go. Schemas are `openapi_schema.py`'s.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.http_tools import HttpServiceConfig, placeholders
from gateway.errors import ConfigError, Problem
from gateway.tools.names import callable_name
from gateway.tools.providers.http_operation import READING, BodyKind, Operation, Placed, Style
from gateway.tools.providers.openapi_document import BrokenReference, OpenApiDocument, Path
from gateway.tools.providers.openapi_schema import Schemas, TooDeep

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_MAX_DESCRIPTION = 1000
# By the specification a description of these says nothing: they are decided elsewhere.
_DECIDED = frozenset({"accept", "content-type", "authorization"})
_QUERY_STYLES: dict[str, Style] = {
    "form": "form",
    "spaceDelimited": "spaceDelimited",
    "pipeDelimited": "pipeDelimited",
    "deepObject": "deepObject",
}
_FORM, _TEXT = "application/x-www-form-urlencoded", "text/plain"


class Unusable(Exception):
    """An operation that makes no tool; the message says why."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An operation before it is read."""

    name: str
    id: str | None
    method: str
    template: str
    path: Path
    item: dict[str, Any]
    value: dict[str, Any]

    def is_meant_by(self, glob: str) -> bool:
        spelled = (self.name, self.id or "", f"{self.method} {self.template}")
        return any(fnmatch.fnmatchcase(each, glob) for each in spelled)


def base_url_of(document: OpenApiDocument) -> str:
    """The first server's URL, its variables at their defaults.

    Raises:
        ConfigError: there is none that says where the service is.
    """
    servers = document.value.get("servers")
    first = servers[0] if isinstance(servers, list) and servers else None
    url = str(first.get("url", "")) if isinstance(first, dict) else ""
    variables = first.get("variables") if isinstance(first, dict) else None
    for name, variable in (variables if isinstance(variables, dict) else {}).items():
        if isinstance(variable, dict):
            url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
    if not re.fullmatch(r"https?://[^/\s?#@{}]+(/[^\s?#{}]*)?", url):
        said = f"the server {url!r} is no complete address" if url else "it names no server"
        raise ConfigError((Problem(document.file, document.lines.get(("servers",), 0), f"{said}; set `base_url`"),))
    return url


def openapi_operations(document: OpenApiDocument, config: HttpServiceConfig) -> tuple[Operation, ...]:
    """The chosen operations, in the document's order.

    Raises:
        ConfigError: with every problem.
    """
    problems: list[Problem] = []
    chosen = _chosen(list(_found(document, problems)), config.operations, document, problems)
    # What the configuration sends in any case is not the model's to fill in.
    decided = {*_DECIDED, *(name.lower() for name in config.headers), *config.forward_headers}
    made: list[Operation] = []
    for each in chosen:
        try:
            made.append(_Reader(document, each, decided).read())
        except (Unusable, BrokenReference, TooDeep) as error:
            problems.append(document.problem(each.path, f'{error}; leave it out with `operations: ["!{each.name}"]`'))
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(made)


def _found(document: OpenApiDocument, problems: list[Problem]) -> Iterator[_Found]:
    paths = document.value.get("paths")
    taken: set[str] = set()
    for template, written in (paths if isinstance(paths, dict) else {}).items():
        try:
            item = document.followed(written)
        except BrokenReference as error:
            problems.append(document.problem(("paths", template), str(error)))
            continue
        for method in _METHODS:
            value = item.get(method) if isinstance(item, dict) else None
            if not isinstance(value, dict):
                continue
            operation_id = value.get("operationId")
            named = operation_id if isinstance(operation_id, str) and operation_id else None
            name = callable_name(named or _spoken(method, template))
            if named is None and name in taken:
                name = callable_name(f"{method} {template}")
            taken.add(name)
            yield _Found(name, named, method.upper(), template, ("paths", template, method), item, value)


def _spoken(method: str, template: str) -> str:
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_]+", "_", f"{method}_{template}")).strip("_")


def _chosen(
    found: Sequence[_Found], globs: Collection[str], document: OpenApiDocument, problems: list[Problem]
) -> list[_Found]:
    wanted = [glob for glob in globs if not glob.startswith("!")] or ["*"]
    unwanted = [glob[1:] for glob in globs if glob.startswith("!")]
    for glob in (*wanted, *unwanted):
        if not any(each.is_meant_by(glob) for each in found):
            near = difflib.get_close_matches(glob, [each.name for each in found], n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            problems.append(
                Problem(document.file, 0, f"`operations` names `{glob}`, and no operation is called so{hint}")
            )
    return [
        each
        for each in found
        if any(each.is_meant_by(glob) for glob in wanted) and not any(each.is_meant_by(glob) for glob in unwanted)
    ]


class _Reader:
    """Reads one operation."""

    def __init__(self, document: OpenApiDocument, found: _Found, decided: Collection[str]) -> None:
        self._document = document
        self._found = found
        self._decided = decided
        self._schemas = Schemas(document)
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._placed: list[Placed] = []

    def read(self) -> Operation:
        found = self._found
        if not found.template.startswith("/"):
            # Behind the server's address, `.evil.example` or `@evil.example` would be another server.
            raise Unusable("its path does not begin with `/`")
        if any(segment in {".", ".."} for segment in found.template.split("/")):
            raise Unusable("its path steps to another folder")
        for parameter in self._parameters():
            self._parameter(parameter)
        in_path = {each.name for each in self._placed if each.place == "path"}
        undescribed = [name for name in placeholders(found.template) if name not in in_path]
        if undescribed:
            raise Unusable(f"its path has `{{{undescribed[0]}}}`, which is no parameter of it")
        body = self._body()
        schema: dict[str, Any] = {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
            "$defs": self._schemas.definitions,
        }
        return Operation(
            name=found.name,
            description=self._description(),
            method=found.method,
            path=found.template,
            parameters={key: value for key, value in schema.items() if value or value is False or key == "properties"},
            placed=tuple(self._placed),
            body=body,
            origin=self._document.origin(found.path),
            writes=found.method not in READING,
            remote_name=found.id or found.name,
        )

    def _description(self) -> str:
        summary, more = (str(self._found.value.get(key) or "").strip() for key in ("summary", "description"))
        if summary and more and not more.startswith(summary):
            summary = summary.rstrip(".") + ". "
            return (summary + more)[:_MAX_DESCRIPTION]
        return (more or summary or f"{self._found.method} {self._found.template}")[:_MAX_DESCRIPTION]

    def _parameters(self) -> list[dict[str, Any]]:
        """The operation's parameters, and those of its path that it does not describe anew."""
        by_place: dict[tuple[str, str], dict[str, Any]] = {}
        for source in (self._found.item, self._found.value):
            listed = source.get("parameters")
            for entry in listed if isinstance(listed, list) else []:
                parameter = self._document.followed(entry)
                if isinstance(parameter, dict):
                    by_place[str(parameter.get("in")), str(parameter.get("name"))] = parameter
        return list(by_place.values())

    def _parameter(self, parameter: dict[str, Any]) -> None:
        place, name = parameter.get("in"), str(parameter.get("name"))
        required = parameter.get("required") is True or place == "path"
        if place == "header" and name.lower() in self._decided:
            return
        if place == "cookie":
            if required:
                raise Unusable(f"it needs the cookie `{name}`, and cookies are not sent")
            return
        if place not in {"path", "query", "header"}:
            raise Unusable(f"the parameter `{name}` stands in {place!r}, which is unknown")
        if place == "path" and f"{{{name}}}" not in self._found.template:
            return
        schema, style = parameter.get("schema", {}), self._style(parameter, str(place))
        content = parameter.get("content")
        if isinstance(content, dict) and content:
            kind, about = next(iter(content.items()))
            if not _is_json(kind):
                raise Unusable(f"the parameter `{name}` is written as {kind!r}, which is not supported")
            schema, style = (about.get("schema", {}) if isinstance(about, dict) else {}), "json"
        made = self._schemas.convert(schema)
        if isinstance(made, dict) and "description" not in made and isinstance(parameter.get("description"), str):
            made = {**made, "description": parameter["description"].strip()[:_MAX_DESCRIPTION]}
        argument = self._argument(name, str(place))
        explode = parameter.get("explode")
        self._placed.append(
            Placed(
                argument,
                place,
                name,
                style,
                explode=explode if isinstance(explode, bool) else style == "form",
            )
        )
        self._add(argument, made, required=required)

    def _style(self, parameter: dict[str, Any], place: str) -> Style:
        style = parameter.get("style")
        if place == "query":
            if style is not None and style not in _QUERY_STYLES:
                raise Unusable(
                    f"the parameter `{parameter.get('name')}` has the style {style!r}, which is not supported"
                )
            return _QUERY_STYLES[style or "form"]
        if style not in {None, "simple"}:
            raise Unusable(f"the parameter `{parameter.get('name')}` has the style {style!r}, which is not supported")
        return "simple"

    def _body(self) -> BodyKind | None:
        body = self._document.followed(self._found.value.get("requestBody"))
        content = body.get("content") if isinstance(body, dict) else None
        if not isinstance(content, dict) or not content:
            return None
        required = body.get("required") is True
        kind, media = _best(content)
        if kind is None:
            if not required:
                return None
            raise Unusable(f"its body is written as {next(iter(content))!r}, which is not supported")
        schema = media.get("schema", {}) if isinstance(media, dict) else {}
        whole = self._document.followed(schema)
        if kind != "text" and _is_flat(whole) and not self._clashes(whole["properties"]):
            needed = whole.get("required")
            for name, member in whole["properties"].items():
                if self._schemas.is_answer(member):
                    continue
                argument = self._argument(name, "body")
                self._placed.append(Placed(argument, "body", name))
                is_needed = required and isinstance(needed, list) and name in needed
                self._add(argument, self._schemas.convert(member), required=is_needed)
            return kind
        argument = self._argument("body", "request")
        self._placed.append(Placed(argument, "body", ""))
        made = self._schemas.convert(schema)
        if kind == "text":
            made = {"type": "string", **(made if isinstance(made, dict) else {})}
        self._add(argument, made, required=required)
        return kind

    def _clashes(self, properties: dict[str, Any]) -> bool:
        return any(callable_name(name) in self._properties for name in properties)

    def _argument(self, name: str, place: str) -> str:
        argument = callable_name(name)
        return argument if argument not in self._properties else callable_name(f"{place}_{name}")

    def _add(self, argument: str, schema: Any, *, required: bool) -> None:
        self._properties[argument] = schema
        if required:
            self._required.append(argument)


def _is_json(kind: str) -> bool:
    bare = kind.split(";", 1)[0].strip().lower()
    return bare in {"application/json", "*/*", "application/*"} or bare.endswith("+json")


def _best(content: dict[str, Any]) -> tuple[BodyKind | None, Any]:
    for kind, media in content.items():
        if _is_json(kind):
            return "json", media
    for kind, media in content.items():
        bare = kind.split(";", 1)[0].strip().lower()
        if bare in {_FORM, _TEXT}:
            return ("form" if bare == _FORM else "text"), media
    return None, None


def _is_flat(schema: Any) -> bool:
    """Whether a body's properties can be the tool's own: an object of known properties and nothing said beyond."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict) or not schema["properties"]:
        return False
    if schema.get("nullable") is True or schema.get("type", "object") != "object":
        return False
    if schema.get("additionalProperties", False) not in (False, {}):
        return False
    beyond = {"allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentRequired", "minProperties", "$ref"}
    return not beyond & schema.keys()
