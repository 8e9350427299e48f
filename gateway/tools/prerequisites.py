"""Tools that are offered only after others have succeeded in the thread.

Pure. Knows what a conversation shows of that. Does not know who asks, or where conversations are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gateway.chat.blocks import Message, ToolResult
from gateway.errors import Problem
from gateway.tools.short_names import ShortNames
from gateway.tools.spec import ToolSpec, split_origin


class _Result(msgspec.Struct):
    ok: bool = False


_result = msgspec.json.Decoder(_Result).decode


def succeeded(messages: Sequence[Message], find: Callable[[str], ToolSpec | None]) -> frozenset[str]:
    """The tools, by name, that a conversation shows to have succeeded.

    Args:
        messages: the conversation with the rounds that its client never saw; only the gateway writes those, and results of
            the client's own tools stand under names that are the client's.
        find: the tool of a name that was called.
    """
    called = {call.id: call.name for message in messages for call in message.tool_calls}
    done = set()
    for message in messages:
        for block in message.blocks if message.role == "tool" else ():
            if isinstance(block, ToolResult) and block.call_id in called and _is_ok(block.text):
                spec = find(called[block.call_id].removeprefix("gateway__")) or find(called[block.call_id])
                if spec is not None:
                    done.add(spec.name)
    return frozenset(done)


def unmet_requirements(specs: Mapping[str, ToolSpec], may_come: Callable[[str], bool]) -> Iterable[Problem]:
    """What is wrong with `requires`: names that are no tool, and tools that wait for each other."""
    short = ShortNames(specs)
    needs: dict[str, list[str]] = {}
    for spec in specs.values():
        needs[spec.name] = []
        for name in spec.requires:
            found = short.find(name)
            if found is not None:
                needs[spec.name].append(found.name)
            elif not may_come(name):
                yield _problem(spec, f"`requires` names `{name}`, and there is no such tool")
    for spec in specs.values():
        if needs[spec.name] and _comes_back(spec.name, needs):
            yield _problem(spec, "`requires` leads back to itself: it would never be offered")


def _comes_back(name: str, needs: Mapping[str, Sequence[str]]) -> bool:
    seen: set[str] = set()
    to_see = [*needs[name]]
    while to_see:
        each = to_see.pop()
        if each == name:
            return True
        if each not in seen:
            seen.add(each)
            to_see += needs.get(each, ())
    return False


def _problem(spec: ToolSpec, text: str) -> Problem:
    file, line = split_origin(spec.origin)
    return Problem(file, line, f"tool `{spec.name}`: {text}")


def _is_ok(text: str) -> bool:
    try:
        return _result(text).ok
    except (msgspec.DecodeError, RecursionError):
        return False


def unknown_compensations(specs: Mapping[str, ToolSpec], may_come: Callable[[str], bool]) -> Iterable[Problem]:
    """What is wrong with `compensate`: names that are no tool, or one that only reads."""
    short = ShortNames(specs)
    for spec in specs.values():
        if not spec.compensate:
            continue
        found = short.find(spec.compensate)
        if found is None and not may_come(spec.compensate):
            yield _problem(spec, f"`compensate` names `{spec.compensate}`, and there is no such tool")
        elif found is not None and not found.writes:
            yield _problem(spec, f"`compensate` names `{spec.compensate}`, which only reads: it would undo nothing")
