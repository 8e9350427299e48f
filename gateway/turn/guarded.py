"""A stream that `on_answer` hooks look at while it comes.

Knows windows: a text goes out as far as hooks cannot change it any more, and calls once they are whole. Does not know what hooks look
for, nor the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.chat.blocks import Message, Reasoning, Refusal, Text
from gateway.chat.chunk import Chunk, decode_chunk
from gateway.chat.deltas import Assembly, content_text
from gateway.chat.usage import Usage
from gateway.ids import new_call_id
from gateway.security.principal import Principal
from gateway.turn.hooks import Hooks
from gateway.turn.stream import Sink, whole_chunk

_decode = msgspec.json.decode
_encode = msgspec.json.encode
# Places that are tried before a text is held back further: a place within a pattern is none to cut at.
_MOST_CUTS: Final = 8

_BLOCKS: Final[dict[str, type[Text | Reasoning | Refusal]]] = {
    "content": Text,
    "reasoning_content": Reasoning,
    "reasoning": Reasoning,
    "refusal": Refusal,
}


class GuardedSink:
    """Sends what hooks made of a stream.

    The pieces are what the hooks make of the whole text, however it was cut, as long as they look no farther than they promised.

    Args:
        inner: where it goes.
        hooks: the version's; all of them have said how far they look.
        principal: who asks.
    """

    def __init__(self, inner: Sink, hooks: Hooks, principal: Principal) -> None:
        assert hooks.reach is not None, "such hooks have to see the whole answer"
        self._inner = inner
        self._hooks = hooks
        self._principal = principal
        self._reach = hooks.reach
        self._waiting: dict[str, str] = {}
        self._calls = Assembly(new_call_id)
        self._calling = False
        self._ends: list[Chunk] = []

    @property
    def started(self) -> bool:
        """Whether the client has seen anything of it."""
        return self._inner.started

    async def relay(self, chunks: Sequence[Chunk]) -> None:
        """Take in chunks, and send what is certain by now.

        Raises:
            GatewayError: a hook refuses what was said.
        """
        out: list[Chunk] = []
        for chunk in chunks:
            if not chunk.fields.choices:
                out.append(chunk)
                continue
            out += await self._taken(chunk)
        if out:
            await self._inner.relay(out)

    def straight(self) -> None:
        """None: hooks see all of it."""

    async def add(self, text: str) -> None:
        """Take in the gateway's own words."""
        await self.relay([_piece("content", text)])

    async def finish(self, reason: str | None, usage: Usage) -> None:
        """Send what is left, and the end.

        Raises:
            GatewayError: a hook refuses what was said.
        """
        out = [_piece(name, await self._made(name, text)) for name, text in self._waiting.items() if text]
        self._waiting.clear()
        if self._calling:
            message = await self._hooks.answer(Message("assistant", self._calls.message().tool_calls), self._principal)
            if message.tool_calls or message.text:
                out.append(_without_role(whole_chunk(message, None)))
        if out or self._ends:
            await self._inner.relay([*out, *self._ends])
        await self._inner.finish(reason, usage)

    async def _taken(self, chunk: Chunk) -> list[Chunk]:
        """What may be sent once this chunk has come. There is one choice: more are refused where hooks look at answers."""
        top = _decode(chunk.data)
        choice = top["choices"][0]
        delta = choice.get("delta") or {}
        if delta.get("tool_calls") or delta.get("function_call"):
            read = chunk.choices[0].delta
            assert read is not None
            self._calls.add(read, None)
            self._calling = True
            delta.pop("tool_calls", None)
            delta.pop("function_call", None)
        if isinstance(delta.get("content"), list):
            delta["content"] = content_text(delta["content"])
        for name in _BLOCKS:
            if isinstance(delta.get(name), str) and delta[name]:
                self._waiting[name] = self._waiting.get(name, "") + delta[name]
                delta[name] = await self._certain(name)
        choice["delta"] = delta
        if choice.get("finish_reason"):
            # An end is one only when no hook has refused anything.
            self._ends.append(decode_chunk(_encode(top)))
            return []
        if not any(value not in (None, "", []) for value in delta.values()):
            return []
        return [decode_chunk(_encode(top))]

    async def _certain(self, name: str) -> str:
        """What hooks make of the beginning of a text that cannot change any more; the rest goes on waiting."""
        text = self._waiting[name]
        whole = await self._made(name, text)
        for cut in _cuts(text, len(text) - self._reach):
            before = await self._made(name, text[:cut])
            if before + await self._made(name, text[cut:]) == whole:
                self._waiting[name] = text[cut:]
                return before
        return ""

    async def _made(self, name: str, text: str) -> str:
        message = await self._hooks.answer(Message("assistant", (_BLOCKS[name](text),)), self._principal)
        kind = _BLOCKS[name]
        return "".join(block.text for block in message.blocks if isinstance(block, kind))


def _cuts(text: str, last: int) -> list[int]:
    """Places to cut at: the last one that leaves enough behind it, then the beginnings of words before that."""
    if last <= 0:
        return []
    cuts = [last]
    place = last
    while len(cuts) < _MOST_CUTS and (place := text.rfind(" ", 0, place)) > 0:
        cuts.append(place)
    return cuts


def _piece(name: str, text: str) -> Chunk:
    choice: dict[str, Any] = {"index": 0, "delta": {name: text}, "finish_reason": None}
    return decode_chunk(_encode({"object": "chat.completion.chunk", "choices": [choice]}))


def _without_role(chunk: Chunk) -> Chunk:
    top = _decode(chunk.data)
    delta = {name: value for name, value in top["choices"][0]["delta"].items() if name != "role" and value is not None}
    top["choices"][0]["delta"] = delta
    return decode_chunk(_encode(top))
