"""Ways the demo backend fails when a request asks for it: `metadata.demo`.

Pure. Knows the names and what each does to an answer; waiting and raising are `demo.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from gateway.errors import InvalidRequest

Misbehaviour = Literal["rate_limit", "error", "stall", "cut", "bad_json", "loop"]

NAMES: Final[tuple[str, ...]] = get_args(Misbehaviour)
# Long enough to be seen as a wait, short enough that a retry within one deadline helps.
RETRY_AFTER_S: Final = 1.0
# A model that repeats itself stops only at its limit; this one has a limit of its own.
LOOP_TOKENS: Final = 400


def read_misbehaviour(metadata: Any) -> Misbehaviour | None:
    """What `metadata.demo` asks for.

    Raises:
        InvalidRequest: it names something else.
    """
    wanted = metadata.get("demo") if isinstance(metadata, Mapping) else None
    if wanted is None:
        return None
    for name in get_args(Misbehaviour):
        if wanted == name:
            return name  # type: ignore[no-any-return]  # one of the literal's own values
    known = ", ".join(NAMES)
    raise InvalidRequest(f"`metadata.demo` is {wanted!r}; the demo backend knows {known}.", param="metadata.demo")


def broken_json(text: str) -> str:
    """JSON whose end is missing, as a model leaves it that loses the thread. Never valid again."""
    return text[:-1] if text.endswith(("}", "]")) else "{" + text


def endless(text: str, max_tokens: int | None) -> tuple[str, int]:
    """A text over and over, longer than its limit in tokens; and that limit."""
    sentence = text.split("\n\n", 1)[0].strip() or "And so on."
    limit = LOOP_TOKENS if max_tokens is None else min(max_tokens, LOOP_TOKENS)
    # Every word is a token or more.
    return f"{sentence} " * (limit + 1), limit
