"""Strategies that choose messages without weighing them: `last` and `fresh`, and those that plugins bring.

Pure. `window` and `summary` weigh (`window.py`); `auto` is `window`, and `none` sends everything. Whatever a plugin chooses is
put right: calls and results stay together, and the last user message and what came behind it are always sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.chat.blocks import Message


def parts(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The system messages in front, and the conversation."""
    for index, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            return messages[:index], messages[index:]
    return messages, ()


def chosen(strategy: str, messages: Sequence[Message]) -> Sequence[Message]:
    """What is sent of a conversation without its leading system messages."""
    if strategy == "none":
        return messages
    here = _last_user(messages)
    if strategy == "last":
        return _whole(messages, [*_last_results(messages, here), *range(here, len(messages))])
    return _whole(messages, range(here, len(messages)))


def _whole(messages: Sequence[Message], positions: Iterable[int]) -> list[Message]:
    """These messages, system messages among the others too, in order."""
    kept = set(positions)
    kept.update(index for index, message in enumerate(messages) if message.role in ("system", "developer"))
    return [messages[index] for index in sorted(kept)]


def _last_user(messages: Sequence[Message]) -> int:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            return index
    return 0


def _last_results(messages: Sequence[Message], before: int) -> Iterable[int]:
    """The last calls before a position, and all their results."""
    end = next((index for index in range(before - 1, -1, -1) if messages[index].role == "tool"), None)
    if end is None:
        return ()
    start = end
    while start > 0 and messages[start].role == "tool":
        start -= 1
    while end + 1 < len(messages) and messages[end + 1].role == "tool":
        end += 1
    return range(start, end + 1)
