"""Chunks that differ from one before them in nothing but their text, recognised by their bytes.

Pure. Most of a stream says everything around each token anew, byte for byte. What was found out about one such chunk holds for
all of them, so that only the text has to be read.
"""

from __future__ import annotations

import re

import msgspec

_TEXT = re.compile(rb'"content":\s*("(?:[^"\\]|\\.)*+")')

_decode_text = msgspec.json.Decoder(str).decode


class TextScanner:
    """Knows one form of chunk and what stands for it on the other side.

    A JSON string holds no unescaped quotation mark, so `"content":` is a name wherever it stands; it has to stand once.
    """

    __slots__ = ("_after", "_before", "_made_after", "_made_before")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._made_before = b""
        self._made_after = b""

    def learn(self, came: bytes, made: bytes) -> None:
        """Take a chunk that says text and nothing else, and what was made of it, as the form to recognise."""
        self._before = b""
        if came.count(b'"content":') != 1 or made.count(b'"content":') != 1:
            return
        before, after = _TEXT.search(came), _TEXT.search(made)
        if before is not None and after is not None:
            self._before, self._after = came[: before.start(1)], came[before.end(1) :]
            self._made_before, self._made_after = made[: after.start(1)], made[after.end(1) :]

    def scan(self, payload: bytes) -> tuple[str, bytes] | None:
        """The text of a chunk of the known form and what is made of the chunk; None where it has another form."""
        if not self._before or not payload.startswith(self._before) or not payload.endswith(self._after):
            return None
        spelled = payload[len(self._before) : len(payload) - len(self._after)]
        try:
            text = _decode_text(spelled)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # not exactly one string
        return (text, self._made_before + spelled + self._made_after) if text else None
