"""Server-sent events, read from bytes however they were cut.

Knows the framing (WHATWG HTML, section 9.2) and nothing of what is inside an event.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event grew past the limit without ending."""


class ErrorEvent(bytes):
    """The `data` of an event that its sender calls `error`."""


class SseParser:
    """Turns received bytes into the `data` of complete events.

    Comments, `id`, `retry` and `event: ping` are dropped; lines end with LF, CRLF or CR; several `data` lines are joined.

    Args:
        limit_bytes: largest event that is held back while it is incomplete.

    Attributes:
        between: whether something came, and all of it was whole events: what comes next begins another one.
    """

    __slots__ = ("_held", "_held_bytes", "_limit", "_skip_lf", "_start", "_tail", "between")

    def __init__(self, limit_bytes: int = 16 * 1024 * 1024) -> None:
        self._tail = b""
        # What came behind the tail and ends no line: put together once, or a long event in small pieces costs its square.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._limit = limit_bytes
        self._skip_lf = False
        self._start = True
        self.between = False

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the events that `data` completes.

        Raises:
            EventTooLarge: an unfinished event is larger than the limit.
        """
        # The common case: whole events of one line each, behind nothing or behind others.
        if (self.between or (self._start and not self._tail)) and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            events = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(events) and b"\r" not in data:
                self._start = False
                self.between = True
                return events
        events = self._pieced(data)
        self.between = not (self._tail or self._held or self._skip_lf or self._start)
        return events

    def _pieced(self, data: bytes) -> list[bytes]:
        """The same, for whatever comes."""
        if self._start:
            data = self._tail + data
            self._tail = b""
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._tail = data
                return []
            self._start = False
            data = data.removeprefix(_BOM)
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        if b"\r" in data:
            # A CR at the very end is a line end already; if an LF follows in the next read, it belongs to it.
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            self._held.append(data)
            self._held_bytes += len(data)
            self._check(len(self._tail) + self._held_bytes)
            return []
        if self._held:
            self._tail = b"".join((self._tail, *self._held))
            self._held, self._held_bytes = [], 0
        blocks = (self._tail + data).split(b"\n\n") if self._tail else data.split(b"\n\n")
        self._tail = blocks.pop()
        self._check(len(self._tail))
        events = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
            elif (payload := _payload(block)) is not None:
                events.append(payload)
        return events

    def close(self) -> list[bytes]:
        """The last event, where the stream ended without the blank line behind it."""
        block = b"".join((self._tail, *self._held))
        self._tail, self._held = b"", []
        payload = _payload(block)
        return [] if payload is None else [payload]

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")


def _payload(block: bytes) -> bytes | None:
    lines: list[bytes] = []
    failed = False
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
        elif name == b"event":
            if value.strip() == b"ping":
                return None
            failed = value.strip() == b"error"
    if not lines:
        return None
    return ErrorEvent(b"\n".join(lines)) if failed else b"\n".join(lines)
