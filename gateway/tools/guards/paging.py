"""`read_result`: the model reads on in a result that was too long for it.

Knows places in a JSON value and how to cut a page of one without breaking it. Does not know who may read (`kept.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from gateway.tools.result import left_out, shortened, size_of, text_within
from gateway.tools.spec import InvalidArguments, make_spec
from gateway.tools.validate import ArgumentValidator

_INDEX: Final = re.compile(r"\[(\d{1,9})\]\.?")
# What a page says beside its part: handle, path, numbers.
_ROOM: Final = 224

READ_RESULT: Final = make_spec(
    name="read_result",
    description=(
        "Read on when a tool's result was shortened and more of it is needed. Pass what stands under `read_on` in that "
        "result; `left_out` names the places of which something is missing. Each page says where the next one begins."
    ),
    parameters={
        "type": "object",
        "properties": {
            "handle": {"type": "string", "description": "the result, as `read_on` names it"},
            "path": {
                "type": "string",
                "description": "a place in the result, as `left_out` names it; all of it by default",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "the first item, field or character of that place to read; 0 by default",
            },
        },
        "required": ["handle"],
        "additionalProperties": False,
    },
    provider="gateway",
    origin="gateway",
    timeout_s=10,
)
READ_RESULT_ARGUMENTS: Final = ArgumentValidator(READ_RESULT.parameters)


def page(text: str, arguments: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """A page of a whole result, within `max_bytes` of JSON give or take what frames it.

    Args:
        text: the result as JSON.
        arguments: `path` and `offset`, as `READ_RESULT` takes them.
        max_bytes: at least 256.

    Raises:
        InvalidArguments: there is no such place.
    """
    path, offset = arguments.get("path", ""), arguments.get("offset", 0)
    found = next(((value,) for value in _places(json.loads(text)["result"], path)), None)
    if found is None:
        raise InvalidArguments(f"there is no place `{path[:120]}` in that result")
    (value,) = found
    room = max(max_bytes - _ROOM - size_of(path), 64)
    missing: dict[str, str] = {}
    if isinstance(value, str):
        rest = value[offset:]
        part: Any = text_within(rest, room)
        if part != rest:
            part = part[:-1] or rest[:1]
        total, after = len(value), offset + len(part)
    elif isinstance(value, list):
        part = _some(value[offset:], room, f"{path}[{offset}]", missing)
        total, after = len(value), offset + len(part)
    elif isinstance(value, dict):
        pairs = list(value.items())[offset:]
        keys = [size_of(key) + 2 for key, _ in pairs]
        first = f"{path}.{pairs[0][0]}" if pairs else path
        some = _some([item for _, item in pairs], room, first, missing, keys)
        part = {key: item for (key, _), item in zip(pairs, some, strict=False)}
        total, after = len(value), offset + len(part)
    else:
        part, total, after = value, 1, 1
    made = {"part": part, "offset": offset, "of": total, "next_offset": after if after < total else None}
    if path:
        made["path"] = path
    return {**made, "left_out": left_out(missing)} if missing else made


def _some(items: list[Any], room: int, first: str, missing: dict[str, str], beside: Sequence[int] = ()) -> list[Any]:
    """As many as there is room for, with what each takes `beside` itself; a first one that is too large is shortened."""
    taken: list[Any] = []
    left = room
    for item, more in zip_longest(items, beside, fillvalue=0):
        size = size_of(item) + more + 1
        if size > left:
            break
        taken.append(item)
        left -= size
    if not taken and items:
        taken.append(shortened(items[0], max(room - sum(beside[:1]), 16), first.lstrip("."), missing))
    return taken


def _places(value: Any, path: str) -> Iterator[Any]:
    """What a path may mean: keys may hold dots and brackets themselves."""
    if not path:
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if path == key:
                yield item
            elif path.startswith(f"{key}."):
                yield from _places(item, path[len(key) + 1 :])
            elif path.startswith(f"{key}["):
                yield from _places(item, path[len(key) :])
    elif isinstance(value, list) and (found := _INDEX.match(path)) and int(found[1]) < len(value):
        yield from _places(value[int(found[1])], path[found.end() :])
    if path == "result":
        yield value
