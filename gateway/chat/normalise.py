"""What loosely compatible servers send, turned into what OpenAI's schemas require.

Pure. Works on whole answers (`normalise_stream.py` on streams); adapters call it, so that everything behind them may trust the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.chat.answer import Answer, Choice
from gateway.chat.blocks import Block, Message, Reasoning, Refusal, Text, ToolCall
from gateway.chat.codecs.chat_completions import encode_call
from gateway.chat.deltas import MOST_CALLS, content_text, content_thought, made_call
from gateway.chat.usage import WireUsage
from gateway.errors import UpstreamBroken

_encode = msgspec.json.Encoder().encode

# What servers call their ends, and what OpenAI's schema calls them; any other is `stop`.
_FINISH = {
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "safety": "content_filter",
}

_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")

# Extras of a message or delta that clients are known to read.
KEPT = ("reasoning_content", "reasoning", "reasoning_details", "annotations", "audio", "images")


def finish_reason(said: str | None, *, has_calls: bool) -> str | None:
    """The finish reason a client may see; None where nothing was said.

    What was emitted counts more than what was said: an answer that carries calls ends with `tool_calls`, one without them
    does not, unless it was cut (`length`, `content_filter`).
    """
    if said != "stop":  # as most do
        if not said:
            return None
        reason = _FINISH.get(said, said)
        if reason in ("length", "content_filter"):
            return reason
    return "tool_calls" if has_calls else "stop"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class _Custom(msgspec.Struct, gc=False):
    name: str | None = None
    input: str = ""


class _Call(msgspec.Struct, gc=False):
    id: str | int | None = None
    function: _Function | None = None
    custom: _Custom | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None


_NO_CHOICE: Final = _Choice()
_decode_answer = msgspec.json.Decoder(_Answer).decode


def _any(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the answer is nested too deeply") from error


class NotAnAnswer(ValueError):
    """The body is JSON, but no chat completion."""


def read_answer(body: bytes, new_id: Callable[[], str]) -> Answer:
    """Read a well-formed answer without changing its body.

    Raises:
        NotAnAnswer: it has no choice with a message.
        msgspec.DecodeError: it is not JSON, or its fields have other types.
    """
    try:
        answer = _decode_answer(body)
    except RecursionError as error:
        raise msgspec.DecodeError("the answer is nested too deeply") from error
    choice = answer.choices[0] if answer.choices else _NO_CHOICE
    if answer.error or choice.message is None:
        raise NotAnAnswer("the answer has no choices")
    said = choice.message
    message = _message(said, new_id)
    called = bool(said.tool_calls or said.function_call) and ToolCall in map(type, message.blocks)
    reason = finish_reason(choice.finish_reason, has_calls=called)
    usage = answer.usage
    counted = usage.usage() if usage is not None and (usage.total_tokens or not usage.blank) else None
    return Answer(message, reason, counted, body, choice.finish_reason)


def read_choices(body: bytes, new_id: Callable[[], str]) -> tuple[Choice, ...]:
    """Every answer in a body that this gateway wrote."""
    choices = _decode_answer(body).choices or ()
    messages = [_message(choice.message, new_id) for choice in choices if choice.message is not None]
    return tuple(
        Choice(index, message, finish_reason(choice.finish_reason, has_calls=bool(message.tool_calls)))
        for index, (choice, message) in enumerate(zip(choices, messages, strict=True))
    )


def normalise_answer(body: bytes, new_id: Callable[[], str]) -> Answer:
    """Read an answer and write its body anew in OpenAI's shape.

    Raises:
        NotAnAnswer, msgspec.DecodeError: as `read_answer`.
    """
    raw = _any(body)
    said_choices = raw.get("choices") if isinstance(raw, dict) and not raw.get("error") else None
    sources = [said_choices] if isinstance(said_choices, dict) else said_choices
    if not isinstance(sources, list) or not sources:
        raise NotAnAnswer("the answer has no choices")
    made = [_normalised(position, choice, new_id) for position, choice in enumerate(sources)]
    said = said_usage(raw)
    usage = said.usage() if said is not None else None
    out: dict[str, Any] = {
        "id": _text(raw.get("id")) or "chatcmpl-0",
        "object": "chat.completion",
        "created": whole(raw.get("created")),
        "model": _text(raw.get("model")) or "-",
        "choices": [choice for choice, _ in made],
    }
    if usage is not None:
        out["usage"] = usage.as_openai()
    out |= marks(raw)
    first, message = made[0]
    return Answer(message, first["finish_reason"], usage, _encode(out), first["finish_reason"])


def _normalised(position: int, choice: Any, new_id: Callable[[], str]) -> tuple[dict[str, Any], Message]:
    """One choice as it is written, and its message."""
    source = choice.get("message") or choice.get("delta") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and source is None and isinstance(choice.get("text"), str):
        source = {"content": choice["text"]}
    if not isinstance(source, dict):
        raise NotAnAnswer("a choice has no message")
    message = _message(msgspec.convert(source, _Message), new_id)
    calls = message.tool_calls
    said = choice.get("finish_reason")
    said = said if isinstance(said, str) and said else "stop"
    if failed := failure_of(said, choice):
        raise failed
    refusal = next((block.text for block in message.blocks if isinstance(block, Refusal)), None)
    out: dict[str, Any] = {
        "role": "assistant",
        "content": message.text or (None if calls or refusal else ""),
        "refusal": refusal,
    }
    for name in KEPT:
        if source.get(name) is not None:
            out[name] = source[name]
    thought = next((block.text for block in message.blocks if isinstance(block, Reasoning)), None)
    if thought and not (out.get("reasoning_content") or out.get("reasoning")):
        out["reasoning_content"] = thought
    if calls:
        out["tool_calls"] = [encode_call(call) for call in calls]
    reason = finish_reason(said, has_calls=bool(calls)) or "stop"
    built = {"index": position, "message": out, "logprobs": logprobs(choice), "finish_reason": reason}
    return built, message


def _message(wire: _Message, new_id: Callable[[], str]) -> Message:
    content = wire.content
    if (
        type(content) is str
        and content
        and not (wire.reasoning_content or wire.reasoning or wire.refusal or wire.tool_calls or wire.function_call)
    ):  # most answers
        return Message("assistant", (Text(content),))
    blocks: list[Block] = []
    parts = wire.content if isinstance(wire.content, list) else []
    if thought := wire.reasoning_content or wire.reasoning or content_thought(parts):
        blocks.append(Reasoning(thought))
    text = wire.content if isinstance(wire.content, str) else content_text(parts)
    if text:
        blocks.append(Text(text))
    if wire.refusal:
        blocks.append(Refusal(wire.refusal))
    calls = wire.tool_calls or ([_Call(function=wire.function_call)] if wire.function_call else [])
    if len(calls) > MOST_CALLS:
        raise UpstreamBroken(f"The model asked for more than {MOST_CALLS} tool calls in one answer.")
    seen: set[str] = set()
    for call in calls:
        call_id = str(call.id) if call.id not in (None, "") else ""
        if not call_id or call_id in seen:
            call_id = new_id()
        if call.custom is not None and call.custom.name:
            blocks.append(made_call(call_id, call.custom.name, call.custom.input, custom=True))
        elif call.function is not None and call.function.name:
            raw = call.function.arguments
            arguments = raw if isinstance(raw, str) else "" if raw is None else _encode(raw).decode()
            blocks.append(made_call(call_id, call.function.name, arguments))
        else:
            continue
        seen.add(call_id)
    return Message("assistant", tuple(blocks))


def answer_as_chunk(body: bytes) -> bytes:
    """A whole answer as a chunk that says everything at once.

    Raises:
        NotAnAnswer, msgspec.DecodeError: as `read_answer`.
    """
    raw = _any(body)
    if not isinstance(raw, dict) or not isinstance(raw.get("choices"), list) or not raw["choices"]:
        raise NotAnAnswer("the answer has no choices")
    for position, choice in enumerate(raw["choices"]):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise NotAnAnswer("a choice has no message")
        delta = choice.pop("message")
        calls = delta.get("tool_calls")
        for index, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                call["index"] = index
        choice |= {"index": position, "delta": delta, "finish_reason": choice.get("finish_reason") or "stop"}
    raw["object"] = "chat.completion.chunk"
    return _encode(raw)


def said_usage(raw: dict[str, Any]) -> WireUsage | None:
    """The usage of an answer or chunk: its own, or where Moonshot's and Groq's servers put it; None where none counts.

    Raises:
        msgspec.ValidationError: its own has other types.
    """
    own = raw.get("usage")
    if isinstance(own, dict) and not (usage := msgspec.convert(own, WireUsage)).blank:
        return usage
    choices = raw.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    beside = raw.get("x_groq")
    for found in (first.get("usage"), beside.get("usage") if isinstance(beside, dict) else None):
        with suppress(msgspec.ValidationError):
            if isinstance(found, dict) and not (usage := msgspec.convert(found, WireUsage)).blank:
                return usage
    return None


def failure_of(said: str | None, choice: dict[str, Any]) -> UpstreamBroken | None:
    """The failure some servers write into a choice; taken for an end, a cut answer would look whole."""
    error = choice.get("error")
    if said != "error" and not error:
        return None
    words = error.get("message") if isinstance(error, dict) else error
    return UpstreamBroken(words if isinstance(words, str) and words else "The upstream ended its answer with an error.")


def marks(raw: dict[str, Any]) -> dict[str, str]:
    """What else stands at the top of an answer or chunk and is as OpenAI's schema allows it."""
    out = {"system_fingerprint": raw["system_fingerprint"]} if isinstance(raw.get("system_fingerprint"), str) else {}
    return out | ({"service_tier": raw["service_tier"]} if raw.get("service_tier") in _TIERS else {})


def logprobs(choice: dict[str, Any]) -> dict[str, Any] | None:
    """A choice's `logprobs` with both of its fields, or None."""
    said = choice.get("logprobs")
    return {"content": said.get("content"), "refusal": said.get("refusal")} if isinstance(said, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def whole(value: Any) -> int:
    """A number as a whole one; 0 for anything else."""
    return int(value) if isinstance(value, (int, float)) else 0
