"""Anthropic's Messages API as a server writes it: whole answers, streams and errors."""

from __future__ import annotations

import json
from typing import Any

from tests.replies import Reply, Step, body, stream

MODEL = "claude-upstream"
Block = dict[str, Any]


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def use(call_id: str, name: str, **arguments: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _message(content: list[Block], stop_reason: str | None, tokens: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
    }


def _reason(blocks: tuple[Block, ...]) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"


def whole(*blocks: Block, tokens: tuple[int, int] = (11, 5)) -> Reply:
    return body(_message(list(blocks), _reason(blocks), tokens))


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def events(*blocks: Block, tokens: tuple[int, int] = (11, 5)) -> list[Step]:
    out: list[Step] = [event("message_start", message=_message([], None, (tokens[0], 1)))]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            out.append(event("content_block_start", index=index, content_block=text("")))
            pieces = [{"type": "text_delta", "text": piece} for piece in _halves(block["text"])]
        else:
            out.append(event("content_block_start", index=index, content_block=block | {"input": {}}))
            arguments = json.dumps(block["input"])
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _halves(arguments)]
        out += [event("content_block_delta", index=index, delta=piece) for piece in pieces]
        out.append(event("content_block_stop", index=index))
    delta = {"stop_reason": _reason(blocks), "stop_sequence": None}
    out.append(event("message_delta", delta=delta, usage={"output_tokens": tokens[1]}))
    out.append(event("message_stop"))
    return out


def streamed(*blocks: Block, tokens: tuple[int, int] = (11, 5)) -> Reply:
    return stream(*events(*blocks, tokens=tokens))


def refusal(status: int, kind: str, message: str, **headers: str) -> Reply:
    content = {"type": "error", "error": {"type": kind, "message": message}}
    return body(content, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def _halves(value: str) -> tuple[str, str]:
    return value[: len(value) // 2], value[len(value) // 2 :]
