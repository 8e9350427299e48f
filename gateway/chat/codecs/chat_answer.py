"""The body of a plain (not streamed) Chat Completions answer.

Pure. Knows how little of an upstream's body has to change; does not know turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.chat.answer import Choice
from gateway.chat.blocks import Message, Reasoning, Refusal
from gateway.chat.codecs.chat_completions import encode_call
from gateway.chat.usage import Usage

_encode = msgspec.json.Encoder().encode
_decode_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def named_answer(body: bytes, answer_id: str, created: int, model: str) -> bytes:
    """The upstream's body under the gateway's id and time and the client's model name; everything else as it came."""
    top: dict[str, Any] = _decode_top(body)
    top["id"], top["created"], top["model"] = answer_id, created, model
    return _encode(top)


def whole_answer(answer_id: str, created: int, model: str, *, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The body of an answer that was streamed, as it would have been without streaming."""
    return _encode(
        {
            "id": answer_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [_whole_choice(choice) for choice in choices],
            "usage": usage.as_openai(),
        }
    )


def _whole_choice(choice: Choice) -> dict[str, Any]:
    message = choice.message
    refusal = "".join(block.text for block in message.blocks if isinstance(block, Refusal)) or None
    wire: dict[str, Any] = {"role": "assistant", "content": message.text or None, "refusal": refusal}
    if not message.text and not message.tool_calls and refusal is None:
        wire["content"] = ""
    if thought := "".join(block.text for block in message.blocks if isinstance(block, Reasoning)):
        wire["reasoning_content"] = thought
    if calls := [encode_call(call) for call in message.tool_calls]:
        wire["tool_calls"] = calls
    reason = choice.finish_reason or "stop"
    return {"index": choice.index, "message": wire, "finish_reason": reason, "logprobs": None}


def changed_answer(
    body: bytes,
    answer_id: str,
    created: int,
    model: str,
    *,
    message: Message,
    finish_reason: str | None,
    usage: Usage,
) -> bytes:
    """The upstream's body with another first message, finish reason and usage; fields nobody changed stay.

    Whatever the message does not hold is gone: who took reasoning or a refusal out of it wants it out of the answer.
    """
    top: dict[str, Any] = msgspec.json.decode(body)
    top["id"], top["created"], top["model"], top["usage"] = answer_id, created, model, usage.as_openai()
    choice = top["choices"][0]
    wire = choice["message"]
    refusal = "".join(block.text for block in message.blocks if isinstance(block, Refusal)) or None
    thought = "".join(block.text for block in message.blocks if isinstance(block, Reasoning))
    for name in ("reasoning_content", "reasoning"):
        if wire.get(name) and not thought:
            del wire[name]
        elif wire.get(name):
            wire[name] = thought
    if not thought:
        wire.pop("reasoning_details", None)
    elif not (wire.get("reasoning_content") or wire.get("reasoning")):
        wire["reasoning_content"] = thought  # of an earlier round: the body is the last one's
    wire["refusal"] = refusal
    wire["content"] = message.text or (None if message.tool_calls or refusal else "")
    wire.pop("tool_calls", None)
    if calls := [*map(encode_call, message.tool_calls)]:
        wire["tool_calls"] = calls
    choice["finish_reason"] = finish_reason or "stop"
    return _encode(top)
