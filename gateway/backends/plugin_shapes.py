"""The shapes a plugin may answer in, made into Chat Completions' own.

Pure. Knows texts, deltas, chunks and whole bodies; does not know who returned them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import UpstreamBroken


def is_stream(value: Any) -> bool:
    """Whether pieces come one by one."""
    return hasattr(value, "__aiter__")


def choice_of(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    """A chunk's only choice."""
    return {"index": 0, "delta": dict(delta), "finish_reason": reason}


def as_chunk(piece: Any) -> dict[str, Any]:
    """A piece as a chunk: a text and a bare delta get a choice around them; a bare usage has none."""
    if isinstance(piece, str):
        return {"choices": [choice_of({"content": piece})]}
    if not isinstance(piece, Mapping):
        raise UpstreamBroken(f"The plugin gave a {type(piece).__name__}; expected a chunk, a delta or a text.")
    if "choices" in piece:
        choices = list(piece["choices"] or ())
        if not all(
            isinstance(choice, Mapping) and isinstance(choice.get("delta") or {}, Mapping) for choice in choices
        ):
            raise UpstreamBroken("The plugin gave a chunk whose choices are none.")
        return {**piece, "choices": choices}
    if piece.keys() == {"usage"}:
        return {"choices": [], "usage": piece["usage"]}
    return {"choices": [choice_of(piece)]}


def as_chunks(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A whole body as chunks: each choice's message, its end, and the usage."""
    chunks: list[dict[str, Any]] = []
    for position, choice in enumerate(body["choices"]):
        index, message = choice.get("index", position), dict(choice.get("message") or {})
        calls = [{"index": at, **made} for at, made in enumerate(message.pop("tool_calls", None) or ())]
        delta = {"role": "assistant", **message, **({"tool_calls": calls} if calls else {})}
        chunks.append({"choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        reason = choice.get("finish_reason") or ("tool_calls" if calls else "stop")
        chunks.append({"choices": [{"index": index, "delta": {}, "finish_reason": reason}]})
    if body.get("usage"):
        chunks.append({"choices": [], "usage": body["usage"]})
    return chunks
