"""Actions as models write them, read as the tool calls they mean.

Pure. Knows names with something around them, JSON in fences, Python's spelling, `name=value` and bare arguments. Never closes
a bracket or a string: what is cut off stays as it is, and whoever runs the tool says so.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.chat.react_labels import Label, input_inside, label_of, line_labels
from gateway.late import late

_NOTHING = frozenset(
    {"", "none", "null", "n/a", "na", "nil", "no action", "no input", "empty", "无", "無", "不需要", "空"}
)
_FINAL = frozenset(
    {"final answer", "finalanswer", "final_answer", "finish", "最终答案", "最终回答", "最終答案", "最終回答"}
)
_AROUND = " \t\r\n*_`\"'“”‘’[]<>「」【】（）()"
_ENDS = ".,;:。，；："
_FENCE = late(r"\s*(?:`{3}[\w-]*[ \t]*\n?|~{3}[\w-]*[ \t]*\n?)?\s*")
_CALLED = late(r"[\s*_`\"'\[<]*([\w./:-]+)[\s*_`\"'\]>]*[:：]?\s*([({（\[].*)", re.DOTALL)
_PAIR = late(r"[\s,，;]*[\"'`]?([A-Za-z_]\w*)[\"'`]?\s*[:=：]\s*", re.ASCII)
_NOT_NAME = late(r"[^A-Za-z0-9_.-]+")
_NAMES = ("action", "tool", "name", "tool_name", "function")
_INPUTS = ("action_input", "actionInput", "tool_input", "arguments", "parameters", "input", "args")
_LONGEST_LITERAL = 100_000


class Tool(msgspec.Struct, frozen=True):
    """A tool as it was offered. `properties` and `required` are its parameters'; a custom one takes free text."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    custom: bool = False

    @property
    def properties(self) -> Mapping[str, Any]:
        """Schemas of its parameters, by name."""
        found = self.parameters.get("properties")
        return found if isinstance(found, dict) else {}

    @property
    def only(self) -> str | None:
        """The parameter that a bare value means: its only one, or the only one it needs."""
        needed = self.parameters.get("required")
        for names in (list(self.properties), needed if isinstance(needed, list) else []):
            if len(names) == 1 and isinstance(names[0], str):
                return names[0]
        return None


class Action(NamedTuple):
    """An action: the tool it names and the arguments as JSON text; with the name None it is the final answer."""

    name: str | None
    arguments: str
    custom: bool = False


class Tools:
    """The tools of one request.

    Args:
        tools: those that were offered.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.all = tuple(tools)
        self._by_name = {tool.name: tool for tool in self.all}
        self._alike: dict[str, str] = {}
        for tool in self.all:
            key = _alike(tool.name)
            # Two that are alike are neither.
            self._alike[key] = "" if key in self._alike else tool.name

    def find(self, name: str) -> Tool | None:
        """The tool of this name, however it is cased."""
        found = self._by_name.get(name)
        return found if found is not None else self._by_name.get(self._alike.get(_alike(name), ""))

    def is_none(self, header: str) -> bool:
        """Whether what stands behind `Action:` says that there is none; a tool may be named like that."""
        return is_nothing(header) and self.find(_clean(header)) is None

    def is_certain(self, header: str) -> bool:
        """Whether what stands behind `Action:` is a call by itself: a tool's name, alone or with arguments behind it."""
        name = _clean(header)
        if self.find(name) or name.casefold() in _FINAL or header.lstrip().startswith("{"):
            return True
        called = _CALLED.match(header)
        return called is not None and self.find(called[1]) is not None


def is_nothing(text: str) -> bool:
    """Whether an action or its input reads as if there were none."""
    return _clean(text).casefold() in _NOTHING


def is_open(text: str) -> bool:
    """Whether the last input of these actions is JSON that has not come to its end."""
    at = 0
    for label in line_labels(text):
        if label.kind == "input" and label.start >= at:
            begin = _FENCE.match(text, label.end)
            assert begin is not None
            if text[begin.end() : begin.end() + 1] in ("{", "["):
                end = _json_end(text, begin.end())
                if end is None:
                    return True
                at = end
    return False


def read_actions(text: str, tools: Tools) -> list[Action]:
    """The actions of a text that begins with one, in order."""
    actions: list[Action] = []
    at = 0
    while True:
        label = next((label for label in line_labels(text, at) if label.kind == "action"), None)
        if label is None:
            return actions
        action, at = _read(text, label.end, tools)
        if action is not None:
            actions.append(action)


def _read(text: str, at: int, tools: Tools) -> tuple[Action | None, int]:
    """One action, whose label ends at `at`, and where reading goes on."""
    begin = _FENCE.match(text, at)
    assert begin is not None
    if text[begin.end() : begin.end() + 1] == "{":
        end = _json_end(text, begin.end())
        return (None, len(text)) if end is None else (_from_json(text[begin.end() : end], tools), end)
    start, end = _bounds(text, at if text[at : _bounds(text, at)[1]].strip() else begin.end())
    header = text[start:end]
    if (inside := input_inside(text, start, end)) is not None:
        header = text[start : inside.start]
        raw, at = _value(text, inside.end)
    else:
        place = len(text) - len(text[end:].lstrip())
        line_start = text.rfind("\n", 0, place) + 1
        label = label_of(text[line_start : _bounds(text, place)[1]], whole=True)
        if isinstance(label, Label) and label.kind == "input":
            raw, at = _value(text, line_start + label.end)
        elif (called := _CALLED.match(header)) is not None and tools.find(called[1]) is not None:
            header, raw, at = called[1], _unwrapped(called[2]), end
        elif text[place : place + 1] in ("{", "`"):
            raw, at = _value(text, place)
        else:
            raw, at = "", end
    if tools.is_none(header):
        return None, at
    name = _clean(header)
    if name.casefold() in _FINAL:
        return Action(None, raw), at
    return _made(name, raw, tools), at


def _made(name: str, raw: str, tools: Tools) -> Action:
    tool = tools.find(name)
    if tool is None:
        named = [each for each in tools.all if re.search(rf"(?<!\w){re.escape(each.name)}(?!\w)", name, re.ASCII)]
        tool = named[0] if len(named) == 1 else None
    if tool is None:
        # Nobody's: whoever runs the calls says so, and the model mends it.
        return Action(_NOT_NAME.sub("_", name).strip("_")[:64] or "unknown", _json_text(raw, None))
    return Action(tool.name, raw if tool.custom else _json_text(raw, tool), tool.custom)


def _from_json(text: str, tools: Tools) -> Action | None:
    """An action that was written as one object: `{"action": …, "action_input": …}` and its kin."""
    value = _object(text)
    if value is None:
        return None
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    if name is None:
        return None
    given: Any = next((value[key] for key in _INPUTS if key in value), {})
    raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return Action(None, raw) if _clean(name).casefold() in _FINAL else _made(_clean(name), raw, tools)


def _value(text: str, at: int) -> tuple[str, int]:
    """What stands behind the label of an input, and where it ends: a whole JSON value, else up to the next label."""
    begin = _FENCE.match(text, at)
    assert begin is not None
    if text[begin.end() : begin.end() + 1] in ("{", "["):
        end = _json_end(text, begin.end())
        if end is not None:
            return text[begin.end() : end], end
    end = next((label.start for label in line_labels(text, at) if label.start > at), len(text))
    return text[begin.end() : end].strip().removesuffix("`" * 3).rstrip(), end


def _json_end(text: str, at: int) -> int | None:
    """Where the object or list that begins here ends; None where it does not."""
    depth = 0
    quote = ""
    escaped = False
    before = ""
    for place in range(at, len(text)):
        mark = text[place]
        if quote:
            if escaped:
                escaped = False
            elif mark == "\\":
                escaped = True
            elif mark == quote:
                quote = ""
            continue
        if mark == '"' or (mark == "'" and before in "{[:,("):
            quote = mark
        elif mark in "{[":
            depth += 1
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                return place + 1
        if not mark.isspace():
            before = mark
    return None


def _json_text(raw: str, tool: Tool | None) -> str:
    """An input as the JSON text of an object; what cannot be read so stays as it is."""
    if is_nothing(raw):
        return "{}"
    if (value := _object(raw)) is not None:
        return raw if _strict(raw) is not None else json.dumps(value, ensure_ascii=False)
    if raw.startswith("{"):
        return raw
    if tool is None:
        return json.dumps({"input": raw}, ensure_ascii=False)
    if (pairs := _pairs(raw, tool)) is not None:
        return json.dumps(pairs, ensure_ascii=False)
    if (only := tool.only) is not None:
        return json.dumps({only: _typed(raw, tool.properties.get(only))}, ensure_ascii=False)
    return raw


def _pairs(raw: str, tool: Tool) -> dict[str, Any] | None:
    """`city=Paris, unit=C`, or one on each line; None where a name is not the tool's."""
    marks = [found for found in _PAIR.finditer(raw) if found[1] in tool.properties]
    if not marks or marks[0].start() != 0:
        return None
    ends = [*(found.start() for found in marks[1:]), len(raw)]
    return {
        found[1]: _typed(raw[found.end() : end].strip(" \t\r\n,，;"), tool.properties[found[1]])
        for found, end in zip(marks, ends, strict=True)
    }


def _typed(raw: str, schema: Any) -> Any:
    """A bare value as its schema's type where it is one; a text without its quotes."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind in ("integer", "number", "boolean", "array", "object"):
        try:
            return json.loads(raw.strip().lower() if kind == "boolean" else raw)
        except (ValueError, RecursionError):
            return raw
    if len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'`":
        return raw[1:-1]
    return raw


def _object(text: str) -> dict[str, Any] | None:
    """The object that a text is, in JSON's spelling or Python's."""
    value = _strict(text)
    if value is None and text.lstrip().startswith("{") and len(text) < _LONGEST_LITERAL:
        try:
            value = ast.literal_eval(text.strip())
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    return value if isinstance(value, dict) else None


def _strict(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _unwrapped(text: str) -> str:
    """The arguments of `name(…)`."""
    text = text.strip()
    if text[:1] in ("(", "（"):
        text = text[1:].strip().removesuffix(")").removesuffix("）")
    return text.strip()


def _bounds(text: str, at: int) -> tuple[int, int]:
    """From here to the end of the line."""
    end = text.find("\n", at)
    return at, len(text) if end < 0 else end


def _clean(name: str) -> str:
    return name.strip(_AROUND).rstrip(_ENDS).strip(_AROUND)


def _alike(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name).casefold()
