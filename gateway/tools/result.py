"""What a model sees of a tool's result: compact JSON that stays valid and within a size.

Knows which Python values have a JSON form, and how to shorten one without breaking it. Does not know how the result came about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import msgspec
from pydantic_core import PydanticSerializationError, to_jsonable_python

from gateway.tools.untrusted import defused, is_suspect

_MOST_PLACES = 8
_HEAVY_CHARS, _HEAVY_ITEMS = 65_536, 256
_CUT = "…"
# Bytes: of a member that gets less, little would be left; and of a value that gets less, nothing.
_LEAST_SHARE = 64
_LEAST_ROOM = 8
# Python writes no longer ones: 4300 digits.
_MOST_BITS = 14_280
_PLAIN = (str, int, float, NoneType)


class Unencodable(Exception):
    """A result has no JSON form; the message says what it was."""


def to_json_value(value: Any) -> Any:
    """A result as JSON values.

    Models, dataclasses, structs, dates, decimals (as text, exactly), enums, sets and UTF-8 bytes have a form; NaN and the
    infinities become the text "NaN", "Infinity", "-Infinity".

    Raises:
        Unencodable: anything else, a generator too, something that contains itself, and what is nested too deeply.
    """
    _refuse_generators(value)
    try:
        return to_jsonable_python(value, fallback=_fallback, inf_nan_mode="strings")
    except UnicodeDecodeError as error:
        raise Unencodable("the tool returned bytes that are not text") from error
    except (PydanticSerializationError, ValueError, RecursionError, TypeError) as error:
        raise Unencodable(f"the tool returned something that is not JSON: {str(error)[:200]}") from error


def is_heavy(value: Any, levels: int = 2) -> bool:
    """Whether a result looks like more than the event loop should be held up with: a guess from its uppermost levels."""
    if isinstance(value, str | bytes):
        return len(value) > _HEAVY_CHARS
    if isinstance(value, dict | list | tuple):
        if len(value) > _HEAVY_ITEMS:
            return True
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and any(is_heavy(item, levels - 1) for item in inner)
    return False


def _refuse_generators(value: Any, levels: int = 2) -> None:
    """Nobody knows whether one ends, nor how long each step holds up whoever asks for it."""
    if isinstance(value, Iterator):
        raise Unencodable("the tool returned a generator; it has to return a list")
    if levels and isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            if not isinstance(item, _PLAIN):
                _refuse_generators(item, levels - 1)


class Shown(msgspec.Struct, frozen=True):
    """A result as a model sees it.

    Attributes:
        content: what it sees.
        whole: all of it, where the content is shortened, else None.
        handle: what the content says it may be read on by, or None.
    """

    content: str
    whole: str | None = None
    handle: str | None = None


def success(value: Any, max_bytes: int, handle_of: Callable[[str], str | None] = lambda _: None) -> Shown:
    """The content of a call that worked, and the whole of it where that had to be shortened.

    Args:
        value: JSON values, as `to_json_value` makes them.
        max_bytes: most bytes of UTF-8 the content may have; at least 256.
        handle_of: by what handle a whole result can be read on, or None where it cannot.

    The content is `{"ok": true, "result": ...}`. A shortened one has a third key, `left_out`, which says of each place how
    much of how much is missing, and, where there is a handle, a fourth: `read_on`, how to go on at the first of these places.
    Strings end in `…` where they were cut, between characters. Texts that imitate a chat's roles are defused.
    """
    whole = _dump({"ok": True, "result": value})
    if is_suspect(whole):
        value = defused(value)
        whole = _dump({"ok": True, "result": value})
    if len(whole.encode()) <= max_bytes:
        return Shown(whole)
    value = json.loads(whole)["result"]
    handle = handle_of(whole)
    budget = max_bytes - min(max_bytes // 4, 512)
    while budget > 16:
        places: dict[str, str] = {}
        short = shortened(value, budget, "", places)
        told: dict[str, Any] = {"ok": True, "result": short, "left_out": left_out(places)}
        if handle is not None:
            told["read_on"] = {"handle": handle, **_next_of(places)}
        content = _dump(told)
        if len(content.encode()) <= max_bytes:
            return Shown(content, whole, handle)
        budget = budget * 3 // 4
    told = {"ok": True, "result": None, "left_out": {"result": f"all of it, {len(whole.encode())} bytes"}}
    if handle is not None:
        told["read_on"] = {"handle": handle}
    return Shown(_dump(told), whole, handle)


def extract_content(text: str, size: int, handle: str | None, max_bytes: int) -> str:
    """The content where a model's extract stands for a result of `size` bytes."""
    told: dict[str, Any] = {"ok": True, "result": {"extract": text_within(defused(text), max(max_bytes - 192, 64))}}
    told["left_out"] = {"result": f"all but this extract of {size} bytes"}
    if handle is not None:
        told["read_on"] = {"handle": handle}
    return _dump(told)


def failure(message: str, max_bytes: int) -> str:
    """The content of a call that failed: `{"ok": false, "error": message}`, cut between characters."""
    text = defused(message.strip()) or "the tool failed and did not say why"
    return _dump({"ok": False, "error": text_within(text, max_bytes - 32)})


def noted(content: str, note: str) -> str:
    """What a model sees, and a remark on it."""
    try:
        result: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return f"{content}\n{note}"
    if not isinstance(result, dict):
        return f"{content}\n{note}"
    said = result.get("note")
    return msgspec.json.encode({**result, "note": f"{said} {note}" if isinstance(said, str) else note}).decode()


def json_text(value: Any) -> str:
    """JSON values as compact text."""
    return _dump(value)


def _fallback(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise TypeError(f"a {type(value).__name__}")


def _dump(value: Any) -> str:
    """Compact JSON text. The quick encoder writes NaN as null, so what has a null in it is looked at more closely."""
    try:
        quick = msgspec.json.encode(value)
        if b"null" not in quick:
            return quick.decode()
    except (OverflowError, ValueError):
        # A whole number beyond 64 bits or 4300 digits, or half of a surrogate pair: below.
        pass
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_told_numbers(value), ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # Halves of surrogate pairs: joined where both are there, replaced where one is alone.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _told_numbers(value: Any) -> Any:
    """The value with words for numbers that JSON does not have, or that nobody writes out."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, dict):
        return {key: _told_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_told_numbers(item) for item in value]
    return value


def size_of(value: Any) -> int:
    """Bytes of JSON, give or take how numbers are written: the content as a whole is measured exactly."""
    try:
        return len(msgspec.json.encode(value))
    except (OverflowError, UnicodeEncodeError):
        # A whole number beyond 64 bits, or half of a surrogate pair.
        return len(_dump(value).encode())


def left_out(places: dict[str, str]) -> dict[str, str]:
    """What is missing where, a few places at most."""
    shown = dict(list(places.items())[:_MOST_PLACES])
    if len(places) > _MOST_PLACES:
        shown["…"] = f"{len(places) - _MOST_PLACES} more places"
    return shown


def _next_of(places: dict[str, str]) -> dict[str, Any]:
    """Where to read on: the first place of which something is missing, and how much of it is there."""
    for path, said in places.items():
        missing, _, total, unit, *_ = [*said.split(), *[""] * 4]
        if unit in {"items", "characters", "fields"}:
            return {"path": path, "offset": int(total) - int(missing)}
        return {"path": path}
    return {}


def shortened(value: Any, budget: int, path: str, places: dict[str, str]) -> Any:
    """The value within about `budget` bytes; what is left out goes into `places`."""
    if size_of(value) <= budget:
        return value
    if isinstance(value, str):
        short = text_within(value, budget - 2)
        places[path or "result"] = f"{len(value) - len(short) + 1} of {len(value)} characters"
        return short
    if isinstance(value, list):
        return _shorten_list(value, budget, path, places)
    if isinstance(value, dict):
        return _shorten_object(value, budget, path, places)
    places[path or "result"] = "a number too long to show"
    return None


def _shorten_list(value: list[Any], budget: int, path: str, places: dict[str, str]) -> list[Any]:
    out: list[Any] = []
    left = budget - 2
    for item in value:
        size = size_of(item) + 1
        if size > left:
            break
        out.append(item)
        left -= size
    if not out and left > 16:
        out.append(shortened(value[0], left, f"{path}[0]", places))
    if len(out) < len(value):
        places[path or "result"] = f"{len(value) - len(out)} of {len(value)} items"
    return out


def _shorten_object(value: dict[str, Any], budget: int, path: str, places: dict[str, str]) -> dict[str, Any]:
    """Small members stay whole, and what is left of the budget is shared by the large ones; where they are too many for that,
    the first ones stay, as in a list.
    """
    sizes = {key: size_of(key) + 2 + size_of(item) for key, item in value.items()}
    shares: dict[str, int] = {}
    left, waiting = budget - 2, len(sizes)
    for key in sorted(sizes, key=lambda each: sizes[each]):
        shares[key] = min(sizes[key], left // waiting)
        if shares[key] < min(sizes[key], _LEAST_SHARE) and waiting > _MOST_PLACES:
            return _first_members(value, sizes, budget, path, places)
        left -= shares[key]
        waiting -= 1
    out: dict[str, Any] = {}
    for key, item in value.items():
        room = shares[key] - size_of(key) - 2
        if shares[key] == sizes[key]:
            out[key] = item
        elif room > _LEAST_ROOM:
            out[key] = shortened(item, room, f"{path}.{key}".lstrip("."), places)
    if len(out) < len(value):
        places[path or "result"] = f"{len(value) - len(out)} of {len(value)} fields, some between others"
    return out


def _first_members(
    value: dict[str, Any], sizes: dict[str, int], budget: int, path: str, places: dict[str, str]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    left = budget - 2
    for key, item in value.items():
        if sizes[key] > left:
            room = left - size_of(key) - 2
            if not out and room > _LEAST_ROOM:
                out[key] = shortened(item, room, f"{path}.{key}".lstrip("."), places)
            break
        out[key] = item
        left -= sizes[key]
    if len(out) < len(value):
        places[path or "result"] = f"{len(value) - len(out)} of {len(value)} fields"
    return out


def text_within(text: str, budget: int) -> str:
    """The text within `budget` bytes of JSON, cut between characters, `…` at the end where something is missing."""
    if size_of(text) - 2 <= budget:
        return text
    low, high = 0, min(len(text), max(budget, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if size_of(text[:middle] + _CUT) - 2 <= budget:
            low = middle
        else:
            high = middle - 1
    # Not between a character and what belongs to it: joiners, variation selectors, combining marks.
    while low and _belongs(text, low):
        low -= 1
    return text[:low] + _CUT


def _belongs(text: str, at: int) -> bool:
    marks = "\u200d\ufe0e\ufe0f\u20e3"
    return at < len(text) and (text[at] in marks or text[at - 1] == "\u200d" or "\u0300" <= text[at] <= "\u036f")
