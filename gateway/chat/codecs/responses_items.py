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
    Audio,
    Block,
    Image,
    Message,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from gateway.chat.codecs.responses_thoughts import thought_of
from gateway.errors import InvalidRequest

Item = dict[str, Any]

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
_REFUSED: Final = {
    "compaction": "a compacted conversation can be read only by the service that made it",
    "compaction_trigger": "this version does not compact conversations",
    "mcp_approval_request": "this version does not serve approvals",
    "mcp_approval_response": "this version does not serve approvals",
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
            _output(item, where)
        else:
            _Thread((), lambda _, name: name).add(item, where)


def left_out(items: Iterable[Item]) -> frozenset[str]:
    """The types of items that the model will not see."""
    return frozenset(kind for item in items if (kind := item.get("type")) in _LEFT_OUT)


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
                call_id, output = _output(item, f"input[{index}]")
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
            name = self._flat_name(_space(item, where), _text(item, "name", where))
            self._call(item, ToolCall(_text(item, "call_id", where), name, _arguments(item, where)), where)
        elif kind == "custom_tool_call":
            name = self._flat_name(_space(item, where), _text(item, "name", where))
            call = ToolCall(_text(item, "call_id", where), name, _text(item, "input", where, empty=True), custom=True)
            self._call(item, call, where)
        elif kind == "mcp_call":
            self._own_call(item, where)
        elif kind in _OUTPUTS:
            self._output(item, where)
        elif kind in _THEIR_CALLS:
            rest = {name: value for name, value in item.items() if name not in ("id", "type", "call_id", "status")}
            call_id = _text(item, "call_id", where)
            self._call(item, ToolCall(call_id, kind.removesuffix("_call"), _encode(rest).decode()), where)
        elif kind == "item_reference":
            raise InvalidRequest(f"Item with id {item.get('id')!r} not found.", param=f"{where}.id")
        elif kind in _REFUSED:
            raise InvalidRequest(f"`{where}` is of the type {kind!r}: {_REFUSED[kind]}.", param=where)
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
        blocks = _content(item, where, role)
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
            call_id = f"call_{_text(item, 'id', where).removeprefix('mcp_')}"
        self._call(item, ToolCall(call_id, _text(item, "name", where), _arguments(item, where)), where)
        output = item.get("output")
        if not isinstance(output, str):
            error = item.get("error")
            output = _encode({"ok": False, "error": "it was not run" if error is None else error}).decode()
        self._own.append(ToolResult(call_id, output))

    def _output(self, item: Item, where: str) -> None:
        self._close()
        call_id = _call_id(item, where)
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


def _content(item: Item, where: str, role: str) -> list[Block]:
    content = item.get("content")
    if isinstance(content, str):
        return [Text(content)] if content or role != "assistant" else []
    if not isinstance(content, list):
        raise InvalidRequest(f"`{where}.content` must be a string or a list of parts.", param=f"{where}.content")
    return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _part(part: Any, where: str) -> Block:
    if not isinstance(part, dict):
        raise InvalidRequest(f"`{where}` must be an object.", param=where)
    kind = part.get("type")
    match kind:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return Text(_text(part, "text", where, empty=True))
        case "refusal":
            return Refusal(_text(part, "refusal", where, empty=True))
        case "input_image" | "image_url":
            return _image(part, where)
        case "input_audio":
            audio = part.get("input_audio")
            if not isinstance(audio, dict) or not isinstance(audio.get("data"), str):
                raise InvalidRequest(f"`{where}.input_audio.data` must be a string.", param=f"{where}.input_audio")
            return Audio(audio["data"], str(audio.get("format", "")))
        case "input_file":
            return _file(part, where)
    expected = "input_text, input_image, input_file, input_audio, output_text or refusal"
    raise InvalidRequest(f"`{where}.type` is {kind!r}; expected {expected}.", param=f"{where}.type")


def _image(part: Mapping[str, Any], where: str) -> Image:
    url: Any = part.get("image_url")
    detail: Any = part.get("detail")
    if isinstance(url, dict):  # Chat Completions' form
        url, detail = url.get("url"), url.get("detail", detail)
    if not isinstance(url, str) or not url:
        if part.get("file_id"):
            raise InvalidRequest(
                f"`{where}.file_id`: no files are kept here; send the image as `image_url`.", param=f"{where}.file_id"
            )
        raise InvalidRequest(f"`{where}.image_url` must be a string.", param=f"{where}.image_url")
    return Image(url, detail if isinstance(detail, str) else None)


def _file(part: Mapping[str, Any], where: str) -> Unknown:
    for name in ("file_id", "file_url"):
        if part.get(name):
            raise InvalidRequest(
                f"`{where}.{name}`: no files are kept or fetched here; send the file as `file_data`.",
                param=f"{where}.{name}",
            )
    data = _text(part, "file_data", where)
    named = part.get("filename")
    file = {"file_data": data, **({"filename": named} if isinstance(named, str) else {})}
    return Unknown("file", {"type": "file", "file": file})


def _output(item: Item, where: str) -> tuple[str, tuple[str, list[Image]]]:
    """A call's id, and what came of it: text, and images apart."""
    call_id = _call_id(item, where)
    output = item.get("output")
    if isinstance(output, str):
        return call_id, (output, [])
    if isinstance(output, dict):
        kind = output.get("type")
        if kind == "computer_screenshot":
            return call_id, ("(an image)", [_image(output, f"{where}.output")])
        return call_id, (_encode(output).decode(), [])
    if not isinstance(output, list):
        raise InvalidRequest(f"`{where}.output` must be a string or a list of parts.", param=f"{where}.output")
    if item.get("type") == "shell_call_output":
        return call_id, (_encode(output).decode(), [])
    blocks = [_part(part, f"{where}.output[{index}]") for index, part in enumerate(output)]
    for index, block in enumerate(blocks):
        if not isinstance(block, (Text, Image)):
            raise InvalidRequest(
                f"`{where}.output[{index}]` must be text or an image.", param=f"{where}.output[{index}].type"
            )
    texts = [block.text for block in blocks if isinstance(block, Text)]
    images = [block for block in blocks if isinstance(block, Image)]
    return call_id, ("\n".join(texts) or ("(an image)" if images else ""), images)


def _call_id(item: Item, where: str) -> str:
    # Of this kind alone the id is the call's.
    by_id = item.get("type") == "local_shell_call_output" and "call_id" not in item
    return _text(item, "id" if by_id else "call_id", where)


def _space(item: Item, where: str) -> str | None:
    space = item.get("namespace")
    if space is not None and not isinstance(space, str):
        raise InvalidRequest(f"`{where}.namespace` must be a string.", param=f"{where}.namespace")
    return space


def _arguments(item: Item, where: str) -> str:
    arguments = item.get("arguments")
    if isinstance(arguments, dict):
        return _encode(arguments).decode()
    text = _text(item, "arguments", where, empty=True)
    return text if text.strip() else "{}"


def _text(value: Mapping[str, Any], name: str, where: str, *, empty: bool = False) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise InvalidRequest(f"`{where}.{name}` must be a string.", param=f"{where}.{name}")
    if not found and not empty:
        raise InvalidRequest(f"`{where}.{name}` is empty.", param=f"{where}.{name}")
    return found
