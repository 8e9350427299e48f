"""When a turn has used enough tools, tokens, money or time.

Pure. Counts rounds, rounds with identical calls and results, and rounds in a row in which a tool only failed; compares tokens,
money and time with what is left; says why it is enough, and whether there is room for a last answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

_SAME_CALLS = 3
_FAILURES = 3
# Of a turn's time, what is kept for its last answer: a fifth, half a minute at most.
_ANSWER_SHARE = 0.2
_ANSWER_S = 30.0

_encode = msgspec.json.Encoder(order="deterministic").encode


class Enough(NamedTuple):
    """Why no more tools are called, and whether the model may be asked for its answer."""

    reason: str
    last_round: bool = True


class ToolLimits:
    """Watches the tool rounds of one turn.

    Args:
        max_rounds: rounds with tool calls that are allowed.
        max_tokens: tokens all rounds together may take, or None.
        time_limit_s: seconds the turn may take.
        max_cost: what all rounds together may cost, in billionths of the currency, or None.
    """

    __slots__ = ("_failures", "_max_cost", "_max_rounds", "_max_tokens", "_rounds", "_same", "_time_limit_s")

    def __init__(
        self,
        max_rounds: int,
        max_tokens: int | None = None,
        time_limit_s: float = float("inf"),
        max_cost: int | None = None,
    ) -> None:
        self._max_rounds = max_rounds
        self._max_tokens = max_tokens
        self._time_limit_s = time_limit_s
        self._max_cost = max_cost
        self._rounds = 0
        self._same: Counter[bytes] = Counter()
        self._failures: Counter[str] = Counter()

    def round_ended(self, calls: Iterable[tuple[str, str, bool, str]]) -> Enough | None:
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
        return Enough(reason) if reason is not None else None

    def spent(self, tokens: int, next_tokens: int) -> Enough | None:
        """Whether the tokens are enough.

        Args:
            tokens: what the turn has taken so far.
            next_tokens: what the next round's prompt will take.
        """
        return _room(self._max_tokens, tokens, next_tokens, f"the limit of {self._max_tokens} tokens is reached")

    def paid(self, cost: int, next_cost: int) -> Enough | None:
        """Whether it has cost enough; as `spent`, in billionths of the currency."""
        return _room(self._max_cost, cost, next_cost, "the limit of what one turn may cost is reached")

    def waited(self, left_s: float) -> Enough | None:
        """Whether the time is enough: what is left of it is the last answer's."""
        limit = self._time_limit_s
        if left_s > min(limit * _ANSWER_SHARE, _ANSWER_S):
            return None
        return Enough(time_is_over(limit))


def time_is_over(limit_s: float) -> str:
    """The reason of a turn that took too long."""
    return f"the time limit of {limit_s:g} s is reached"


def _room(limit: int | None, taken: int, coming: int, reason: str) -> Enough | None:
    """Whether there is room for one more prompt only, which is the last answer's, or for none."""
    if limit is None or limit - taken > 2 * coming:
        return None
    return Enough(reason, last_round=taken + coming <= limit)


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
