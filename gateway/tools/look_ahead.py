"""How far an `on_answer` hook looks: what lets it see an answer piece by piece.

Knows the promise alone. What becomes of it is the turn's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE: Final = "__gateway_look_ahead__"
_MOST: Final = 4096


def look_ahead(characters: int) -> Callable[[F], F]:
    """Promise that what an `on_answer` hook makes of a text depends on no more than this many characters around each place: it
    changes or refuses words and patterns of at most that length, and leaves the rest of the text as it is.

    Streamed answers then pass through it while they come, this many characters late, instead of in one piece.

    Raises:
        ValueError: it is not a whole number from 1 to 4096.
    """
    if type(characters) is not int or not 1 <= characters <= _MOST:
        raise ValueError(f"`look_ahead` takes a whole number from 1 to {_MOST}, got {characters!r}")

    def promise(hook: F) -> F:
        setattr(hook, _ATTRIBUTE, characters)
        return hook

    return promise


def reach_of(hooks: Sequence[Callable[..., Any]]) -> int | None:
    """How far all of these look together; None where one of them has to see the whole answer."""
    reaches = [getattr(hook, _ATTRIBUTE, None) for hook in hooks]
    return None if None in reaches else sum(reach for reach in reaches if reach is not None)
