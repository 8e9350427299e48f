"""What the tool that undoes an effect is called with: filled in by name, from what the tool returned, then from what it was given.

Pure. Knows JSON Schema's `properties` and `required`. Does not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.tools.outcome import CallFailed, Done
from gateway.tools.spec import ToolSpec


def undo_arguments(undo: ToolSpec, result: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the tool that undoes a call.

    A result that is one value, and no object, is taken for the one parameter that nothing else says.

    Raises:
        CallFailed: something it needs stands in neither.
    """
    known: Mapping[str, Any] = result if isinstance(result, Mapping) else {}
    properties = undo.parameters.get("properties") or {}
    filled = {
        name: known[name] if name in known else arguments[name]
        for name in properties
        if name in known or name in arguments
    }
    missing = [name for name in undo.parameters.get("required") or () if name not in filled]
    if len(missing) == 1 and isinstance(result, str | int | float) and not isinstance(result, bool):
        filled[missing[0]] = result
        missing = []
    if missing:
        raise CallFailed(
            f"`{undo.name}` needs `{missing[0]}`, which stands neither in the result nor in the arguments."
        )
    return filled


def result_of(done: Done) -> Any:
    """What a tool returned, all of it."""
    if done.full is not None:
        return _decoded(done.full)
    return shown_result(done.whole or done.content)


def shown_result(content: str) -> Any:
    """The result in what a model is shown."""
    value = _decoded(content)
    return value.get("result") if isinstance(value, dict) else None


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
