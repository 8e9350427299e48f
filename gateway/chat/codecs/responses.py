"""The Responses API on the wire: request bodies to `ResponsesRequest`, and that with its history to a `ChatRequest`.

Knows OpenAI's request shapes. Does not know who asks, who answers, or what is stored. Errors name the field in OpenAI's
notation. What this version cannot do is refused, never accepted and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.chat.blocks import Message, Text
from gateway.chat.codecs.responses_items import approvals_in, kind_of, messages_of
from gateway.chat.codecs.responses_parts import Item
from gateway.chat.codecs.responses_tools import Offered, flat_name, offer
from gateway.chat.request import ChatRequest
from gateway.errors import InvalidRequest

_UNSERVED: Final = {
    "prompt": "prompt templates are not kept here; send `instructions` and `input`",
    "max_tool_calls": "this version does not count tool calls; `max_rounds` of a route bounds their rounds",
    "moderation": "this version does not moderate",
    "context_management": "this version does not compact conversations",
}
# Fields of Chat Completions that would get in the way of what they are here.
_FOREIGN: Final = {
    "messages": "`input`",
    "functions": "`tools`",
    "function_call": "`tool_choice`",
    "n": "several requests",
}
_INCLUDES: Final = frozenset(
    {
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        # Of tools that are not run here: there is nothing of them to include.
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
# Metadata as OpenAI bounds it.
_MOST_PAIRS: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512
# Taken out of the fields that travel on to the model's server under their own names.
_SAME_NAME: Final = frozenset(
    {
        "temperature",
        "top_p",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
        "presence_penalty",
        "frequency_penalty",
    }
)

_encode = msgspec.json.Encoder().encode
_decode_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Top(msgspec.Struct):
    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_output_tokens: int | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    prompt: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    context_management: Any = None


_GO_ON: Final = "Go on."


class ResponsesRequest(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        model: the name the client asked for.
        items: what it brings, a text as one message.
        instructions: what goes before everything else, for this response alone.
        previous_id: the response it continues, or None.
        conversation: the conversation it continues, or None.
        tools: what is offered.
        parallel_tool_calls: None where the client did not say.
        stream: whether the answer is to be streamed.
        store: whether it can be retrieved later.
        background: whether it outlives its request.
        summary: whether reasoning is shown as a summary.
        sealed_thoughts: whether reasoning carries `encrypted_content`.
        logprobs: whether text carries them.
        obfuscate: whether deltas are padded, so that their length tells nothing.
        user: `safety_identifier`, else `user`, else None.
        fields: every other field in Chat Completions' names, raw JSON, unknown ones included.
        echo: what the response repeats of the request.
    """

    model: str
    items: tuple[Item, ...]
    instructions: str | None
    previous_id: str | None
    conversation: str | None
    tools: Offered
    parallel_tool_calls: bool | None
    stream: bool
    store: bool
    background: bool
    summary: bool
    sealed_thoughts: bool
    logprobs: bool
    obfuscate: bool
    user: str | None
    fields: Mapping[str, msgspec.Raw]
    echo: Mapping[str, Any]


def decode_responses(body: bytes) -> ResponsesRequest:
    """Read a request body.

    Raises:
        InvalidRequest: with `param` naming the field where one is at fault.
    """
    try:
        # The decoder passes over fields it does not read: bytes that are no text would travel on in them.
        if not body.isascii():
            body.decode()
        return _request(_decode_top(body), msgspec.json.decode(body, type=_Top))
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        found = _AT.search(str(error))
        param = found[1].removeprefix(".").removesuffix("[...]") if found else None
        words = _AT.sub("", str(error))
        said = f"`{param}`: {words}" if param else f"The request body is not a JSON object: {words}"
        raise InvalidRequest(said, param=param or None) from error
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.") from error


_AT = re.compile(r" - at `\$(.+?)`$")


def chat_request(request: ResponsesRequest, earlier: Sequence[Item]) -> ChatRequest:
    """The request as the turn reads it.

    Args:
        request: as it came.
        earlier: what it continues: items before its own, references in both replaced.

    Raises:
        InvalidRequest: an item cannot be read, or a call and its output do not pair.
    """
    spaced = {name: flat for flat, name in request.tools.spaces.items()}

    def named(space: str | None, name: str) -> str:
        return spaced.get((space or "", name)) or flat_name(space, name)

    messages = messages_of([*earlier, *request.items], request.instructions, named)
    if not messages or (all(message.role == "system" for message in messages) and not request.items):
        raise InvalidRequest("`input` is missing: there is nothing to answer.", param="input")
    approvals = approvals_in([*earlier, *request.items])
    if approvals and messages and messages[-1].role == "assistant":
        # An approval is all that the client has said.
        messages = (*messages, Message("user", (Text(_GO_ON),)))
    return ChatRequest(
        model=request.model,
        messages=messages,
        stream=request.stream,
        include_usage=False,
        tools=request.tools.tools,
        tool_choice=request.tools.choice,
        parallel_tool_calls=request.parallel_tool_calls,
        n=1,
        user=request.user,
        fields=request.fields,
        approvals=approvals,
    )


def _refuse(top: Mapping[str, msgspec.Raw], read: _Top) -> None:
    """Refuse what cannot be done here."""
    if not read.model:
        raise InvalidRequest("`model` is missing: name a model, or `auto` to let the router choose.", param="model")
    for name, why in _UNSERVED.items():
        if getattr(read, name) is not None:
            raise InvalidRequest(f"`{name}` is not supported by this version: {why}.", param=name)
    for name, instead in _FOREIGN.items():
        if name in top:
            raise InvalidRequest(f"`{name}` is no field of the Responses API; use {instead}.", param=name)
    if read.truncation not in (None, "auto", "disabled"):
        raise InvalidRequest(f"`truncation` is {read.truncation!r}; expected auto or disabled.", param="truncation")
    if read.truncation == "auto":
        raise InvalidRequest(
            "`truncation` can only be `disabled` in this version: nothing is left out of a conversation.",
            param="truncation",
        )
    if unknown := sorted(set(read.include or ()) - _INCLUDES):
        raise InvalidRequest(f"`include` names {unknown[0]!r}, which is not known.", param="include")
    if read.background and read.store is False:
        raise InvalidRequest("`background` needs `store`: nobody could ask for the answer.", param="background")


def _request(top: Mapping[str, msgspec.Raw], read: _Top) -> ResponsesRequest:
    _refuse(top, read)
    conversation = read.conversation
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
        if not isinstance(conversation, str):
            raise InvalidRequest("`conversation.id` must be a string.", param="conversation")
    if conversation and read.previous_response_id:
        raise InvalidRequest(
            "`conversation` and `previous_response_id` cannot be used together.", param="previous_response_id"
        )
    include = frozenset(read.include or ())
    tools = offer(read.tools or (), read.tool_choice)
    logprobs = "message.output_text.logprobs" in include
    items = read_items(read.input)
    if not items and not (read.previous_response_id or conversation or read.instructions):
        raise InvalidRequest("`input` is missing: there is nothing to answer.", param="input")
    metadata = checked_metadata(read.metadata)
    return ResponsesRequest(
        model=read.model or "",
        items=items,
        instructions=read.instructions,
        previous_id=read.previous_response_id or None,
        conversation=conversation or None,
        tools=tools,
        parallel_tool_calls=read.parallel_tool_calls,
        stream=bool(read.stream),
        store=read.store is not False,
        background=bool(read.background),
        summary=bool(read.reasoning and (read.reasoning.get("summary") or read.reasoning.get("generate_summary"))),
        sealed_thoughts="reasoning.encrypted_content" in include,
        logprobs=logprobs,
        obfuscate=bool(read.stream_options and read.stream_options.get("include_obfuscation")),
        user=read.safety_identifier or read.user,
        fields=_fields(top, read, logprobs=logprobs),
        echo=_echo(read, tools, metadata),
    )


def checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata within OpenAI's bounds.

    Raises:
        InvalidRequest: there is too much of it.
    """
    for name, value in (metadata or {}).items():
        if len(name) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            raise InvalidRequest(
                f"`metadata`: a name has at most {_LONGEST_KEY} characters, a value {_LONGEST_VALUE}.", param="metadata"
            )
    if metadata and len(metadata) > _MOST_PAIRS:
        raise InvalidRequest(f"`metadata` has more than {_MOST_PAIRS} pairs.", param="metadata")
    return dict(metadata or {})


def read_items(value: str | list[Item] | None) -> tuple[Item, ...]:
    """Items under their types; a text is a message of the user's.

    Raises:
        InvalidRequest: the type of one is no text.
    """
    if not value:
        return ()
    if isinstance(value, str):
        return ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]},)
    return tuple({**item, "type": kind_of(item, f"input[{index}]")} for index, item in enumerate(value))


def _fields(top: Mapping[str, msgspec.Raw], read: _Top, *, logprobs: bool) -> dict[str, msgspec.Raw]:
    """The rest in Chat Completions' names. What the gateway keeps to itself (`metadata`, `store`, …) does not travel."""
    known = read.__struct_fields__
    fields = {name: raw for name, raw in top.items() if name not in known}
    fields |= {name: top[name] for name in _SAME_NAME if getattr(read, name, None) is not None}

    def put(name: str, value: Any) -> None:
        fields[name] = msgspec.Raw(_encode(value))

    if read.max_output_tokens is not None:
        if read.max_output_tokens < 1:
            raise InvalidRequest(
                f"`max_output_tokens` must be at least 1, not {read.max_output_tokens}.", param="max_output_tokens"
            )
        put("max_completion_tokens", read.max_output_tokens)
    if read.reasoning and read.reasoning.get("effort") is not None:
        put("reasoning_effort", read.reasoning["effort"])
    if logprobs or read.top_logprobs:
        put("logprobs", True)
    if read.top_logprobs:
        put("top_logprobs", read.top_logprobs)
    if read.text:
        if read.text.get("verbosity") is not None:
            put("verbosity", read.text["verbosity"])
        form = _response_format(read.text.get("format"))
        if form is not None:
            put("response_format", form)
    return fields


def _response_format(form: Any) -> dict[str, Any] | None:
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        if not isinstance(form.get("name"), str) or not isinstance(form.get("schema"), dict):
            raise InvalidRequest("`text.format` needs `name` and `schema`.", param="text.format")
        said = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
        return {"type": "json_schema", "json_schema": said}
    raise InvalidRequest(
        f"`text.format.type` is {kind!r}; expected text, json_object or json_schema.", param="text.format.type"
    )


def _echo(read: _Top, tools: Offered, metadata: dict[str, str]) -> dict[str, Any]:
    """What a response repeats, with OpenAI's defaults in the place of what was not said."""
    reasoning, text = read.reasoning or {}, read.text or {}
    form = text.get("format") or {"type": "text"}
    if form.get("type") == "json_schema":
        form = {"strict": False, **{k: v for k, v in form.items() if v is not None}}
    echo: dict[str, Any] = {
        "instructions": read.instructions,
        "max_output_tokens": read.max_output_tokens,
        "max_tool_calls": None,
        "parallel_tool_calls": read.parallel_tool_calls is not False,
        "previous_response_id": read.previous_response_id or None,
        "prompt_cache_key": read.prompt_cache_key,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": read.safety_identifier,
        "service_tier": read.service_tier or "default",
        "store": read.store is not False,
        "temperature": 1.0 if read.temperature is None else read.temperature,
        "text": {"format": form, "verbosity": text.get("verbosity") or "medium"},
        "tool_choice": "auto" if read.tool_choice is None else read.tool_choice,
        "tools": list(tools.shown),
        "top_logprobs": read.top_logprobs or 0,
        "top_p": 1.0 if read.top_p is None else read.top_p,
        "presence_penalty": read.presence_penalty or 0.0,
        "frequency_penalty": read.frequency_penalty or 0.0,
        "truncation": read.truncation or "disabled",
        "user": read.user,
        "metadata": metadata,
    }
    for name in ("prompt_cache_retention", "prompt_cache_options"):
        if getattr(read, name) is not None:
            echo[name] = getattr(read, name)
    conversation = read.conversation
    if conversation:
        echo["conversation"] = {"id": conversation if isinstance(conversation, str) else conversation["id"]}
    return echo
