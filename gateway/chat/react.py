"""The ReAct protocol: tools for models that know nothing but text.

Pure. Writes a request that has tools as one that has none: the tools become a part of the system message, calls and results
text. What the model answers is `react_reader.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.chat.blocks import Block, Message, Text, ToolCall, ToolResult
from gateway.chat.codecs.chat_completions import with_system_text
from gateway.chat.react_calls import Tool, Tools

# A model that goes on behind its action makes the result up.
STOP: Final = "\nObservation:"
# What OpenAI's API takes.
_MOST_STOPS = 4
MOST_ACTIONS: Final = 16

_encode = msgspec.json.Encoder(order="deterministic").encode

# Of no meaning, or another one, where the model only writes text.
_TAKEN_OUT = frozenset({"tools", "tool_choice", "parallel_tool_calls", "response_format", "logprobs", "top_logprobs"})

_HOW = """\
You can use tools. Each takes one JSON object that matches its schema.

{tools}

To use a tool, write exactly this and then stop:

Thought: why you need it
Action: the name of the tool, one of {names}
Action Input: the JSON object

You are then told what came of it, after the word "Observation:". Never write an observation yourself.{several}
As soon as you know the answer, or where no tool helps, write:

Thought: I know the answer
Final Answer: the answer to the user, in the user's language"""
_SEVERAL = " To use several tools at once, write several pairs of Action and Action Input."
_NOW = {
    "required": "(Use a tool now: write an Action and an Action Input.)",
    "named": "(Use the tool {name} now: write an Action and an Action Input.)",
    "none": "(Use no tool now: write the Final Answer.)",
}


class Choice(msgspec.Struct, frozen=True):
    """What a request says about its tools.

    Attributes:
        tools: as they were offered.
        mode: `auto`, `none`, `required` or `named`.
        name: goes with `named`.
        most_calls: how many calls one answer may have.
    """

    tools: Tools
    mode: str = "auto"
    name: str = ""
    most_calls: int = MOST_ACTIONS


def has_tool_talk(messages: tuple[Message, ...]) -> bool:
    """Whether calls or results are part of a conversation."""
    return any(message.role == "tool" or message.tool_calls for message in messages)


def choice_of(fields: Mapping[str, msgspec.Raw]) -> Choice | None:
    """What a request's fields say about tools; None where it has none."""
    raw = fields.get("tools")
    if raw is None:
        return None
    tools = [tool for each in msgspec.json.decode(raw) if (tool := _tool(each)) is not None]
    most = 1 if bytes(fields.get("parallel_tool_calls", b"")) == b"false" else MOST_ACTIONS
    said = msgspec.json.decode(fields["tool_choice"]) if "tool_choice" in fields else "auto"
    mode, name = said if isinstance(said, str) else "auto", ""
    if isinstance(said, dict):
        named = said.get("function") or said.get("custom")
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            mode, name = "named", named["name"]
    return Choice(Tools(tools), mode, name, 0 if mode == "none" else most)


def as_text(messages: tuple[Message, ...], choice: Choice | None, form: Any = None) -> tuple[Message, ...]:
    """The conversation as a model sees it that only writes text.

    Args:
        messages: with calls and results.
        choice: the tools, or None where none are offered.
        form: the request's `response_format`, which a model that writes `Action:` cannot be held to; it is told instead.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    out: list[Message] = []
    observed: list[tuple[str, str]] = []
    for message in messages:
        if message.role == "tool":
            observed += [(names.get(b.call_id, ""), b.text) for b in message.blocks if isinstance(b, ToolResult)]
            continue
        if observed:
            out.append(_observation(observed))
            observed = []
            if message.role == "user":
                # Two messages of one side in a row are refused by many models' templates.
                out[-1] = _merged(out[-1], message)
                continue
        out.append(_as_said(message) if message.tool_calls else message)
    if observed:
        out.append(_observation(observed))
    shown = tuple(out)
    if choice is None:
        return shown
    words = " ".join(filter(None, (_NOW.get(choice.mode, "").format(name=choice.name), _format_words(form))))
    return with_system_text(_hinted(shown, words) if words else shown, _how(choice))


def text_fields(fields: Mapping[str, msgspec.Raw], choice: Choice | None) -> dict[str, msgspec.Raw]:
    """The request's fields without tools, and with the end of an action as a stop sequence."""
    if choice is None:
        return dict(fields)
    out = {name: raw for name, raw in fields.items() if name not in _TAKEN_OUT}
    said = msgspec.json.decode(fields["stop"]) if "stop" in fields else []
    stops = [said] if isinstance(said, str) else list(said) if isinstance(said, list) else []
    if STOP not in stops and len(stops) < _MOST_STOPS:
        out["stop"] = msgspec.Raw(_encode([*stops, STOP]))
    return out


def _tool(raw: Any) -> Tool | None:
    kind = raw.get("custom") or raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(kind, dict) or not isinstance(kind.get("name"), str):
        return None
    parameters = kind.get("parameters")
    return Tool(
        kind["name"],
        str(kind.get("description") or ""),
        parameters if isinstance(parameters, dict) else {},
        custom=raw.get("custom") is not None,
    )


def _how(choice: Choice) -> str:
    tools = choice.tools.all
    return _HOW.format(
        tools="\n\n".join(map(_described, tools)),
        names=", ".join(tool.name for tool in tools),
        several=_SEVERAL if choice.most_calls != 1 else "",
    )


def _described(tool: Tool) -> str:
    lines = [f"{tool.name}: {tool.description.strip()}" if tool.description.strip() else tool.name]
    lines.append("input: free text, no JSON" if tool.custom else f"schema: {_encode(tool.parameters).decode()}")
    return "\n".join(lines)


def _as_said(message: Message) -> Message:
    """An assistant message whose calls are written as the protocol has them."""
    lines = [message.text] if message.text else []
    for call in message.tool_calls:
        lines += [f"Action: {call.name}", f"Action Input: {call.arguments}"]
    rest = tuple(b for b in message.blocks if not isinstance(b, (Text, ToolCall)))
    return Message(message.role, (*rest, Text("\n".join(lines))), message.name)


def _observation(observed: list[tuple[str, str]]) -> Message:
    several = len(observed) > 1
    lines = [f"Observation{f' ({name})' if several and name else ''}: {text}" for name, text in observed]
    return Message("user", (Text("\n".join(lines)),))


def _merged(first: Message, second: Message) -> Message:
    blocks: tuple[Block, ...] = (*first.blocks, *second.blocks)
    if all(isinstance(block, Text) for block in blocks):
        blocks = (Text("\n\n".join(block.text for block in blocks if isinstance(block, Text))),)
    return Message("user", blocks, second.name)


def _hinted(messages: tuple[Message, ...], words: str) -> tuple[Message, ...]:
    """The conversation with a hint for this answer alone: at its end, so that all before it stays the same."""
    hint = Message("user", (Text(words),))
    if messages and messages[-1].role == "user":
        return (*messages[:-1], _merged(messages[-1], hint))
    return (*messages, hint)


def _format_words(form: Any) -> str:
    if not isinstance(form, dict) or form.get("type") not in ("json_object", "json_schema"):
        return ""
    asked = form.get("json_schema")
    schema = asked.get("schema") if isinstance(asked, dict) else None
    words = "The Final Answer has to be one JSON object and nothing else"
    return f"({words}, by this schema: {_encode(schema).decode()})" if schema else f"({words}.)"
