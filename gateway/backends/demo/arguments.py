"""Fills a tool's parameters from what a question contains.

Pure. Knows slots and values; does not decide whether the tool should be called (`understanding.py`). Gives one set of
arguments for each thing the question names: two cities make two calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.backends.demo.instance import fits
from gateway.backends.demo.query import query_text
from gateway.backends.demo.request import OfferedTool
from gateway.backends.demo.slots import Slot, SlotKind, slots_of
from gateway.backends.demo.value import Kind, Value
from gateway.backends.demo.words import concepts

# More calls than this from one question are a misunderstanding.
_MOST_CALLS: Final = 16
# Objects within objects that are filled, and parameters of one that are looked at.
_MOST_OBJECTS: Final = 2
_MOST_INNER: Final = 16

# What a slot takes, best first, and how much it says for the tool that the text contains such a value.
_ACCEPTS: Final[dict[SlotKind, tuple[tuple[Kind, int], ...]]] = {
    "expression": (("expression", 4),),
    "url": (("url", 4),),
    "email": (("email", 3),),
    "path": (("path", 3), ("quoted", 1)),
    "date": (("date", 2),),
    "place": (("place", 2), ("quoted", 1)),
    "currency": (("currency", 2),),
    "language": (("language", 2),),
    "name": (("name", 2), ("quoted", 2)),
    "symbol": (("symbol", 2), ("quoted", 1)),
    "clock": (("clock", 2), ("quoted", 1)),
}
_FROM: Final = frozenset({"from", "origin", "source", "start", "departure", "src", "base"})
_TO: Final = frozenset({"to", "destination", "target", "end", "arrival", "dest", "dst", "quote"})


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be used: the text of a part of the question, its values, and values from elsewhere to fall back on."""

    text: str
    values: tuple[Value, ...]
    fallback: tuple[Value, ...] = ()
    known: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filling:
    """What came of filling a tool.

    Attributes:
        calls: sets of arguments, each complete; empty when `missing` is not.
        missing: required parameters nothing was found for.
        strength: how much the values found say for this tool: 0 nothing, 4 and more everything.
        partial: what was found, complete or not.
    """

    calls: tuple[dict[str, Any], ...]
    missing: tuple[Slot, ...]
    strength: int
    partial: dict[str, Any]


def fill(tool: OfferedTool, scope: Scope, others: Sequence[OfferedTool] = (), depth: int = 0) -> Filling:
    """Fill `tool` from `scope`. An id that suits a parameter of one of the `others` better is left to it."""
    # A schema may hold itself in every one of its parameters.
    slots = tool.slots[:_MOST_INNER] if depth else tool.slots
    found: dict[str, list[Any]] = {}
    strength = 0
    for slot in slots:
        if slot.name in scope.known:
            found[slot.name] = [scope.known[slot.name]]
            continue
        candidates = _candidates(slot, scope, others, depth)
        candidates = _share(slot, slots, candidates, scope.text)
        candidates = [(value, fit) for value, fit in candidates if fits(value, slot.schema)]
        if candidates:
            found[slot.name] = list(
                dict.fromkeys(value for value, _ in candidates) if slot.kind != "array" else [candidates[0][0]]
            )
            strength = max(strength, *(fit for _, fit in candidates))
    missing = tuple(slot for slot in slots if slot.required and slot.name not in found and "default" not in slot.schema)
    for slot in slots:
        if slot.required and slot.name not in found and "default" in slot.schema:
            found[slot.name] = [slot.schema["default"]]
    partial = {name: values[0] for name, values in found.items()}
    return Filling(() if missing else _spread(found), missing, strength, partial)


def _spread(found: Mapping[str, list[Any]]) -> tuple[dict[str, Any], ...]:
    """One call for each thing named. Lists of the same length go together, one by one."""
    many = {name: values for name, values in found.items() if len(values) > 1}
    base = {name: values[0] for name, values in found.items()}
    if not many:
        return (base,)
    together = len({len(values) for values in many.values()}) == 1
    rows = list(zip(*many.values(), strict=True)) if together else list(itertools.product(*many.values()))
    return tuple({**base, **dict(zip(many, row, strict=True))} for row in rows[:_MOST_CALLS])


def _candidates(slot: Slot, scope: Scope, others: Sequence[OfferedTool], depth: int) -> list[tuple[Any, int]]:
    """Values for a slot with what each says for the tool; those of the part itself before those from elsewhere."""
    for values in (scope.values, scope.fallback):
        found = _from_values(slot, values, scope.text, others)
        if found:
            return found
    if slot.kind == "query" and slot.required:
        text = query_text(scope.text, slot)
        return [(text, 0)] if text else []
    # A schema may hold itself (`$ref: "#"`): there has to be an end.
    if slot.kind == "object" and depth < _MOST_OBJECTS:
        filling = fill(OfferedTool(slot.name, "", slot.schema), scope, depth=depth + 1)
        return [(filling.calls[0], filling.strength)] if filling.calls and filling.calls[0] else []
    return []


def _from_values(
    slot: Slot, values: tuple[Value, ...], text: str, others: Sequence[OfferedTool]
) -> list[tuple[Any, int]]:
    if slot.kind == "enum":
        return _enumerated(slot, text)
    if slot.kind == "boolean":
        return _boolean(slot, text)
    if slot.kind == "number":
        return _numbers(slot, values, text)
    if slot.kind == "id":
        return _ids(slot, values, text, others)
    if slot.kind == "query":
        return [(value.value, 1) for value in values if value.kind == "quoted"]
    if slot.kind == "array":
        items = slot.schema.get("items")
        inner = slots_of({"properties": {slot.name: items if isinstance(items, dict) else {}}, "required": [slot.name]})
        found = _from_values(inner[0], values, text, others) if inner and inner[0].kind != "array" else []
        return [([value for value, _ in found], max(fit for _, fit in found))] if found else []
    if slot.kind == "timezone":
        return _zones(values)
    for kind, fit in _ACCEPTS.get(slot.kind, ()):
        found = [(value.value, fit) for value in values if value.kind == kind]
        if found:
            return found
    return []


def _zones(values: tuple[Value, ...]) -> list[tuple[Any, int]]:
    """Zones, and places nobody knows the zone of: better the tool says so than that another zone is told."""
    zones = [value for value in values if value.kind == "timezone"]
    known = {value.start for value in zones}
    places = [value for value in values if value.kind == "place" and value.start not in known]
    found = sorted((*zones, *places), key=lambda value: value.start)
    return [(value.value, 2 if value.kind == "timezone" else 0) for value in found]


def _enumerated(slot: Slot, text: str) -> list[tuple[Any, int]]:
    options = [slot.schema["const"]] if "const" in slot.schema else slot.schema["enum"]
    if "const" in slot.schema and slot.required:
        return [(options[0], 0)]
    lowered = text.lower()
    found = []
    for option in options:
        word = str(option).lower()
        if word and re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", lowered):
            found.append((lowered.index(word), option))
    if not found and concepts(text):
        found = [
            (0, option)
            for option in options
            if isinstance(option, str) and concepts(option) and concepts(option) <= concepts(text)
        ]
    return [(option, 2) for _, option in sorted(found, key=lambda item: item[0])]


def _boolean(slot: Slot, text: str) -> list[tuple[Any, int]]:
    about = concepts(slot.name)
    if about & concepts(text):
        negated = re.search(r"\b(?:not|no|without|don't|never)\b|不要|不用|别|无需", text, re.IGNORECASE)
        return [(negated is None, 1)]
    return [(False, 0)] if slot.required and "default" not in slot.schema else []


def _numbers(slot: Slot, values: tuple[Value, ...], text: str) -> list[tuple[Any, int]]:
    found = [value for value in values if value.kind == "number" or (value.kind == "id" and value.value.isdigit())]
    near = [value for value in found if concepts(slot.name) & concepts(text_around(value, text))]
    chosen = near or (found if slot.required else [])
    return [(_number(value.value), 1) for value in chosen]


def _number(text: str) -> int | float:
    value = float(text)
    return int(text) if re.fullmatch(r"-?\d+", text) else value


def text_around(value: Value, text: str) -> str:
    """The word before and the word after a value, as far as both lie in `text`."""
    at = text.find(value.source)
    if at < 0:
        return ""
    before = re.search(r"(\S+)\s*$", text[:at])
    after = re.match(r"\s*([^\s,.;?!]+)", text[at + len(value.source) :])
    return " ".join(match.group(1) for match in (before, after) if match)


def _ids(slot: Slot, values: tuple[Value, ...], text: str, others: Sequence[OfferedTool]) -> list[tuple[Any, int]]:
    rivals = [rival for other in others for rival in other.slots if rival.kind == "id" and rival.name != slot.name]
    found = []
    for value in values:
        if value.kind not in ("id", "quoted", "number"):
            continue
        fit = _id_fit(slot, value, text)
        if fit > 0 and all(_id_fit(rival, value, text) <= fit for rival in rivals):
            found.append((_in_case_of(slot.example, value.value), fit))
    best = max((fit for _, fit in found), default=0)
    return found if slot.required or best >= 3 else []


def _id_fit(slot: Slot, value: Value, text: str) -> int:
    """How well an id suits a parameter: its shape against the example's, and the word before it in the text."""
    at = text.find(value.source)
    hint = at >= 0 and bool(concepts(text[max(0, at - 24) : at]) & (concepts(slot.name) - {"id", "no"}))
    if value.kind in ("number", "quoted") and not hint:
        return 0
    fit = 1 + (2 if hint else 0)
    if slot.example is None:
        return fit
    prefix = re.match(r"[A-Za-z]*", slot.example)
    if shape(value.value) != shape(slot.example):
        return fit - 1 if hint else 0
    return fit + (3 if prefix and prefix.group() and value.value.upper().startswith(prefix.group().upper()) else 2)


def _in_case_of(example: str | None, value: str) -> str:
    """An id typed in small letters, in capitals where the example has them."""
    capitals = example is not None and example.isupper() and shape(example) == shape(value)
    return value.upper() if capitals else value


def shape(text: str) -> str:
    """An id's outline: runs of letters become `A`, runs of digits `9`."""
    return re.sub(r"[0-9]+", "9", re.sub(r"[A-Za-z]+", "A", text))


def _share(slot: Slot, slots: Sequence[Slot], candidates: list[tuple[Any, int]], text: str) -> list[tuple[Any, int]]:
    """Parameters of the same kind take one value each: in the text's order, or by "from" and "to"."""
    alike = [other for other in slots if other.kind == slot.kind and other.required == slot.required]
    if len(alike) < 2 or slot.kind in ("enum", "boolean", "array", "object", "expression"):
        return candidates
    if slot.kind == "id":
        return candidates[:1]
    for ends, pattern in ((_FROM, r"\bfrom\s+|从"), (_TO, r"\b(?:to|into)\s+|到|成")):
        if slot.words & ends:
            named = [
                item
                for item in candidates
                if re.search(rf"(?:{pattern})\s*{re.escape(str(item[0]))}", text, re.IGNORECASE)
            ]
            if named:
                return named[:1]
    index = alike.index(slot)
    return candidates[index : index + 1]
