"""Decides what to call next once results are there.

Pure. A tool is called with a value from a result when its required parameter bears that value's name and the question
asks for something that the results do not tell yet but the tool's words promise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.backends.demo.arguments import Scope, fill
from gateway.backends.demo.lexicon import ACTIONS, GENERIC, IMPLIED
from gateway.backends.demo.request import Done, OfferedTool
from gateway.backends.demo.understanding import Wanted
from gateway.backends.demo.values import find_values
from gateway.backends.demo.words import concepts, normalise

_SPLIT: Final = re.compile(r"[_\-.\s]+|(?<=[a-z0-9])(?=[A-Z])")
_SAME: Final = {"number": "no", "num": "no", "nr": "no", "code": "no"}


def read_result(text: str) -> Any:
    """A result's JSON value, or the text itself where it is none. A registry's envelope is opened."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, dict) and value.get("ok") is True and "result" in value:
        return value["result"]
    return value


def failure_of(text: str) -> str | None:
    """What went wrong, where a result says that something did."""
    value = read_result(text)
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if value.get("ok") is not False and (not error or len(value) > 2):
        return None
    if isinstance(error, dict):
        error = error.get("message") or error.get("code") or json.dumps(error, ensure_ascii=False)
    return str(error or value.get("message") or "unknown error")


def follow_up(
    question: str, done: Sequence[Done], tools: Sequence[OfferedTool], lacking: str | None
) -> tuple[Wanted, ...]:
    """Calls that the results make possible. `lacking` names the tool the question meant but could not fill."""
    text = normalise(question)
    results = [(call, read_result(call.result)) for call in done if failure_of(call.result) is None]
    pairs = [pair for _, result in results for pair in _pairs(result)]
    asked = concepts(text)
    told = frozenset().union(*(concepts(key) for key, value in pairs if value not in (None, "", [], {})))
    named = frozenset().union(*(concepts(call.name) for call in done))
    open_questions = asked - told - named - GENERIC
    open_questions |= frozenset().union(*(IMPLIED.get(concept, frozenset()) for concept in open_questions))
    known_arguments = {str(value) for call in done for value in call.arguments.values()}
    calls: list[Wanted] = []
    for tool in tools:
        offers = tool.title | tool.purpose
        if tool.name != lacking and not open_questions & offers:
            continue
        if (tool.title & ACTIONS) - asked:
            continue
        calls += _from_results(tool, text, pairs, known_arguments, tools)
    return tuple({call.key: call for call in calls}.values())


def _from_results(
    tool: OfferedTool, text: str, pairs: Sequence[tuple[str, Any]], known: set[str], tools: Sequence[OfferedTool]
) -> Iterator[Wanted]:
    for slot in tool.slots:
        if not slot.required:
            continue
        wanted = _key(slot.name)
        values = [
            value for key, value in pairs if wanted in (_key(key), _key(key.rsplit(".", 1)[-1])) and _plain(value)
        ]
        for value in dict.fromkeys(values):
            if str(value) in known:
                # Asked with already: the results hold what there is to know about it.
                continue
            typed = str(value) if slot.schema.get("type") == "string" else value
            filling = fill(tool, Scope(text, find_values(text), known={slot.name: typed}), tools)
            for arguments in filling.calls[:1]:
                yield Wanted(tool.name, arguments)
        if values:
            return


def _plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""


def _pairs(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a result with its value; inner keys carry the outer ones before a dot."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = f"{path}.{key}" if path else str(key)
            yield name, inner
            yield from _pairs(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _pairs(inner, path)


def _key(name: str) -> tuple[str, ...]:
    words = (word.lower() for word in _SPLIT.split(name) if word)
    return tuple(_SAME.get(word, word) for word in words)
