"""When a turn has used enough tools.

Pure. Counts rounds, rounds with identical calls and results, and rounds in a row in which a tool only failed; says why
it is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

_SAME_CALLS = 3
_FAILURES = 3

_encode = msgspec.json.Encoder(order="deterministic").encode


class ToolLimits:
    """Watches the tool rounds of one turn.

    Args:
        max_rounds: rounds with tool calls that are allowed.
    """

    __slots__ = ("_failures", "_max_rounds", "_rounds", "_same")

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds
        self._rounds = 0
        self._same: Counter[bytes] = Counter()
        self._failures: Counter[str] = Counter()

    def round_ended(self, calls: Iterable[tuple[str, str, bool, str]]) -> str | None:
        """Count one round's calls: (name, arguments text, whether it went well, result). Why tools end now, or None."""
        self._rounds += 1
        reason: str | None = None
        well: dict[str, bool] = {}
        same: dict[bytes, str] = {}
        for name, arguments, ok, content in calls:
            well[name] = well.get(name, False) or ok
            same[_encode([name, _json(arguments), content])] = name
        # Calls of one round are one attempt: the model has not seen the first one's failure when it makes the second.
        for name, ok in well.items():
            self._failures[name] = 0 if ok else self._failures[name] + 1
            if self._failures[name] >= _FAILURES:
                reason = f"`{name}` failed {_FAILURES} times in a row"
        self._same.update(same.keys())
        for key, name in same.items():
            if reason is None and self._same[key] >= _SAME_CALLS:
                reason = f"`{name}` was called {_SAME_CALLS} times with the same arguments and the same result"
        if reason is None and self._rounds >= self._max_rounds:
            reason = f"the limit of {self._max_rounds} tool rounds is reached"
        return reason


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
