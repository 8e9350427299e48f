"""Strategies that choose messages without weighing them: `last` and `fresh`, and those that plugins bring.

Pure. `window` and `summary` weigh (`window.py`); `auto` is `window`, and `none` sends everything. Whatever a plugin chooses is
put right: calls and results stay together, and the last user message and what came behind it are always sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gateway.chat.blocks import Message
from gateway.chat.codecs.chat_completions import encode_message


def parts(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The system messages in front, and the conversation."""
    for index, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            return messages[:index], messages[index:]
    return messages, ()


Choose = Callable[[list[dict[str, Any]]], Iterable[int]]


def chosen(strategy: str, messages: Sequence[Message], choose: Choose | None = None) -> Sequence[Message]:
    """What is sent of a conversation without its leading system messages; `choose` is a plugin's.

    Raises:
        Exception: whatever the plugin's function raises.
    """
    if strategy == "none":
        return messages
    here = _last_user(messages)
    if choose is not None:
        wanted = choose([msgspec.json.decode(encode_message(message)) for message in messages])
        picked = {at for at in wanted if 0 <= at < len(messages)}
        return _whole(messages, [*_paired(messages, picked), *range(here, len(messages))])
    if strategy == "last":
        return _whole(messages, [*_last_results(messages, here), *range(here, len(messages))])
    return _whole(messages, range(here, len(messages)))


def _whole(messages: Sequence[Message], positions: Iterable[int]) -> list[Message]:
    """These messages, system messages among the others too, in order."""
    kept = set(positions)
    kept.update(index for index, message in enumerate(messages) if message.role in ("system", "developer"))
    return [messages[index] for index in sorted(kept)]


def _paired(messages: Sequence[Message], picked: set[int]) -> Iterable[int]:
    """These positions, and with one of a call and its results all of them."""
    start = 0
    for index in range(1, len(messages) + 1):
        if index < len(messages) and messages[index].role == "tool":
            continue
        if any(at in picked for at in range(start, index)):
            yield from range(start, index)
        start = index


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
