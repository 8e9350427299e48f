"""A stream's text, passed on by whoever receives it: as long as nothing but more text comes, no task is woken for it.

A token on its way through a gateway is a few bytes between two sockets. Waking the task that reads the stream for each of them costs
ten times what the bytes do; so the task sleeps on, and the connection hands what arrives to a tap: straight to the client, or, with
anything the tap does not know by heart, to the task, as if there were no tap. What nobody may see unchecked never has one: whoever
changes batches makes new ones, and those are not tapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from gateway.chat.chunk import Chunk, Form, Run, TextName
from gateway.chat.scanner import Events, RunScanner, decode_text

# Before anything is known: no JSON holds this byte.
_UNKNOWN = Events(Form(b"\0", b"\0"))


class Straight(Protocol):
    """The way to a client for text that passes everybody else. What cannot be sent without waiting is not sent."""

    @property
    def passed(self) -> float:
        """When something was sent this way last, by the loop's time."""
        ...

    def texts(self, form: Form) -> Callable[[bytes], bool] | None:
        """What sends one chunk of this form, of which it gets the text as it stands there, with its quotation marks; whether it did.

        None where such chunks have to be sent as runs. Holds until something else was sent.
        """
        ...

    def run(self, run: Run) -> bool:
        """Send a run; whether that was done."""
        ...


class Tap:
    """One stream's. Also how far the stream has been read, whoever reads it.

    Args:
        runs: knows the chunks that only bring more text.
        now: the loop's time.
        idle_s: seconds between two arrivals.
        most_s: seconds for all of it.
        most_bytes: how large the stream may be.

    Attributes:
        is_open: whether anybody takes what comes this way.
        left_bytes: how much more it may be.
    """

    __slots__ = (
        "_blank",
        "_end",
        "_first",
        "_heard",
        "_idle_s",
        "_last",
        "_note",
        "_notes",
        "_now",
        "_quoted",
        "_runs",
        "_send",
        "_straight",
        "is_open",
        "left_bytes",
    )

    def __init__(
        self, runs: RunScanner, now: Callable[[], float], *, idle_s: float, most_s: float, most_bytes: int
    ) -> None:
        self._runs = runs
        self._now = now
        self._idle_s = idle_s
        self._straight: Straight
        self._notes: Callable[[TextName], Callable[[str], object]]
        self._note: Callable[[str], object]
        self.is_open = False
        self._heard = now()
        self._end = self._heard + most_s
        self.left_bytes = most_bytes
        # One chunk alone, as most come: what stands around its text, where in it that stands, and what sends it.
        self._first: bytes
        self._last: bytes
        self._quoted: slice
        self._blank = runs.blank
        self._send: Callable[[bytes], bool]

    @property
    def heard(self) -> float:
        """When something came last, by the loop's time."""
        return max(self._heard, self._straight.passed) if self.is_open else self._heard

    @property
    def until(self) -> float:
        """When more has to have come, by the loop's time."""
        return min(self.heard + self._idle_s, self._end)

    def hear(self) -> float:
        """What came was read: the silence begins now. See `until`."""
        heard = self._heard = self._now()
        return min(heard + self._idle_s, self._end)

    def open(self, straight: Straight, notes: Callable[[TextName], Callable[[str], object]]) -> None:
        """From now on, what arrives may be sent at once.

        Args:
            straight: sends it.
            notes: what gets the text of what was sent, by the field that said it.
        """
        self._straight = straight
        self._notes = notes
        self.is_open = True

    def ready(self) -> Tap:
        """This tap, as it is needed now that the stream waits: what was read last may have changed how text looks."""
        known, alone = _UNKNOWN, self._runs.alone
        if alone is not None and (send := self._straight.texts(alone[1])) is not None:
            known, self._send = alone[0], send
        self._first, self._last, self._quoted = known.first, known.last, known.quoted
        self._note = self._notes(self._runs.name)
        return self

    def takes(self, pieces: list[bytes]) -> bool:
        """Pass on what arrived behind whole events, and empty the list; False where it has to be read: it is as it was, then."""
        try:
            [data] = pieces
            if data.startswith(self._first) and data.endswith(self._last):
                # What can be read as one text is one: strings hold neither line breaks nor quotation marks. Of a chunk that is
                # shorter than the form, whose two halves overlap in it, no string is left.
                text = decode_text(quoted := data[self._quoted])
                left = self.left_bytes - len(data)
                if left >= 0 and (text or self._blank) and self._send(quoted):
                    self._note(text)
                    self.left_bytes = left
                    del pieces[0]
                    return True
        except (ValueError, msgspec.DecodeError):
            pass  # several, or something else
        return bool(pieces) and self._takes_run(pieces)

    def _takes_run(self, pieces: list[bytes]) -> bool:
        data = b"".join(pieces)
        run = self._runs.read(data)
        if run is None and b"\r" in data:
            # A line break of two characters is one, and neither stands in a text.
            run = self._runs.read(data.replace(b"\r\n", b"\n"))
        if run is None:
            return False
        left = self.left_bytes - len(data)
        if left < 0 or not self._straight.run(run):
            return False
        self._note(run.text)
        self.left_bytes = left
        pieces.clear()
        return True


class Tapped(list[Chunk]):
    """Chunks that arrived together, of a stream that has a tap: while more than its end is to come, this."""

    __slots__ = ("tap",)
    tap: Tap | None
