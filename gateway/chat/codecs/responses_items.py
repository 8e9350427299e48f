"""Items of the Responses API read as messages: what a client sends, and what earlier responses left behind.

Pure. Knows OpenAI's item types and how little a Chat Completions conversation has room for. Errors name the place in OpenAI's
notation, and use OpenAI's words where clients look for them.

Items of one round become one assistant message: its reasoning, its words, its calls. Every call's output follows at once,
wherever the client has put it. A call the gateway ran itself (`mcp_call`) carries its output.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.chat.blocks import (
    Block,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from gateway.chat.codecs.responses_parts import (
    Item,
    arguments_of,
    call_id_of,
    content_of,
    output_of,
    space_of,
    text_of,
)
from gateway.chat.codecs.responses_thoughts import thought_of
from gateway.errors import InvalidRequest

# Calls that the client runs with tools of kinds that Chat Completions does not know: kept as calls of functions.
_THEIR_CALLS: Final = frozenset({"local_shell_call", "shell_call", "apply_patch_call", "computer_call"})
_OUTPUTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", *(f"{kind}_output" for kind in _THEIR_CALLS)}
)
# What another service did on its own side: nothing of it can be told to a model that does not know such tools.
_LEFT_OUT: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
    }
)
# What waits for a human's approval, and the word on it: the gateway's, no part of what a model is told.
APPROVAL_REQUEST: Final = "mcp_approval_request"
APPROVAL_RESPONSE: Final = "mcp_approval_response"
_APPROVALS: Final = frozenset({APPROVAL_REQUEST, APPROVAL_RESPONSE})
_REFUSED: Final = {
    "compaction": "a compacted conversation can be read only by the service that made it",
    "compaction_trigger": "this version does not compact conversations",
}
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
# A longer id of a client's is not kept.
_LONGEST_ID: Final = 64
# An id of ours: which response an item belongs to, and which of its rounds.
_OURS: Final = re.compile(r"(?:msg|rs|fc|ctc|mcp)_([0-9a-f]{32})_(\d{1,6})_\d{1,6}")

_encode = msgspec.json.Encoder().encode


def messages_of(
    items: Sequence[Item], instructions: str | None, flat_name: Callable[[str | None, str], str]
) -> tuple[Message, ...]:
    """The conversation that these items are.

    Args:
        items: in order, references to stored items replaced by these.
        instructions: what goes before everything else.
        flat_name: what a tool is called inside, by its namespace and its name.

    Raises:
        InvalidRequest: an item cannot be read, or a call and its output do not pair.
    """
    thread = _Thread(items, flat_name)
    if instructions:
        thread.system(instructions)
    for index, item in enumerate(items):
        thread.add(item, f"input[{index}]")
    return thread.end()


def check_items(items: Sequence[Item]) -> None:
    """See that items can be read one by one, whatever they pair with.

    Raises:
        InvalidRequest: one of them cannot.
    """
    for index, item in enumerate(items):
        where = f"items[{index}]"
        if kind_of(item, where) in _OUTPUTS:
            output_of(item, where)
        else:
            _Thread((), lambda _, name: name).add(item, where)


def left_out(items: Iterable[Item]) -> frozenset[str]:
    """The types of items that the model will not see."""
    return frozenset(kind for item in items if (kind := item.get("type")) in _LEFT_OUT)


def approvals_in(items: Iterable[Item]) -> tuple[str, ...]:
    """The ids of approvals that items ask for or answer."""
    names = {APPROVAL_REQUEST: "id", APPROVAL_RESPONSE: "approval_request_id"}
    found = [item.get(names[str(item["type"])]) for item in items if item.get("type") in _APPROVALS]
    return tuple(dict.fromkeys(each for each in found if isinstance(each, str)))


def kind_of(item: Item, where: str) -> str:
    """An item's type; one without is a message, or where it is nothing but an id, a reference.

    Raises:
        InvalidRequest: it is no text.
    """
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else "message"
    if not isinstance(kind, str):
        raise InvalidRequest(f"`{where}.type` must be a string.", param=f"{where}.type")
    return kind


def same_round(item: Item) -> tuple[str, str] | None:
    """Which response and round an item of the gateway's own comes from; None for every other."""
    found = _OURS.fullmatch(item["id"]) if isinstance(item.get("id"), str) else None
    return (found[1], found[2]) if found else None


def with_ids(items: Sequence[Item], key: str) -> list[Item]:
    """Items under ids: those that their client gave them, else ours."""
    prefixes = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
    return [
        item
        if isinstance(item.get("id"), str) and 0 < len(item["id"]) <= _LONGEST_ID
        else {**item, "id": f"{prefixes.get(item['type'], 'item')}_{key}_i{place}"}
        for place, item in enumerate(items)
    ]


def shown_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An input item as lists show it: a message's content as parts."""
    if item.get("type") != "message" or not isinstance(item.get("content"), str):
        return dict(item)
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    part: dict[str, Any] = {"type": kind, "text": item["content"]}
    if kind == "output_text":
        part |= {"annotations": [], "logprobs": []}
    return {"status": "completed", **item, "content": [part]}


class _Thread:
    """A conversation that is being put together."""

    def __init__(self, items: Sequence[Item], flat_name: Callable[[str | None, str], str]) -> None:
        self._flat_name = flat_name
        self._messages: list[Message] = []
        # The assistant message under way, the outputs that came with it, and what of a response it is.
        self._blocks: list[Block] = []
        self._own: list[ToolResult] = []
        self._round: tuple[str, str] | None = None
        self._outputs: dict[str, deque[tuple[str, list[Image]]]] = {}
        for index, item in enumerate(items):
            if item.get("type") in _OUTPUTS:
                call_id, output = output_of(item, f"input[{index}]")
                self._outputs.setdefault(call_id, deque()).append(output)
        self._called: dict[str, int] = {}

    def system(self, text: str) -> None:
        """Operator text. Servers that take one leading system message alone are given one."""
        self._close()
        last = self._messages[-1] if self._messages else None
        if last is not None and last.role == "system" and len(self._messages) == 1:
            text = f"{last.text}\n\n{text}"
            self._messages.clear()
        self._messages.append(Message("system", (Text(text),)))

    def add(self, item: Item, where: str) -> None:
        """Read one item."""
        kind = kind_of(item, where)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            if thought := thought_of(item):
                self._next_round(item, said=True)
                self._blocks.append(Reasoning(thought))
        elif kind == "function_call":
            name = self._flat_name(space_of(item, where), text_of(item, "name", where))
            self._call(item, ToolCall(text_of(item, "call_id", where), name, arguments_of(item, where)), where)
        elif kind == "custom_tool_call":
            name = self._flat_name(space_of(item, where), text_of(item, "name", where))
            call = ToolCall(
                text_of(item, "call_id", where), name, text_of(item, "input", where, empty=True), custom=True
            )
            self._call(item, call, where)
        elif kind == "mcp_call":
            self._own_call(item, where)
        elif kind in _OUTPUTS:
            self._output(item, where)
        elif kind in _THEIR_CALLS:
            rest = {name: value for name, value in item.items() if name not in ("id", "type", "call_id", "status")}
            call_id = text_of(item, "call_id", where)
            self._call(item, ToolCall(call_id, kind.removesuffix("_call"), _encode(rest).decode()), where)
        else:
            self._other(kind, item, where)

    def _other(self, kind: str, item: Item, where: str) -> None:
        """An item that is no part of what a model is told, or none that is known."""
        if kind == "item_reference":
            raise InvalidRequest(f"Item with id {item.get('id')!r} not found.", param=f"{where}.id")
        if kind in _REFUSED:
            raise InvalidRequest(f"`{where}` is of the type {kind!r}: {_REFUSED[kind]}.", param=where)
        if kind in _APPROVALS:
            text_of(item, "id" if kind == APPROVAL_REQUEST else "approval_request_id", where)
        elif kind not in _LEFT_OUT:
            raise InvalidRequest(
                f"`{where}.type` is {kind!r}; expected message, reasoning, function_call, function_call_output, "
                "custom_tool_call, custom_tool_call_output, mcp_call or item_reference.",
                param=f"{where}.type",
            )

    def end(self) -> tuple[Message, ...]:
        """The whole conversation."""
        self._close()
        return tuple(self._messages)

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(
                f"`{where}.role` is {role!r}; expected user, assistant, system or developer.", param=f"{where}.role"
            )
        blocks = content_of(item, where, role)
        if role == "assistant":
            self._next_round(item, said=True)
            self._blocks.extend(blocks)
        elif role == "user":
            self._close()
            self._messages.append(Message("user", tuple(blocks)))
        else:
            self.system("\n\n".join(block.text for block in blocks if isinstance(block, Text)))

    def _call(self, item: Item, call: ToolCall, where: str) -> None:
        self._next_round(item, said=False)
        if any(isinstance(block, ToolCall) and block.id == call.id for block in self._blocks):
            raise InvalidRequest(
                f"`{where}` has the `call_id` of an earlier call: {call.id!r}.", param=f"{where}.call_id"
            )
        self._blocks.append(call)

    def _own_call(self, item: Item, where: str) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"call_{text_of(item, 'id', where).removeprefix('mcp_')}"
        self._call(item, ToolCall(call_id, text_of(item, "name", where), arguments_of(item, where)), where)
        output = item.get("output")
        if not isinstance(output, str):
            error = item.get("error")
            output = _encode({"ok": False, "error": "it was not run" if error is None else error}).decode()
        self._own.append(ToolResult(call_id, output))

    def _output(self, item: Item, where: str) -> None:
        self._close()
        call_id = call_id_of(item, where)
        if not self._called.get(call_id):
            raise InvalidRequest(f"No tool call found for function call output with call_id {call_id}.", param="input")
        self._called[call_id] -= 1

    def _next_round(self, item: Item, *, said: bool) -> None:
        """Begin another message where this item is of another round; `said`, where it is no call."""
        here = same_round(item)
        known = here is not None and self._round is not None
        if self._blocks and (here != self._round if known else said and bool(self._own)):
            self._close()
        self._round = here or self._round

    def _close(self) -> None:
        blocks, own, self._blocks, self._own, self._round = self._blocks, self._own, [], [], None
        if not blocks:
            return
        text = "".join(block.text for block in blocks if isinstance(block, Text))
        calls = [block for block in blocks if isinstance(block, ToolCall)]
        rest = [block for block in blocks if not isinstance(block, (Text, ToolCall))]
        self._messages.append(Message("assistant", (*rest, *((Text(text),) if text else ()), *calls)))
        answered = {result.call_id for result in own}
        self._messages += [Message("tool", (result,)) for result in own]
        seen: list[Image] = []
        for call in calls:
            if call.id in answered:
                continue
            outputs = self._outputs.get(call.id)
            if not outputs:
                raise InvalidRequest(f"No tool output found for function call {call.id}.", param="input")
            output, images = outputs.popleft()
            self._called[call.id] = self._called.get(call.id, 0) + 1
            self._messages.append(Message("tool", (ToolResult(call.id, output),)))
            seen += images
        if seen:
            # A tool's message has room for text alone.
            self._messages.append(Message("user", (Text("Images that the tool calls returned:"), *seen)))
