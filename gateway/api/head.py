"""Heads that a connection has brought before.

A client says the same head with each of its requests but for the length of the body: told by its bytes, it need not be read again.
Pure. What a head was read as is llhttp's word; here is only told whether another one would be read alike.
"""

from __future__ import annotations

from typing import Any, Final

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
_LINE: Final = b"\r\n" + _LENGTH + b":"
# With these the body, or who reads it, wants more than its length.
_UNLIKE: Final = frozenset({b"transfer-encoding", b"content-encoding", b"expect"})
# More than any body has.
_MOST_DIGITS: Final = 15
# It is held as long as its connection.
_MOST_BYTES: Final = 8192


class Said:
    """What is kept with a head by whoever reads it, so that it need not be read again.

    Attributes:
        caller: `auth.py`'s.
    """

    caller: Any = None


class Head:
    """A head that was read, of a request with a length, and without an encoding.

    Args:
        before: its bytes up to the digits of the length.
        behind: those behind them, the blank line included.
        headers: as they were read, and `length_at` is where the length is among them.
        scope: ASGI's, but for what each request has of its own.

    Attributes:
        method: its own, and `version` of HTTP.
        said: what is kept with it.
    """

    def __init__(
        self, before: bytes, behind: bytes, headers: list[tuple[bytes, bytes]], length_at: int, scope: dict[str, Any]
    ) -> None:
        self.method: str = scope["method"]
        self.version: str = scope["http_version"]
        self.said = Said()
        self._before = before
        self._size = len(before)
        self._ends_by = len(before) + _MOST_DIGITS + len(behind)
        self._behind = behind
        self._behind_size = len(behind)
        self._headers = headers
        self._length_at = length_at
        self._scope = scope

    def read(self, data: bytes) -> tuple[dict[str, Any], bytes, int] | None:
        """The scope of the one request that `data` is or begins, the body so far, and how many bytes of it are to come.

        None where it is another one, has not all of its head, or more follows it.
        """
        if not data.startswith(self._before):
            return None
        # Where something else stands behind it, the length has other bytes than a number.
        ends = data.find(self._behind, self._size, self._ends_by)
        if ends < 0:
            return None
        length, body = data[self._size : ends], data[ends + self._behind_size :]
        if length == b"%d" % len(body):
            left = 0
        elif not length.isdigit() or len(length) > _MOST_DIGITS or (left := int(length) - len(body)) < 0:
            return None
        scope, headers = self._scope.copy(), self._headers.copy()
        headers[self._length_at] = _LENGTH, length
        scope["headers"] = headers
        return scope, body, left


def head_of(data: bytes, headers: list[tuple[bytes, bytes]], scope: dict[str, Any]) -> Head | None:
    """The head of the one request that `data` is or begins, so that it is known again; None where it is not one of those.

    `headers` and `scope` are what the last head in `data` was read as. Where that is not the first, the first has another length, or
    more behind it than that.
    """
    names = [name for name, _ in headers]
    ends = data.find(_END) + len(_END)
    if names.count(_LENGTH) != 1 or not _UNLIKE.isdisjoint(names) or ends > _MOST_BYTES:
        return None
    at = names.index(_LENGTH)
    length = headers[at][1]
    if not length.isdigit() or ends + int(length) < len(data):
        return None
    line = data[:ends].lower().find(_LINE)
    # White space around a value is none of it.
    begins = data.find(length, line + len(_LINE))
    behind = begins + len(length)
    if line < 0 or data[line + len(_LINE) : begins].strip(b" \t") or not data.startswith(b"\r\n", behind):
        return None
    return Head(data[:begins], data[behind:ends], headers, at, scope)
