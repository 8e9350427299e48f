"""Messages as hidden rounds need them: replayable, under ids of their own, and what stands behind a visible one.

Pure. Does not know where rounds are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.chat.blocks import Message, Reasoning, Text, ToolCall
from gateway.chat.chunk import Chunk
from gateway.chat.codecs.functions import call_id
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
    # The client is shown the thoughts of all rounds as one; the model gets back its last ones, if they were left there.
    thoughts = tuple(b for b in last.blocks if isinstance(b, Reasoning)) if _thinks(visible) else ()
    rest = tuple(b for b in visible.blocks if not isinstance(b, (Reasoning, Text, ToolCall)))
    end = replayable_message(Message("assistant", (*thoughts, *rest, *((Text(text),) if text else ()), *calls)))
    return (*rounds, end, *results)


def in_older_form(visible: Message, hidden: tuple[Message, ...], position: int) -> tuple[Message, tuple[Message, ...]]:
    """Both as they will be once the client has sent the message back in the older form: one call, named by its place.

    Args:
        visible: the message the client gets.
        hidden: what stands behind it.
        position: where the message will be in the client's conversation.
    """
    if not visible.tool_calls:
        return visible, hidden
    first, *others = visible.tool_calls
    untold = {call.id for call in others}
    named = ToolCall(call_id(position, first.name), first.name, first.arguments, first.custom)

    def told(message: Message) -> Message:
        blocks = tuple(
            named if isinstance(b, ToolCall) and b.id == first.id else b
            for b in message.blocks
            if not (isinstance(b, ToolCall) and b.id in untold)
        )
        return Message(message.role, blocks, message.name)

    return told(visible), tuple(map(told, hidden))


def _thinks(message: Message) -> bool:
    return any(isinstance(block, Reasoning) for block in message.blocks)


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
