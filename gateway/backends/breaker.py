"""Whether a backend is worth asking: closed, open, half-open with a single probe.

Pure: it is told what happened and when. What counts as the backend's fault is `retry.py`'s to say.
"""

from __future__ import annotations

from typing import Final, Literal

BreakerState = Literal["closed", "open", "half_open"]

# So many faults one after the other are no accident any more, unless most calls of the last seconds went well: with
# many calls under way, one restart of an upstream is many faults at once.
_FAULTS: Final = 5
_SPAN_S: Final = 5.0
# Short enough that a recovered backend is soon found; a backend that stays away is asked ever less.
_OPEN_S: Final = 2.0
_LONGEST_OPEN_S: Final = 60.0


class Breaker:
    """One backend's breaker.

    After five faults in a row it opens, if at least half of what ended in the last 5 to 10 seconds were faults: nobody
    asks for 2 seconds. Then one call is let through, the probe. If it is answered, the breaker closes; if it fails, it
    opens again for twice as long, a minute at most.

    Every call gets a ticket when it starts and hands it in when it ends: what began before the breaker opened says
    nothing about the time after.

    Attributes:
        closed: whether calls pass without a second thought: a ticket is `era`, then, and needs no `enter`.
        era: counts how often it has opened and closed.
    """

    __slots__ = (
        "_answers",
        "_before",
        "_faults",
        "_in_a_row",
        "_open_s",
        "_opens_until",
        "_probing",
        "_span_ends",
        "closed",
        "era",
    )

    def __init__(self) -> None:
        self.closed = True
        self.era = 0
        self._in_a_row = 0
        # Answers and faults of this span of time, and of the one before it.
        self._answers = 0
        self._faults = 0
        self._before = (0, 0)
        self._span_ends = _SPAN_S
        self._opens_until: float | None = None
        self._open_s = _OPEN_S
        self._probing = False

    def state(self, now: float) -> BreakerState:
        """Where it stands."""
        if self._opens_until is None:
            return "closed"
        return "open" if now < self._opens_until else "half_open"

    def admits(self, now: float) -> bool:
        """Whether a call may start now."""
        return self._opens_until is None or (now >= self._opens_until and not self._probing)

    def opens_in(self, now: float) -> float:
        """Seconds until a call may start; 0 where one may, or where only the probe's end is waited for."""
        return 0.0 if self._opens_until is None else max(0.0, self._opens_until - now)

    def enter(self) -> int:
        """A call starts, which was admitted; its ticket."""
        if self._opens_until is not None:
            self._probing = True
        return self.era

    def began(self, ticket: int) -> None:
        """The backend began to answer: a probe has proved enough, whatever becomes of the rest."""
        if ticket == self.era and self._probing:
            self._close()

    def answered(self, ticket: int, now: float) -> None:
        """The backend did its part."""
        if ticket == self.era:
            if self._probing:
                self._close()
            self._in_a_row = 0
            if now >= self._span_ends:
                self._begin_span(now)
            self._answers += 1

    def failed(self, ticket: int, now: float) -> None:
        """The backend was at fault."""
        if ticket != self.era:
            return
        if self._probing:
            self._open(now, min(2 * self._open_s, _LONGEST_OPEN_S))
            return
        self._in_a_row += 1
        if now >= self._span_ends:
            self._begin_span(now)
        self._faults += 1
        answers, faults = self._before
        if self._in_a_row >= _FAULTS and faults + self._faults >= answers + self._answers:
            self._open(now, _OPEN_S)

    def left(self, ticket: int) -> None:
        """The call ended without saying anything of the backend; another one may be the probe."""
        if ticket == self.era:
            self._probing = False

    def _begin_span(self, now: float) -> None:
        self._before = (self._answers, self._faults) if now < self._span_ends + _SPAN_S else (0, 0)
        self._answers = self._faults = 0
        self._span_ends = now + _SPAN_S

    def _open(self, now: float, seconds: float) -> None:
        self.era += 1
        self._probing = False
        self._open_s = seconds
        self._opens_until = now + seconds
        self.closed = False

    def _close(self) -> None:
        self.era += 1
        self._probing = False
        self._in_a_row = 0
        self._answers = self._faults = 0
        self._before = (0, 0)
        self._opens_until = None
        self.closed = True
