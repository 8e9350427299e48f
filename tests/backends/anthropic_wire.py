"""Anthropic's Messages API as a server writes it: whole answers, streams and errors, each read by Anthropic's own types."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.replies import Reply, Step, body, stream

MODEL = "claude-upstream"
Block = dict[str, Any]

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def text(value: str) -> Block:
    return {"type": "text", "text": value, "citations": None}


def use(call_id: str, name: str, **arguments: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def thinking(value: str, signature: str) -> Block:
    return {"type": "thinking", "thinking": value, "signature": signature}


def _message(content: list[Block], stop_reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }
    Message.model_validate(whole, strict=True)
    return whole


def _reason(blocks: tuple[Block, ...]) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"


def whole(*blocks: Block, tokens: tuple[int, int] = (11, 5), end: str = "", **usage: Any) -> Reply:
    counts = {"input_tokens": tokens[0], "output_tokens": tokens[1], **usage}
    return body(_message(list(blocks), end or _reason(blocks), counts))


def event(name: str, **fields: Any) -> bytes:
    whole = {"type": name, **fields}
    if name not in ("error", "ping"):  # the SDK takes these two off before its types see them
        _EVENT.validate_python(whole)
    return f"event: {name}\ndata: {json.dumps(whole)}\n\n".encode()


def events(*blocks: Block, tokens: tuple[int, int] = (11, 5), end: str = "", **usage: Any) -> list[bytes]:
    started = {"input_tokens": tokens[0], "output_tokens": 1, **usage}
    out = [event("message_start", message=_message([], None, started)), event("ping")]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            out.append(event("content_block_start", index=index, content_block=text("")))
            pieces = [{"type": "text_delta", "text": piece} for piece in _halves(block["text"])]
        elif block["type"] == "thinking":
            out.append(event("content_block_start", index=index, content_block=thinking("", "")))
            pieces = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(block["thinking"])]
            pieces.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            out.append(event("content_block_start", index=index, content_block=block | {"input": {}}))
            arguments = json.dumps(block["input"])
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(arguments)]
        out += [event("content_block_delta", index=index, delta=piece) for piece in pieces]
        out.append(event("content_block_stop", index=index))
    delta = {"stop_reason": end or _reason(blocks), "stop_sequence": None}
    out.append(event("message_delta", delta=delta, usage={"output_tokens": tokens[1]}))
    out.append(event("message_stop"))
    return out


def streamed(*blocks: Block, tokens: tuple[int, int] = (11, 5)) -> Reply:
    steps: list[Step] = list(events(*blocks, tokens=tokens))
    return stream(*steps)


def refusal(status: int, kind: str, message: str, **headers: str) -> Reply:
    content = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return body(content, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def _halves(value: str) -> tuple[str, str]:
    return value[: len(value) // 2], value[len(value) // 2 :]
