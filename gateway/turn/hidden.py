"""Messages as hidden rounds need them: replayable, under ids of their own, and what stands behind a visible one.

Pure. Does not know where rounds are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.chat.blocks import Message, Text, ToolCall
from gateway.chat.chunk import Chunk
from gateway.ids import new_call_id
from gateway.tools.salvage import replayable


def replayable_message(message: Message) -> Message:
    """The message as strict upstreams take it back: arguments that are JSON, whatever the model wrote."""
    blocks = tuple(_with_arguments(b) if isinstance(b, ToolCall) else b for b in message.blocks)
    return Message(message.role, blocks, message.name)


def _with_arguments(call: ToolCall) -> ToolCall:
    # A custom tool's input is free text.
    return call if call.custom else ToolCall(call.id, call.name, replayable(call.arguments))


def hidden_rounds(
    rounds: tuple[Message, ...], last: Message, visible: Message, results: tuple[Message, ...]
) -> tuple[Message, ...]:
    """What stands behind the visible message; nothing, where it stands for itself.

    Args:
        rounds: the calls and results before the last answer.
        last: the last answer as the model gave it.
        visible: the message the client gets.
        results: the results of registry calls in the last answer.
    """
    if not rounds and not results:
        return ()
    said = "".join([message.text for message in rounds if message.role == "assistant"])
    text = visible.text
    if text.startswith(said):
        text = text[len(said) :]
    else:  # a hook has changed what was said: it is said once, at the end
        rounds = tuple(Message(m.role, tuple(b for b in m.blocks if not isinstance(b, Text)), m.name) for m in rounds)
    calls = last.tool_calls if results else visible.tool_calls
    rest = tuple(b for b in visible.blocks if not isinstance(b, (Text, ToolCall)))
    end = replayable_message(Message("assistant", (*rest, *((Text(text),) if text else ()), *calls)))
    return (*rounds, end, *results)


def renamed(message: Message, taken: Collection[str]) -> Message:
    """The message with new ids for calls whose ids are taken."""
    if not taken:
        return message
    blocks = tuple(
        ToolCall(new_call_id(), b.name, b.arguments, b.custom) if isinstance(b, ToolCall) and b.id in taken else b
        for b in message.blocks
    )
    return Message(message.role, blocks, message.name)


def call_ids(chunks: Sequence[Chunk]) -> list[str]:
    """Ids of calls that these chunks begin."""
    return [
        call.id
        for chunk in chunks
        for choice in chunk.choices
        if choice.delta is not None and choice.delta.tool_calls
        for call in choice.delta.tool_calls
        if call.id
    ]
