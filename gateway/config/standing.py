"""Whether this replica may decide: its lease by its own clock, and why not.

Knows time and two rules. Does not know the store: `replica.py` tells it what the store said.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from gateway.clock import Clock
from gateway.errors import ConfigStale

# The share of a lease that its holder uses. The rest is for clocks that do not run alike and for what is under way
# between the look at the clock and the decision.
_USED: Final = 0.9


class Standing:
    """One replica's right to decide.

    A lease is counted from before it was asked for, so that it ends here before it ends at the store.

    Attributes:
        joined: whether the replica ever served what was active with a lease. Before, it never decides.
        on_loss: `refuse`: without a lease nothing is decided. `serve`: what was proved last goes on deciding, and says so.
        reason: why there is no lease; None while there is one.
    """

    def __init__(self, clock: Clock, *, alone: bool) -> None:
        """Nothing is granted yet; with `alone` there is nobody to agree with, and everything always is."""
        self._clock = clock
        self._until = math.inf if alone else -math.inf
        self.joined = alone
        self.on_loss: Literal["serve", "refuse"] = "serve"
        self._reason = "nothing was heard of the other replicas yet"

    @property
    def stale(self) -> bool:
        """Whether this replica may be behind the others."""
        return self._clock.monotonic() >= self._until

    @property
    def reason(self) -> str | None:
        """Why this replica is stale; None where it is not."""
        return self._reason if self.stale else None

    @property
    def left_s(self) -> float:
        """Seconds until the lease lapses; negative once it has."""
        return self._until - self._clock.monotonic()

    def granted(self, asked_at: float, lease_s: float) -> None:
        """A lease was granted that was asked for at `asked_at` of the monotonic clock."""
        self._until = max(self._until, asked_at + lease_s * _USED)
        self.joined = True
        self._reason = "the lease ran out"

    def lost(self, reason: str) -> None:
        """Give the lease up, from this moment on."""
        self._until = -math.inf
        self._reason = reason

    def troubled(self, reason: str) -> None:
        """What will be the reason, should the lease run out."""
        self._reason = reason

    def refuse(self) -> None:
        """Raise `ConfigStale` where this replica must not decide."""
        if self._clock.monotonic() < self._until or (self.joined and self.on_loss == "serve"):
            return
        raise ConfigStale(f"This replica may not decide now: {self._reason}.")
