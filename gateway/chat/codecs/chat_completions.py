"""Chat Completions on the wire: messages to blocks and back, request bodies to `ChatRequest`.

Knows OpenAI's request shapes. Does not know who asks or who answers. Errors name the field in OpenAI's notation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from gateway.chat.blocks import (
    Audio,
    Block,
    Image,
    Message,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    wire_of,
)
from gateway.chat.codecs.functions import with_call_ids, with_tools
from gateway.chat.request import ChatRequest, ClientTool, ToolChoice
from gateway.chat.surrogates import half_at
from gateway.errors import InvalidRequest

# Of a message that is nothing but its text.
_PLAIN_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

# Null in one of OpenAI's own options means "not set"; in a field we do not know it may mean something.
_OPTIONS = frozenset(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata "
    "modalities moderation parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention "
    "reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options temperature "
    "tool_choice tools top_logprobs top_p user verbosity web_search_options n".split()
)

# Not of `fields`, because the gateway decides about them; neither are `model` and `messages`, which every request has.
_READ = frozenset({"stream", "tools", "tool_choice", "parallel_tool_calls", "n"})


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Custom(msgspec.Struct, gc=False):
    name: str
    input: str = ""


class _Call(msgspec.Struct, gc=False):
    id: str | None = None
    type: str | None = None
    function: _Function | None = None
    custom: _Custom | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[dict[str, Any]] | msgspec.UnsetType | None = msgspec.UNSET
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    function_call: _Function | None = None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Asked(msgspec.Struct, gc=False):
    """What is read of every request, in one go."""

    model: str | None = None
    messages: list[_Message] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    parallel_tool_calls: bool | None = None
    n: int | None = None
    safety_identifier: str | None = None
    user: str | None = None


class _Named(msgspec.Struct, gc=False):
    name: str | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None
    function: _Named | None = None
    custom: _Named | None = None


_decode_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_raw_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_tool = msgspec.json.Decoder(_Tool).decode
_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")


def decode_request(body: bytes, *, paired: bool = True) -> ChatRequest:
    """Read a request body; not `paired`, it may go on from messages that are elsewhere.

    Raises:
        InvalidRequest: with `param` naming the field where one is at fault.
    """
    try:
        top = _decode_top(body)
        if _NULL in top.values():
            for name in [name for name, raw in top.items() if raw == _NULL and name in _OPTIONS]:
                del top[name]
        request = _request(top, _decode_asked(body), paired=paired)
        # The decoder passes over fields it does not read: bytes that are no text would travel on in them.
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _at_fault(error) or InvalidRequest(_why(body, error)) from error
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.") from error
    return request


def _why(body: bytes, error: Exception) -> str:
    """Why a body is no request. Of half a character, a reader says that the input is truncated, or nothing one could act on."""
    if not body.strip():
        return "The request body is empty: a JSON object is expected."
    reason = _plain(error)
    if (half := half_at(body, reason)) is not None:
        return f"The request body holds half of a character, `{half}`: both halves of a pair are needed."
    return f"The request body is not a JSON object: {reason}"


def _at_fault(error: Exception) -> InvalidRequest | None:
    """The error of a field or a message that is of another type; None where the reader names none."""
    found = _AT.search(str(error))
    if found is None or not found.group(1).startswith("."):
        return None
    param = found.group(1)[1:]
    if param == "messages":
        return InvalidRequest("`messages` must be a list of messages.", param=param)
    field = _FIELD.match(param)
    words = _plain(error) if "[" in param else _plain(error).replace(" | null`", "`")  # an option that is null is none
    return InvalidRequest(f"`{field.group() if field else param}`: {words}", param=param)


def _request(top: dict[str, msgspec.Raw], asked: _Asked, *, paired: bool) -> ChatRequest:
    older = "functions" in top and with_tools(top)
    if not asked.model:
        raise InvalidRequest("`model` is missing: name a model, or `auto` to let the router choose.", param="model")
    stream_options = asked.stream_options
    if stream_options is not None:
        # Whether usage is sent is the gateway's; every other option is the model's.
        options = _decode_top(top.pop("stream_options"))
        options.pop("include_usage", None)
        if options:
            top["stream_options"] = msgspec.Raw(_encode(options))
    n = asked.n
    if n is not None and n < 1:
        raise InvalidRequest(f"`n` must be at least 1, not {n}.", param="n")
    messages = _messages(asked.messages, top.pop("messages", None), paired=paired)
    del top["model"]
    user = asked.safety_identifier or asked.user
    if stream_options is None and _READ.isdisjoint(top):
        return ChatRequest(asked.model, messages, user=user, fields=top, functions=older)
    tools, choice = _client_tools(top), _tool_choice(top)
    for name in _READ & top.keys():
        del top[name]
    return ChatRequest(
        asked.model,
        messages,
        asked.stream is True,
        stream_options is not None and stream_options.include_usage is True,
        tools,
        choice,
        asked.parallel_tool_calls,
        n or 1,
        user,
        top,
        older,
    )


def decode_message(raw: bytes, position: int = 0) -> Message:
    """Read one message; `position` is its place among the others. The older form of calls is read as the newer one.

    Raises:
        InvalidRequest: the shape is not one OpenAI's API allows.
    """
    return _message(_read_message(raw, f"messages[{position}]"), raw, position)


def _message(wire: _Message, raw: bytes, position: int) -> Message:
    where = f"messages[{position}]"
    if wire.role == "function" or (wire.function_call is not None and not wire.tool_calls):
        raw = with_call_ids(raw, position)
        wire = _read_message(raw, where)
    if wire.role not in _ROLES:
        expected = "system, developer, user, assistant or tool"
        raise InvalidRequest(f"`{where}.role` is {wire.role!r}; expected {expected}.", param=f"{where}.role")
    blocks: list[Block] = []
    if wire.reasoning_content:
        blocks.append(Reasoning(wire.reasoning_content))
    if wire.role == "tool":
        if not wire.tool_call_id:
            raise InvalidRequest(f"`{where}.tool_call_id` is missing.", param=f"{where}.tool_call_id")
        blocks.append(ToolResult(wire.tool_call_id, _joined(_content(wire.content, where))))
    else:
        if wire.role != "assistant" and (wire.content is msgspec.UNSET or wire.content is None):
            raise InvalidRequest(f"`{where}.content` is missing.", param=f"{where}.content")
        blocks.extend(_content(wire.content, where))
    if wire.refusal:
        blocks.append(Refusal(wire.refusal))
    rewrite = False
    for index, call in enumerate(wire.tool_calls or ()):
        spot = f"{where}.tool_calls[{index}]"
        if call.id and call.custom is not None:
            blocks.append(ToolCall(call.id, call.custom.name, call.custom.input, custom=True))
            continue
        if not call.id or call.function is None or not call.function.name:
            raise InvalidRequest(f"`{spot}` needs `id` and `function.name`.", param=spot)
        arguments, changed = _arguments_text(call.function.arguments)
        rewrite = rewrite or changed
        blocks.append(ToolCall(call.id, call.function.name, arguments))
    message = Message(cast(Role, wire.role), tuple(blocks), wire.name, bytes(raw))
    return _with_arguments(message) if rewrite else message


def _read_message(raw: bytes, where: str) -> _Message:
    try:
        return _decode_message(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"`{where}`: {_plain(error)}", param=_param(where, error)) from error


def encode_messages(messages: Sequence[Message]) -> Sequence[bytes]:
    """Messages as `encode_message` has each: the bytes they came in all at once, one by one only where some has none."""
    wires: list[Any] = [*map(wire_of, messages)]
    return [*map(encode_message, messages)] if None in wires else wires


def joined_messages(messages: Sequence[Message]) -> bytes:
    """Messages as they stand in a list, each as `encode_message` has it, with commas between them."""
    try:
        return b",".join(map(wire_of, messages))  # type: ignore[arg-type]  # most have come as bytes
    except TypeError:
        return b",".join(map(encode_message, messages))


def encode_message(message: Message) -> bytes:
    """The message in Chat Completions' form: the bytes it came in, else written anew."""
    if message.wire is not None:
        return message.wire
    out: dict[str, Any] = {"role": message.role}
    if message.role == "tool":
        for block in message.blocks:
            if isinstance(block, ToolResult):
                out["tool_call_id"] = block.call_id
                out["content"] = block.text
        return _encode(out)
    out["content"] = _encode_content(message)
    if message.name is not None:
        out["name"] = message.name
    if calls := [encode_call(call) for call in message.tool_calls]:
        out["tool_calls"] = calls
    return _encode(out)


def encode_call(call: ToolCall) -> dict[str, Any]:
    """A tool call as it stands in a message: exactly `id`, `type`, and `function` or `custom`."""
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def with_system_text(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Put operator text into the one leading system message, behind the client's own words."""
    if messages and messages[0].role in ("system", "developer"):
        first = messages[0]
        merged = Message(first.role, (*first.blocks, Text(text)), first.name)
        if all(isinstance(block, Text) for block in merged.blocks):
            merged = Message(
                first.role, (Text("\n\n".join(b.text for b in merged.blocks if isinstance(b, Text))),), first.name
            )
        return (merged, *messages[1:])
    return (Message("system", (Text(text),)), *messages)


def _messages(read: list[_Message] | None, raw: msgspec.Raw | None, *, paired: bool) -> tuple[Message, ...]:
    if read is None or raw is None:
        raise InvalidRequest("`messages` is missing.", param="messages")
    if not read:
        raise InvalidRequest("`messages` is empty: at least one message is needed.", param="messages")
    made: list[Message] = []
    plain = True
    # One after the other: for two messages, maps over their parts cost four times as much, for two hundred half as much again.
    for wire, sent in zip(read, _decode_raw_list(raw)):  # noqa: B905 - of one list; to be told so costs as much as the rest
        content, role = wire.content, _PLAIN_ROLES.get(wire.role)
        if (
            type(content) is str
            and role is not None
            and not (wire.tool_calls or wire.function_call or wire.refusal or wire.reasoning_content)
        ):  # most messages are nothing but their text
            made.append(Message(role, (Text(content),), wire.name, bytes(sent)))
        else:
            plain = False
            made.append(_message(wire, bytes(sent), len(made)))
    messages = tuple(made)
    # Those ask for no calls and bring no results.
    if paired and not plain:
        check_pairs(messages)
    return messages


def check_pairs(messages: tuple[Message, ...]) -> None:
    """Every call needs its result right behind it, every result its call: upstreams refuse anything else.

    Raises:
        InvalidRequest: one of them is missing.
    """
    waiting: set[str] = set()
    asked_at = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            result = next(block for block in message.blocks if isinstance(block, ToolResult))
            if result.call_id in waiting:
                waiting.discard(result.call_id)
            else:
                raise InvalidRequest(
                    f"`messages[{index}]` is the result of call {result.call_id!r}, which no assistant message "
                    "right before it asked for.",
                    param=f"messages[{index}].tool_call_id",
                )
            continue
        if waiting:
            break
        if message.role == "assistant":
            waiting = {call.id for call in message.tool_calls}
            asked_at = index
    if waiting:
        missing = ", ".join(sorted(waiting))
        raise InvalidRequest(
            f"`messages[{asked_at}]` asks for tool calls whose results do not follow it: {missing}.",
            param=f"messages[{asked_at}].tool_calls",
        )


def _client_tools(top: Mapping[str, msgspec.Raw]) -> tuple[ClientTool, ...]:
    raw = top.get("tools")
    if raw is None:
        return ()
    try:
        items = _decode_raw_list(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest("`tools` must be a list.", param="tools") from error
    tools: list[ClientTool] = []
    names: set[str] = set()
    for index, item in enumerate(items):
        try:
            tool = _decode_tool(item)
        except msgspec.DecodeError as error:
            where = f"tools[{index}]"
            raise InvalidRequest(f"`{where}`: {_plain(error)}", param=_param(where, error)) from error
        named = tool.function or tool.custom
        name = (named.name if named else None) or ""
        if tool.type in (None, "function") and not name:
            raise InvalidRequest(f"`tools[{index}].function.name` is missing.", param=f"tools[{index}].function.name")
        if name and name in names:
            raise InvalidRequest(
                f"`tools[{index}]` has the same name as an earlier tool: {name!r}.",
                param=f"tools[{index}].function.name",
            )
        names.add(name)
        tools.append(ClientTool(name, bytes(item)))
    return tuple(tools)


def _tool_choice(top: Mapping[str, msgspec.Raw]) -> ToolChoice | None:
    raw = top.get("tool_choice")
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    wire = bytes(raw)
    if value in ("auto", "none", "required"):
        return ToolChoice(value, None, wire)
    if isinstance(value, dict):
        function = value.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return ToolChoice("named", function["name"], wire)
        if isinstance(value.get("type"), str):  # allowed_tools, custom: forwarded as it is
            return ToolChoice("other", None, wire)
    raise InvalidRequest("`tool_choice` must be auto, none, required or a named function.", param="tool_choice")


def _content(content: Any, where: str) -> Iterable[Block]:
    if content is None or content is msgspec.UNSET:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _part(part: dict[str, Any], where: str) -> Block:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"`{where}.type` is missing.", param=f"{where}.type")
    if kind in ("text", "input_text", "output_text"):
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"`{where}.text` must be a string.", param=f"{where}.text")
        return Text(part["text"])
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if not isinstance(url, str):
            raise InvalidRequest(f"`{where}.image_url.url` must be a string.", param=f"{where}.image_url")
        detail = image.get("detail") if isinstance(image, dict) else None
        return Image(url, detail if isinstance(detail, str) else None)
    if kind == "input_audio":
        audio = part.get("input_audio")
        if not isinstance(audio, dict) or not isinstance(audio.get("data"), str):
            raise InvalidRequest(f"`{where}.input_audio.data` must be a string.", param=f"{where}.input_audio")
        return Audio(audio["data"], str(audio.get("format", "")))
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return Refusal(part["refusal"])
    return Unknown(kind, part)


def _encode_content(message: Message) -> Any:
    kinds = (Text, Image, Audio, Refusal, Unknown)
    blocks = [block for block in message.blocks if isinstance(block, kinds)]
    if not blocks:
        # Strict servers want null beside calls, and text everywhere else.
        return None if message.tool_calls else ""
    if len(blocks) == 1 and isinstance(blocks[0], Text):
        return blocks[0].text
    parts: list[Any] = []
    for block in blocks:
        match block:
            case Text(text=text):
                parts.append({"type": "text", "text": text})
            case Image(url=url, detail=detail):
                parts.append({"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}})
            case Audio(data=data, format=form):
                parts.append({"type": "input_audio", "input_audio": {"data": data, "format": form}})
            case Refusal(text=text):
                parts.append({"type": "refusal", "refusal": text})
            case Unknown(value=value):
                parts.append(value)
    return parts


def _joined(blocks: Iterable[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, Text))


def _arguments_text(arguments: str | dict[str, Any] | None) -> tuple[str, bool]:
    """Arguments as strict upstreams want them: a JSON text, `{}` where there is nothing."""
    if isinstance(arguments, dict):
        return _encode(arguments).decode(), True
    if arguments is None or not arguments.strip():
        return "{}", True
    return arguments, False


def _with_arguments(message: Message) -> Message:
    """Write the mended arguments into the message's own JSON; every other field of it stays."""
    assert message.wire is not None
    wire = msgspec.json.decode(message.wire)
    calls = {call.id: call.arguments for call in message.tool_calls}
    for call in wire["tool_calls"]:
        if call.get("id") in calls and isinstance(call.get("function"), dict):
            call["function"]["arguments"] = calls[call["id"]]
    return Message(message.role, message.blocks, message.name, _encode(wire))


_AT = re.compile(r" - at `\$(.*?)`$")
# A field of a request, or one message of it.
_FIELD = re.compile(r"\w+(\[\d+\])?")


def _plain(error: Exception) -> str:
    return _AT.sub("", str(error))


def _param(where: str, error: Exception) -> str:
    found = _AT.search(str(error))
    return where + found.group(1) if found else where
