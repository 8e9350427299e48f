"""The first guard: only what was offered is run, by exactly the name it was offered under."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from gateway.tools.outcome import CallFailed
from gateway.tools.spec import ToolSpec

_MOST_SHOWN = 10
_MOST_CHARS = 80


class UnknownTool(CallFailed):
    """The model called what nobody offered it."""


def find(name: str, offered: Mapping[str, ToolSpec]) -> ToolSpec:
    """The offered tool of exactly this name; a name that is nearly right is a suggestion, never a match.

    Raises:
        UnknownTool: there is none; the message names the nearest ones.
    """
    spec = offered.get(name)
    if spec is not None:
        return spec
    bare = name.rsplit(".", 1)[-1].lower()
    by_case = {known.lower(): known for known in offered}
    close = [by_case[each] for each in difflib.get_close_matches(bare, by_case, n=3, cutoff=0.5)]
    known = ", ".join(f"`{each}`" for each in close or list(offered)[:_MOST_SHOWN])
    hint = f"did you mean {known}?" if close else f"there are {known}" if known else "no tools are offered"
    raise UnknownTool(f"There is no tool `{name[:_MOST_CHARS]}`: {hint}")
