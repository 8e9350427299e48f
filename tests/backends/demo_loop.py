"""A turn in small: runs the tools a backend calls, until it answers. For the demo backend's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.backends.backend import Backend
from gateway.chat.blocks import Message, Text, ToolResult
from tests.backends.contract import model_call, parsed, read_stream

Run = Callable[..., Any]


@dataclass(frozen=True)
class Tool:
    """A fake tool: how it is offered, and what it does."""

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    run: Run
    required: tuple[str, ...] | None = None

    @property
    def offer(self) -> dict[str, Any]:
        required = list(self.parameters) if self.required is None else list(self.required)
        schema = {"type": "object", "properties": self.parameters, "required": required}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


@dataclass
class Talk:
    """What came of a turn: the calls of each round, and the answer."""

    rounds: list[list[tuple[str, dict[str, Any]]]] = field(default_factory=list)
    answer: str = ""
    messages: list[Message] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [call for round_ in self.rounds for call in round_]


async def talk(
    backend: Backend,
    question: str,
    *tools: Tool,
    history: list[Message] | None = None,
    streamed: bool = False,
    envelope: bool = True,
    **fields: Any,
) -> Talk:
    """Ask, run what is called, and go on until there is an answer; more than six rounds are a loop and fail."""
    by_name = {tool.name: tool for tool in tools}
    out = Talk(messages=[*(history or ()), Message("user", (Text(question),))])
    offered: dict[str, Any] = {"tools": [tool.offer for tool in tools]} if tools else {}
    for _ in range(6):
        call = model_call(*out.messages, **offered, **fields)
        if streamed:
            read = await read_stream(backend, call)
            text, calls = read.text, read.calls
        else:
            answer = await backend.complete(call)
            text, calls = answer.message.text, answer.message.tool_calls
        if not calls:
            out.answer = text
            out.messages.append(Message("assistant", (Text(text),)))
            return out
        out.rounds.append(parsed(calls))
        out.messages.append(Message("assistant", tuple(calls)))
        for made in calls:
            result = _result(by_name[made.name], json.loads(made.arguments), envelope=envelope)
            out.messages.append(Message("tool", (ToolResult(made.id, result),)))
    raise AssertionError(f"no answer after six rounds: {out.rounds}")


def _result(tool: Tool, arguments: dict[str, Any], *, envelope: bool) -> str:
    try:
        value = tool.run(**arguments)
    except (LookupError, ArithmeticError) as error:
        return json.dumps({"ok": False, "error": str(error.args[0])}, ensure_ascii=False)
    if envelope:
        return json.dumps({"ok": True, "result": value}, ensure_ascii=False)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
