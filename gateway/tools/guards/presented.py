"""From what a tool returned to what the model sees of it.

Knows that a returned error is an error, which fields are shown and how much. Does not know whether the result is new or was
kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.tools.guards.fields import only_fields
from gateway.tools.outcome import CallFailed
from gateway.tools.pictures import without_pictures
from gateway.tools.result import Shown, is_heavy, json_text, success, to_json_value

_HEAVY_CHARS: Final = 65_536


class Presented(msgspec.Struct, frozen=True):
    """A result that is none of an error.

    Attributes:
        shown: what the model sees.
        pictures: shown beside it, as data URLs.
        full: all of what the tool returned as JSON text, where somebody needs it: to keep it, or because the model is not shown
            every field.
    """

    shown: Shown
    full: str | None = None
    pictures: tuple[str, ...] = ()


async def presented(
    raw: Any,
    max_bytes: int,
    handle_of: Callable[[str], str | None] = lambda _: None,
    *,
    fields: Sequence[str] = (),
    full: bool = False,
    pictures: bool = False,
) -> Presented:
    """What becomes of a tool's result; in a thread where it looks heavy.

    Args:
        raw: what the tool returned.
        max_bytes: most bytes of the content.
        handle_of: by what handle a whole result can be read on, or None where it cannot.
        fields: what of it the model sees; empty for all.
        full: whether all of it is needed as text.
        pictures: whether the model takes images.

    Raises:
        CallFailed: it is an error that the tool returned rather than raised.
        Unencodable: it has no JSON form.
    """
    raw, urls = without_pictures(raw, shown=pictures)
    # What is kept is text: a result with pictures is not.
    full = full and not urls
    if is_heavy(raw):
        made = await asyncio.to_thread(_presented, raw, max_bytes, handle_of, fields, full=full)
    else:
        made = _presented(raw, max_bytes, handle_of, fields, full=full)
    return msgspec.structs.replace(made, pictures=urls) if urls else made


async def read_json(text: str) -> Any:
    """JSON text as values; in a thread where it is long."""
    return await asyncio.to_thread(json.loads, text) if len(text) > _HEAVY_CHARS else json.loads(text)


def _presented(
    raw: Any, max_bytes: int, handle_of: Callable[[str], str | None], fields: Sequence[str], *, full: bool
) -> Presented:
    value = to_json_value(raw)
    if isinstance(value, dict):
        _refuse_errors(value)
    text = json_text(value) if full or fields else None
    if fields:
        value = only_fields(value, fields)
    return Presented(success(value, max_bytes, handle_of), text)


def _refuse_errors(value: dict[str, Any]) -> None:
    """`{"error": ...}` and nothing else, or `{"ok": false, "error": ...}`: tools return such where others raise."""
    error = value.get("error")
    if not error or not (len(value) == 1 or value.get("ok") is False):
        return
    rest = {key: item for key, item in value.items() if key != "ok"}
    raise CallFailed(error if isinstance(error, str) and len(rest) == 1 else json_text(rest))
