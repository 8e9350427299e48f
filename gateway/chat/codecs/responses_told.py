"""The items of a response, put together from the events that told of them: for who goes on with one, or ends it, without its maker.

Pure. Knows every event that brings words; what is written of a response is `responses_stream.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.chat.codecs.responses_parts import Item

# Events that bring words of a part: where the parts are, what says which, and the part as it begins.
_PARTS: Final[dict[str, tuple[str, str, dict[str, Any], str]]] = {
    "response.output_text.delta": ("content", "content_index", {"type": "output_text", "text": ""}, "text"),
    "response.refusal.delta": ("content", "content_index", {"type": "refusal", "refusal": ""}, "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", {"type": "reasoning_text", "text": ""}, "text"),
    "response.reasoning_summary_text.delta": (
        "summary",
        "summary_index",
        {"type": "summary_text", "text": ""},
        "text",
    ),
}
# Events that bring pieces of a field of the item itself.
_FIELDS: Final = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


def items_of(frames: Sequence[bytes]) -> list[Item]:
    """The items as they are by the last of these events. What was cut off is `incomplete`, with the words that were told, and
    `untold` until somebody tells so.
    """
    items: dict[int, Item] = {}
    for frame in frames:
        event = msgspec.json.decode(frame[frame.index(b"data: ") + 6 :])
        kind = event["type"]
        index = event.get("output_index")
        if kind == "response.output_item.added":
            items[index] = {**event["item"], "status": "incomplete", "untold": True}
        elif kind == "response.output_item.done":
            items[index] = event["item"]
        elif kind == "response.content_part.added":
            items[index]["content"].append(dict(event["part"]))
        elif kind in _FIELDS:
            items[index][_FIELDS[kind]] += event["delta"]
        elif kind in _PARTS:
            place, which, begins, field = _PARTS[kind]
            parts = items[index][place]
            while len(parts) <= event[which]:
                parts.append(dict(begins))
            parts[event[which]][field] += event["delta"]
    return [items[index] for index in sorted(items)]
