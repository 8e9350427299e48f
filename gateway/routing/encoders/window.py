"""Texts longer than an encoder reads: their beginning and their end, never only one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def both_ends(items: Sequence[T], limit: int) -> list[T]:
    """The first and last `limit // 2` items, in order; all of them where they fit."""
    if len(items) <= limit:
        return list(items)
    half = limit // 2
    return [*items[: limit - half], *items[len(items) - half :]]


def ends_of_text(text: str, limit: int) -> str:
    """Beginning and end of `text`, at most `limit` characters and a space between them, fit for any tokeniser.

    Halves of surrogate pairs, which no tokeniser takes, become question marks.
    """
    if len(text) > limit:
        half = limit // 2
        text = f"{text[: limit - half]} {text[len(text) - half :]}"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
