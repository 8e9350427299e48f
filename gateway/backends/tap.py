"""A stream's text, passed on by whoever receives it: as long as nothing but more text comes, no task is woken for it.

A token on its way through a gateway is a few bytes between two sockets. Waking the task that reads the stream for each of them costs
ten times what the bytes do; so the task sleeps on, and the connection hands what arrives to a tap: straight to the client, or, with
anything the tap does not know by heart, to the task, as if there were no tap. What nobody may see unchecked never has one: whoever
changes batches makes new ones, and those are not tapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.chat.chunk import Chunk, Run
from gateway.chat.scanner import RunScanner


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
        heard: when something came last, by the loop's time.
        left_bytes: how much more it may be.
    """

    __slots__ = ("_end", "_idle_s", "_note", "_now", "_runs", "_write", "heard", "is_open", "left_bytes")

    def __init__(
        self, runs: RunScanner, now: Callable[[], float], *, idle_s: float, most_s: float, most_bytes: int
    ) -> None:
        self._runs = runs
        self._now = now
        self._idle_s = idle_s
        self._write: Callable[[Run, float], bool]
        self._note: Callable[[str], object]
        self.is_open = False
        self.heard = now()
        self._end = self.heard + most_s
        self.left_bytes = most_bytes

    @property
    def until(self) -> float:
        """When more has to have come, by the loop's time."""
        return min(self.heard + self._idle_s, self._end)

    def open(self, write: Callable[[Run, float], bool], note: Callable[[str], object]) -> None:
        """From now on, runs that arrive may be written at once.

        Args:
            write: sends a run, if that needs no waiting; whether it did. Is told the loop's time.
            note: gets the text of each run that was sent.
        """
        self._write = write
        self._note = note
        self.is_open = True

    def takes(self, pieces: list[bytes]) -> bool:
        """Pass on what arrived behind whole events, and empty the list; False where it has to be read: it is as it was, then."""
        data = b"".join(pieces)  # of one piece no copy
        run = self._runs.read(data)
        if run is None and b"\r" in data:
            # A line break of two characters is one, and neither stands in a text.
            run = self._runs.read(data.replace(b"\r\n", b"\n"))
        if run is None:
            return False
        left = self.left_bytes - len(data)
        now = self._now()
        if left < 0 or not self._write(run, now):
            return False
        self._note(run.text)
        self.left_bytes = left
        self.heard = now
        pieces.clear()
        return True


class Tapped(list[Chunk]):
    """Chunks that arrived together, of a stream that has a tap."""

    __slots__ = ("tap",)

    def __init__(self, chunks: Iterable[Chunk], tap: Tap) -> None:
        super().__init__(chunks)
        self.tap = tap
