"""A streamed answer of litellm's, piece by piece: as its own wrapper hands it out, or as its translators make it, joined here.

Joining is pure, and the part of that wrapper which a client notices: the first piece says the role, pieces without a word
are left out, why the answer ended comes behind everything that was said, and what it took comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from gateway.backends.http1 import CutOff

# What makes a piece worth passing on besides words and calls, even where it is empty.
_SAID: Final = ("reasoning_content", "provider_specific_fields", "annotations", "reasoning_items", "images", "audio")

# Said once or with every piece, and of the answer as a whole.
_MARKS: Final = ("system_fingerprint", "service_tier")


class Pieces(Protocol):
    """A streamed answer, piece by piece."""

    async def next(self, wait_s: float) -> bytes | None:
        """The JSON of the next chunk; None behind the last. Raises TimeoutError where none comes for so long."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class Plain:
    """A streamed answer as litellm hands it out."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pieces: AsyncIterator[Any] = aiter(stream)

    async def next(self, wait_s: float) -> bytes | None:
        """See `Pieces`. Raises CutOff where litellm makes up an end."""
        async with asyncio.timeout(wait_s):
            piece = await anext(self._pieces, None)
        if piece is None:
            return None
        stream = self._stream
        if any(choice.finish_reason for choice in piece.choices) and not (
            stream.received_any_finish_reason or stream.received_finish_reason
        ):
            raise CutOff("litellm makes up an end where the provider sent none")
        said: bytes = piece.model_dump_json(warnings=False).encode()
        return said

    async def close(self) -> None:
        """See `Pieces`."""
        await self._stream.aclose()


def delta_in(piece: bytes) -> dict[str, Any]:
    """What is new in the first choice of a chunk; empty where it has none."""
    delta: dict[str, Any] = next((choice["delta"] for choice in msgspec.json.decode(piece)["choices"]), {})
    return delta


class Joined:
    """One stream's pieces.

    Args:
        model: the model that was asked, as every chunk names it.

    Attributes:
        reason: why the answer ended, once the provider has said so.
        usage: what it took, as the provider has counted it so far.
    """

    def __init__(self, model: str) -> None:
        self.reason: str | None = None
        self.usage: dict[str, Any] = {}
        self._thoughts: list[str] = []
        self._model = model
        self._head: dict[str, Any] = {}
        self._marks: dict[str, Any] = {}
        self._begun = False

    def take(self, piece: Mapping[str, Any]) -> dict[str, Any] | None:
        """The piece as a chunk of Chat Completions; None where it brings nothing yet.

        Args:
            piece: litellm's chunk, or what it calls a generic one.
        """
        if "is_finished" in piece:
            piece = self._generic(piece)
        if not self._head and piece.get("id"):
            self._head = {name: piece[name] for name in ("id", "created") if name in piece}
        self._marks |= {name: piece[name] for name in _MARKS if piece.get(name)}
        usage = piece.get("usage")
        if usage:
            self.usage |= {name: value for name, value in usage.items() if value is not None}
        choices = piece.get("choices")
        if not choices:
            return None
        choice = choices[0]
        self.reason = choice.get("finish_reason") or self.reason
        delta = choice["delta"]
        if not self._says(delta):
            return None
        if thought := delta.get("reasoning_content"):
            self._thoughts.append(thought)
        if not self._begun:
            self._begun = True
            delta["role"] = "assistant"
        return {**piece, **self._named(), "usage": None, "choices": [{**choice, "finish_reason": None}]}

    @property
    def counted(self) -> bool:
        """Whether the provider has said what the answer took."""
        return bool(self.usage.get("prompt_tokens") and self.usage.get("completion_tokens"))

    @property
    def uncounted_thoughts(self) -> str:
        """The thoughts, where the provider does not say how many tokens they took."""
        details = self.usage.get("completion_tokens_details") or {}
        return "".join(self._thoughts) if details.get("reasoning_tokens") is None else ""

    def count_thoughts(self, tokens: int) -> None:
        """Say how many tokens the thoughts took."""
        details = self.usage.get("completion_tokens_details") or {}
        most = self.usage["completion_tokens"]
        self.usage["completion_tokens_details"] = {**details, "reasoning_tokens": min(tokens, most)}

    def end(self) -> Iterator[dict[str, Any]]:
        """The chunks behind the last piece."""
        yield {**self._named(), **self._marks, "choices": [{"index": 0, "delta": {}, "finish_reason": self.reason}]}
        if self.usage:
            counted = self.usage.get("prompt_tokens", 0) + self.usage.get("completion_tokens", 0)
            yield {**self._named(), **self._marks, "choices": [], "usage": {**self.usage, "total_tokens": counted}}

    def _generic(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """A chunk of the kind litellm had before it used OpenAI's, as one of OpenAI's."""
        call = piece.get("tool_use")
        delta = {"content": piece.get("text"), "tool_calls": None if call is None else [call]}
        # The mark behind the end says `stop` whatever was said before.
        reason = piece.get("finish_reason") if self.reason is None else None
        return {
            "choices": [{"index": piece.get("index") or 0, "delta": delta, "finish_reason": reason}],
            "usage": piece.get("usage"),
        }

    def _says(self, delta: Mapping[str, Any]) -> bool:
        if delta.get("content") or delta.get("tool_calls") or delta.get("function_call"):
            return True
        if delta.get("thinking_blocks") or (not self._begun and delta.get("role")):
            return True
        return any(delta.get(name) is not None for name in _SAID)

    def _named(self) -> dict[str, Any]:
        return {**self._head, "model": self._model}
