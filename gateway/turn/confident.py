"""How sure the model is of the calls of a round, where a tool asks for that.

Knows where it is found in an answer. What follows from it is the gates' (`gateway/approvals/gates.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.approvals.confidence import by_tokens, said, tokens_in
from gateway.chat.blocks import ToolCall
from gateway.tools.salvage import read_arguments
from gateway.tools.spec import CONFIDENCE, InvalidArguments, ToolSpec
from gateway.turn.context import Turn
from gateway.turn.round import Round


def confidences_of(
    turn: Turn, calls: Sequence[ToolCall], done: Round
) -> tuple[tuple[ToolCall, ...], dict[str, float | None]]:
    """The calls as they are made, and how sure the model is of them, by id.

    The argument that was added to a tool's own is taken away again.
    """
    mode = turn.snapshot.config.approvals.confidence
    if mode == "none" or not any(_is_gated(turn.offered.get(call.name)) for call in calls):
        return tuple(calls), {}
    if mode == "logprobs":
        tokens = tokens_in(done.answer.body) if done.answer is not None else done.tokens
        return tuple(calls), {
            call.id: by_tokens(tokens, call.name, call.arguments)
            for call in calls
            if _is_gated(turn.offered.get(call.name))
        }
    found: dict[str, float | None] = {}
    made: list[ToolCall] = []
    for call in calls:
        spec = turn.offered.get(call.name)
        if spec is None or not spec.confidence_gate:
            made.append(call)
            continue
        bare, found[call.id] = _without(call, spec)
        made.append(bare)
    return tuple(made), found


def _is_gated(spec: ToolSpec | None) -> bool:
    return spec is not None and spec.confidence_gate


def _without(call: ToolCall, spec: ToolSpec) -> tuple[ToolCall, float | None]:
    try:
        arguments, _ = read_arguments(call.arguments)
    except InvalidArguments:
        return call, None
    if CONFIDENCE not in arguments:
        return call, None
    if CONFIDENCE in spec.parameters.get("properties", {}):
        # The tool's own parameter says it as well.
        return call, said(arguments[CONFIDENCE])
    rest = {name: value for name, value in arguments.items() if name != CONFIDENCE}
    return ToolCall(call.id, call.name, msgspec.json.encode(rest).decode()), said(arguments[CONFIDENCE])
