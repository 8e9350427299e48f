"""The seam of everything that is counted: rates, turns at once, money.

Knows what is asked of the counters and what they answer. Does not know who is counted under which name (`allowances.py`), nor
where the counters are: in this process (`memory_counters.py`), or in a server that replicas share (`store/valkey_counters.py`).

Three kinds. A *bucket* holds what a minute allows and refills evenly, so that it is full after a minute's rest. A *slot* is held
by a turn from its beginning to its end. A *hold* sets money aside that a turn may cost, until it is known what it did cost.
What a turn holds lapses a while after its process was last heard of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

# Seconds that slots and holds outlive the last word of their process, and how often it gives word.
LEASE_S: Final = 30.0
RENEW_S: Final = 10.0


Kind = Literal["", "take", "slot", "hold"]


class Take(msgspec.Struct, frozen=True, array_like=True):
    """Out of the bucket `name`, which holds `limit`, take `amount` (never more than it holds)."""

    name: str
    limit: int
    amount: float


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """One of `limit` places of this name."""

    name: str
    limit: int


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """Set `amount` aside from what `limit` leaves.

    Money is in billionths of the currency.

    Attributes:
        old: what this turn has set aside there before, in the place of which this comes.
        initial: what was spent before, where the counter does not know; -1 where that was not looked up.
        kept_s: seconds for which the counter is remembered when nobody asks it.
    """

    name: str
    limit: int
    amount: int
    old: int = 0
    initial: int = -1
    kept_s: int = 86_400


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What a turn needs: everything or nothing. `id` names the turn's stay among all others."""

    id: str
    takes: Sequence[Take] = ()
    slots: Sequence[Slot] = ()
    holds: Sequence[Hold] = ()


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What became of an entry.

    Attributes:
        outcome: `in`; or nothing was taken: `refused`, or `unknown`, where counters of money have to be told first what was
            spent before.
        kind: what it was refused by; `index` which of them, and `wait_ms` when it would be let in by that one, 0 if unknown.
        left: what is left in each bucket.
        busy: places that are taken of each name.
        spent: money spent by each name of a hold; -1 where that is unknown.
        held: money set aside by each.
    """

    outcome: Literal["in", "refused", "unknown"]
    kind: Kind = ""
    index: int = 0
    wait_ms: float = 0
    left: Sequence[float] = ()
    busy: Sequence[int] = ()
    spent: Sequence[int] = ()
    held: Sequence[int] = ()


class Given(msgspec.Struct, frozen=True, array_like=True):
    """A bucket that gets `amount` more taken out, or put back where it is negative."""

    name: str
    limit: int
    amount: float


class Paid(msgspec.Struct, frozen=True, array_like=True):
    """What was set aside under this name, and what it came to."""

    name: str
    held: int
    cost: int


class Exit(msgspec.Struct, frozen=True, array_like=True):
    """The end of a turn's stay."""

    id: str
    given: Sequence[Given] = ()
    slots: Sequence[str] = ()
    paid: Sequence[Paid] = ()


class Stay(msgspec.Struct, frozen=True, array_like=True):
    """What a turn holds that still runs."""

    id: str
    slots: Sequence[str] = ()
    held: Sequence[tuple[str, int]] = ()


class Counters(Protocol):
    """All counters.

    Attributes:
        shared: whether other processes count by them, so that who holds something has to give word.
    """

    shared: bool

    async def enter(self, entry: Entry) -> Verdict:
        """Take everything at once, or nothing.

        Raises:
            StoreUnavailable: it cannot be found out; what was taken, if anything, lapses.
        """
        ...

    def leave(self, exit_: Exit) -> None:
        """Give back, and count what it came to; soon, and never waited for."""
        ...

    async def renew(self, stays: Sequence[Stay]) -> None:
        """Give word that these turns still run. Raises `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Send what is to be sent, and close connections."""
        ...
