"""The smallest backend of one's own: says what was said to it.

In config/gateway.yaml:

    backends:
      echo: {provider: plugin, module: docs/examples/echo_backend.py}
    models:
      echo: {backends: [echo]}
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any


async def chat(request: dict[str, Any]) -> dict[str, Any] | AsyncIterator[Any]:
    """Answer a Chat Completions request. Whole answers and streams may be told apart by `request["stream"]`."""
    text = _last_text(request["messages"])
    usage = {"prompt_tokens": len(text.split()), "completion_tokens": len(text.split())}
    if request["stream"]:
        return _words(text, usage)
    return {"content": text, "usage": usage}


async def _words(text: str, usage: dict[str, int]) -> AsyncIterator[Any]:
    for position, word in enumerate(text.split(" ")):
        yield f" {word}" if position else word
    yield {"usage": usage}


def _last_text(messages: list[dict[str, Any]]) -> str:
    content = messages[-1].get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")
