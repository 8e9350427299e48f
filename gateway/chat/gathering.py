"""A stream that was read to its end, as the whole answer it would have been.

Pure. For servers that stream whether they were asked to or not; works on chunks as `normalise_stream.py` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.chat.answer import Answer, Choice
from gateway.chat.chunk import Chunk, Delta
from gateway.chat.codecs.chat_answer import whole_answer
from gateway.chat.deltas import Assembly
from gateway.chat.normalise import finish_reason
from gateway.chat.usage import Usage


def gathered(chunks: Sequence[Chunk], new_id: Callable[[], str]) -> Answer:
    """The answer that the chunks add up to; at least one of them has a choice."""
    parts: dict[int, Assembly] = {}
    usage: Usage | None = None
    for chunk in chunks:
        if (said := chunk.fields.usage) is not None and not said.blank:
            usage = said.usage()
        for choice in chunk.choices:
            parts.setdefault(choice.index or 0, Assembly(new_id)).add(choice.delta or Delta(), choice.finish_reason)
    choices = []
    for index, part in sorted(parts.items()):
        message = part.message()
        reason = finish_reason(part.finish_reason or "stop", has_calls=bool(message.tool_calls))
        choices.append(Choice(index, message, reason))
    first = chunks[0].fields
    body = whole_answer(
        first.id or "chatcmpl-0", int(first.created or 0), first.model or "-", choices=choices, usage=usage or Usage()
    )
    return Answer(choices[0].message, choices[0].finish_reason, usage, body, choices[0].finish_reason)
