"""The request that an operation's arguments make.

Pure. Knows how values are written into paths, queries, headers and bodies, so that no value leaves its place. Does not know
who sends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from yarl import URL

from gateway.tools.providers.http_operation import Operation, Placed
from gateway.tools.spec import InvalidArguments

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
# What a path may hold as it is; a question mark in a template is no beginning of a query.
_PATH_SAFE = "/:@!$&'()*+,;=-._~%"
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_TYPES = {"json": "application/json", "form": "application/x-www-form-urlencoded", "text": "text/plain; charset=utf-8"}
_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is to be sent; credentials are added by who sends it."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None


def build_request(operation: Operation, base_url: str, arguments: Mapping[str, Any]) -> HttpRequest:
    """The request of one call.

    Raises:
        InvalidArguments: a value cannot stand where it belongs.
    """
    given = [(each, arguments[each.argument]) for each in operation.placed if each.argument in arguments]
    path = _path(operation.path, {each.name: (each, value) for each, value in given if each.place == "path"})
    query = "&".join(
        f"{name}={text}"
        for each, value in given
        if each.place == "query" and value is not None
        for name, text in _query_pairs(each, value)
    )
    headers = {each.name: _header(each, value) for each, value in given if each.place == "header" and value is not None}
    body = _body(operation, [(each, value) for each, value in given if each.place == "body"])
    if body is not None and operation.body is not None:
        headers["Content-Type"] = _TYPES[operation.body]
    url = URL(base_url.rstrip("/") + path + (f"?{query}" if query else ""), encoded=True)
    return HttpRequest(operation.method, url, headers, body)


def _path(template: str, values: Mapping[str, tuple[Placed, Any]]) -> str:
    parts = _PLACEHOLDER.split(template)
    for index in range(1, len(parts), 2):
        each, value = values[parts[index]]
        text = _flat(value) if value is not None else ""
        if not text:
            raise InvalidArguments(f"`{each.argument}` must not be empty: it is part of the address")
        parts[index] = quote(text, safe="", errors="replace")
    parts[::2] = [quote(part, safe=_PATH_SAFE) for part in parts[::2]]
    path = "".join(parts)
    # A value of dots alone would be a step to another folder, and no spelling of it is safe from being read as one.
    if any(unquote(segment) in {".", ".."} for segment in path.split("/")):
        raise InvalidArguments("a path segment of dots alone leads to another place and is not allowed")
    return path


def _query_pairs(each: Placed, value: Any) -> Iterable[tuple[str, str]]:
    name = _quoted(each.name)
    if each.style == "json":
        return [(name, _quoted(_json(value)))]
    if isinstance(value, list):
        items = [_quoted(_text(item)) for item in value if item is not None]
        if each.explode:
            return [(name, item) for item in items]
        return [(name, _DELIMITERS.get(each.style, ",").join(items))]
    if isinstance(value, dict):
        members = [(key, _quoted(_text(item))) for key, item in value.items() if item is not None]
        if each.style == "deepObject":
            return [(f"{name}[{_quoted(key)}]", text) for key, text in members]
        if each.explode:
            return [(_quoted(key), text) for key, text in members]
        return [(name, ",".join(f"{_quoted(key)},{text}" for key, text in members))]
    return [(name, _quoted(_text(value)))]


def _header(each: Placed, value: Any) -> str:
    text = _json(value) if each.style == "json" else _flat(value)
    if not _HEADER_VALUE.fullmatch(text):
        raise InvalidArguments(f"`{each.argument}` holds characters that a header cannot carry")
    return text.strip()


def _body(operation: Operation, given: list[tuple[Placed, Any]]) -> bytes | None:
    if not given:
        return None
    whole = given[0][1] if not given[0][0].name else None
    if operation.body == "text":
        return _text(whole).encode("utf-8", "replace")
    if operation.body == "form":
        members = whole.items() if isinstance(whole, dict) else [(each.name, value) for each, value in given]
        pairs = (
            f"{name}={text}"
            for key, value in members
            if value is not None
            for name, text in _query_pairs(Placed(key, "query", key), value)
        )
        return "&".join(pairs).encode()
    value = whole if not given[0][0].name else {each.name: value for each, value in given}
    return _json(value).encode("utf-8", "replace")


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _flat(value: Any) -> str:
    """A value of a path or header: lists with commas, objects as `key,value`."""
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{key},{_text(item)}" for key, item in value.items())
    return _text(value)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.EncodeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidArguments("an argument has no JSON form") from error
