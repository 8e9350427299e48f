"""Decides what the demo backend does with a request: call tools, or answer with which text.

Pure. Ties together understanding, chaining and wording; knows nothing of Chat Completions' form or of time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.backends.demo.arguments import Scope, fill
from gateway.backends.demo.chaining import follow_up, read_result
from gateway.backends.demo.instance import NOTHING, accepts, fits, make_instance
from gateway.backends.demo.query import query_text
from gateway.backends.demo.request import DemoRequest, OfferedTool
from gateway.backends.demo.understanding import Wanted, best_guess, call_key, understand
from gateway.backends.demo.values import find_values
from gateway.backends.demo.wording import answer_from, ask_for, demo_note, leave_out, plain_reply
from gateway.backends.demo.words import concepts, normalise
from gateway.errors import InvalidRequest

_FORMAT: Final = "response_format.json_schema.schema"


@dataclass(frozen=True, slots=True)
class Plan:
    """Either `calls` to make, or the `text` of the answer."""

    calls: tuple[Wanted, ...] = ()
    text: str = ""


def make_plan(request: DemoRequest, model: str) -> Plan:
    """What to do now. Never asks for a call that this turn has already answered.

    Raises:
        InvalidRequest: the answer's schema is wrong, or one that nothing is found for.
    """
    seen = {call_key(call.name, call.arguments) for call in request.done}
    tools = () if request.mode == "none" else request.tools
    understood = understand(request.question, tools, request.earlier)
    calls = _new(understood.calls, seen)
    if not calls and request.done and tools:
        lacking = understood.missing[0].name if understood.missing else None
        calls = _new(follow_up(request.question, request.done, tools, lacking), seen)
    if not calls and request.mode == "required":
        calls = _new(_forced(request), seen)
    if calls:
        return Plan(calls if request.parallel else calls[:1])
    if request.schema is not None:
        return Plan(text=_structured(request))
    if request.done:
        text = answer_from(request.question, request.done)
        if understood.left and tools:
            text = f"{text}\n{leave_out(request.question, understood.left)}"
    elif understood.missing is not None:
        text = ask_for(request.question, *understood.missing)
    else:
        text = plain_reply(request.question, has_media=request.has_media)
    return Plan(text=f"{text}\n\n{demo_note(request.question, model)}" if request.is_first else text)


def _new(calls: Sequence[Wanted], seen: set[str]) -> tuple[Wanted, ...]:
    return tuple(call for call in calls if call.key not in seen)


def _forced(request: DemoRequest) -> tuple[Wanted, ...]:
    """Calls of the likeliest tool, whatever is missing made up from its schema."""
    tool, filling = best_guess(request.question, request.tools)
    if filling.calls:
        return tuple(Wanted(tool.name, arguments) for arguments in filling.calls)
    return (Wanted(tool.name, _completed(tool, request.question, filling.partial)),)


def _completed(tool: OfferedTool, question: str, partial: Mapping[str, Any]) -> dict[str, Any]:
    def known(name: str, _: Mapping[str, Any]) -> Any:
        return partial.get(name, NOTHING)

    arguments = dict(partial)
    for slot in tool.slots:
        if slot.required and slot.name not in arguments:
            if slot.kind == "id" and slot.example is not None and fits(slot.example, slot.schema):
                arguments[slot.name] = slot.example
            elif slot.kind == "query":
                arguments[slot.name] = query_text(question, slot)
            else:
                arguments[slot.name] = make_instance(slot.schema, known, name=slot.name, root=tool.parameters)
    return arguments


def _structured(request: DemoRequest) -> str:
    """JSON for `response_format`: values from the results by name, then from the question, then made up."""
    schema = request.schema or {}
    results = [read_result(call.result) for call in request.done]
    if not schema:
        answer: Any = results[0] if len(results) == 1 else results
        if isinstance(answer, dict):
            return json.dumps(answer, ensure_ascii=False)
        return json.dumps({"answer": answer or request.question}, ensure_ascii=False)
    text = normalise(request.question)
    scope = Scope(text, find_values(text))

    def known(name: str, wanted: Mapping[str, Any]) -> Any:
        for result in results:
            if isinstance(result, dict) and name in result and fits(result[name], wanted):
                return result[name]
        filling = fill(OfferedTool("", "", {"properties": {name: dict(wanted)}, "required": [name]}), scope)
        boolean = wanted.get("type") == "boolean" and not concepts(name) & concepts(text)
        return filling.calls[0][name] if filling.calls and not boolean else NOTHING

    made = make_instance(schema, known)
    try:
        valid = accepts(schema, made)
    except ValueError as error:
        raise InvalidRequest(f"`response_format` holds no schema that can be read: {error}", param=_FORMAT) from error
    if not valid:
        # What the question supplied fits each place by itself; the whole may still forbid it.
        made = make_instance(schema, lambda *_: NOTHING)
        valid = accepts(schema, made)
    if not valid:
        raise InvalidRequest("The demo backend finds no answer that this schema accepts.", param=_FORMAT)
    return json.dumps(made, ensure_ascii=False)
