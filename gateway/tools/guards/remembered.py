"""What the Courier remembers of one turn: corrections that were asked for, results that were seen, handles that were shown.

Values of one turn; nothing of it outlives the turn. Does not know models or rounds: the calls of one answer come together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import field

from gateway.tools.guards.kept import HANDLE_PREFIX
from gateway.tools.outcome import Outcome

# The second correction of one tool's arguments: another model may do better.
_ESCALATE_AT: Final = 2
_HANDLE: Final = re.compile(r'"handle":"(' + HANDLE_PREFIX + r'[0-9a-f]{20})"')
_NOTE: Final = "the same call has brought the same result before in this turn; calling it again will not change it"

_encode = msgspec.json.Encoder(order="deterministic").encode


class Remembered(msgspec.Struct, eq=False):
    """One turn's memory of its calls.

    Attributes:
        handles: of whole results that stand in this conversation, and may be read on in it.
    """

    handles: set[str] = field(default_factory=set)
    _corrected: dict[str, int] = field(default_factory=dict)
    _results: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def corrected(self, names: Iterable[str]) -> frozenset[str]:
        """These tools' arguments were wrong in one answer; those of them that have been wrong in an earlier one too."""
        names = set(names)
        for name in names:
            self._corrected[name] = self._corrected.get(name, 0) + 1
        return frozenset(name for name in names if self._corrected[name] >= _ESCALATE_AT)

    def repeats(self, outcome: Outcome) -> bool:
        """Whether the same call of an earlier answer has brought the same."""
        return bool(self._results) and self._results.get(_call_of(outcome)) == outcome.content

    def note(self, outcomes: Iterable[Outcome]) -> None:
        """These calls were made."""
        for outcome in outcomes:
            if outcome.ok:
                self._results[_call_of(outcome)] = outcome.content


def repeated(content: str, max_bytes: int) -> str:
    """The content of a call that worked, with a note that it repeats another; the note alone where there is no room."""
    told = f'{content[:-1]},"note":"{_NOTE}"}}'
    return told if len(told.encode()) <= max_bytes else f'{{"ok":true,"note":"{_NOTE}"}}'


def handles_in(texts: Iterable[str]) -> set[str]:
    """The handles that results which models were shown name."""
    return {handle for text in texts if HANDLE_PREFIX in text for handle in _HANDLE.findall(text)}


def _call_of(outcome: Outcome) -> tuple[str, bytes]:
    return outcome.name, _encode(outcome.arguments)
