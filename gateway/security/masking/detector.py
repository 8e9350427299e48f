"""All detectors of one setting, as one.

Pure. Knows which of them goes first where two find the same digits. Does not know placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.security.masking.bank_cards import find_bank_cards
from gateway.security.masking.emails import find_emails
from gateway.security.masking.found import Found, apart, blanked
from gateway.security.masking.ibans import find_ibans
from gateway.security.masking.id_numbers import IdNumbers
from gateway.security.masking.patterns import Patterns
from gateway.security.masking.phones import Phones
from gateway.security.masking.plain import encodable, plain, seen
from gateway.security.masking.suspicion import Suspicion

# In a text in plain form, between two places; what stands around them is seen.
_Find = Callable[[str, int, int], Iterable[Found]]


class Detector:
    """Finds private values in texts.

    Args:
        kinds: of `KINDS`, which to look for.
        patterns: operators' own, by kind.
        id_numbers: whose identity numbers, by `id_numbers.SHAPES`.
        regions: whose phone numbers are found as they are written at home.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        patterns: Mapping[str, str],
        *,
        id_numbers: Sequence[str] = ("cn.ric",),
        regions: Sequence[str] = ("CN", "US", "GB"),
    ) -> None:
        # In this order: what passes the stricter check is no phone number.
        by_kind: dict[str, Callable[[], _Find]] = {
            "email": lambda: find_emails,
            "id_number": lambda: IdNumbers(id_numbers).find,
            "iban": lambda: find_ibans,
            "bank_card": lambda: find_bank_cards,
            "phone": lambda: Phones(regions).find,
        }
        self._own: Final = Patterns(patterns).find if patterns else None
        self._finds = tuple(make() for kind, make in by_kind.items() if kind in kinds)
        self._suspicion = Suspicion(kinds, id_numbers)

    def suspects(self, encoded: bytes) -> bool:
        """Whether something may be found in a JSON text; False is certain. Fast."""
        return self._own is not None or self._suspicion.raised_by(encoded)

    def find(self, text: str) -> list[Found]:
        """What is private in a text, in order, never overlapping."""
        if len(text) < _SHORTEST and self._own is None:
            return []
        found = apart(self._once(text))
        while found:
            # What stood too close to a value to be one itself: it is, once that one is replaced.
            more = apart([*found, *self._once(blanked(text, found))])
            if len(more) == len(found):
                break
            found = more
        return found

    def _once(self, text: str) -> list[Found]:
        found: list[Found] = [] if self._own is None else [*self._own(text)]
        left, places = seen(text)
        simple = plain(encodable(left))
        parts = [*self._suspicion.places(simple)]
        for find in self._finds:
            for start, end in parts:
                here = find(simple, start, end)
                if places is not None:
                    here = [Found(places[one.start], places[one.end - 1] + 1, one.kind) for one in here]
                found += here
        return found


# Nothing that a detector knows is shorter: `a@b.cn`.
_SHORTEST: Final = 6
