"""Thoughts that a provider wants back unchanged, kept from one round of a turn to the next.

Anthropic's models (at Anthropic, Bedrock and elsewhere) seal their thoughts with a signature and refuse the results of a
call whose thoughts are missing. They are the provider's alone: no client sees them, no other turn gets them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

_TURNS = 512


class Heard:
    """What one answer brings of thoughts and calls, whole or piece by piece."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self.call_ids: list[str] = []

    def take(self, message: Mapping[str, Any]) -> None:
        """Take in a message, or a delta of one."""
        for position, block in enumerate(message.get("thinking_blocks") or ()):
            # Pieces of one block say its index; whole ones stand in order.
            index = block.get("index")
            kept = self._blocks.setdefault(position if index is None else index, {"type": block.get("type")})
            kept["type"] = block.get("type") or kept["type"]
            for name in ("thinking", "signature", "data"):
                if isinstance(value := block.get(name), str):
                    kept[name] = kept.get(name, "") + value
        self.call_ids += [call["id"] for call in message.get("tool_calls") or () if call.get("id")]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The sealed thoughts, in order."""
        sealed = [block for _, block in sorted(self._blocks.items())]
        return [block for block in sealed if block.get("signature") or block.get("data")]


class Thoughts:
    """The thoughts of the latest turns, by turn and call; the oldest turns are forgotten first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()

    def keep(self, turn: str, heard: Heard) -> None:
        """Remember what was heard, if its calls will come back with results."""
        if heard.call_ids and heard.blocks:
            self._kept[turn, heard.call_ids[0]] = heard.blocks
            if len(self._kept) > _TURNS:
                self._kept.popitem(last=False)

    def put_back(self, turn: str, messages: Sequence[dict[str, Any]]) -> None:
        """Give each assistant message its thoughts back, where they are known and it has none."""
        if not self._kept:
            return
        for message in messages:
            calls = message.get("tool_calls")
            if calls and "thinking_blocks" not in message and (kept := self._kept.get((turn, calls[0].get("id")))):
                message["thinking_blocks"] = kept
