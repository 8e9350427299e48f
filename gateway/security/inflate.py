"""Reading a compressed body piece by piece, so that a small one can't become a large one unseen.

Knows gzip and deflate, in both its spellings. Does not know where the body comes from.
"""

from __future__ import annotations

import zlib

from gateway.security.outbound_errors import OutboundFailed, OutboundRefused

# What is asked for; servers that know nothing better send the body as it is.
ACCEPTED = "gzip, deflate"
_PLAIN = frozenset({"", "identity"})
_KNOWN = frozenset({*_PLAIN, "gzip", "x-gzip", "deflate"})


class Inflate:
    """One body's decompression.

    Raises:
        OutboundRefused: the body is encoded in a way that was not asked for.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in _KNOWN:
            what = f"the answer is encoded as {self._encoding[:40]!r}, which was not asked for"
            raise OutboundRefused(what, answered=True)
        self._engine = zlib.decompressobj(wbits=31 if "gzip" in self._encoding else 15)
        self._started = False

    def feed(self, block: bytes, most: int) -> bytes:
        """What `block` adds, at most `most` bytes: who gets that many has to stop reading.

        Raises:
            OutboundFailed: the compression is broken.
        """
        if self._encoding in _PLAIN:
            return block[:most]
        if not self._started and block:
            self._started = True
            # Some servers call raw deflate "deflate", against the standard: the zlib header tells.
            if self._encoding == "deflate" and block[0] & 0x0F != 8:
                self._engine = zlib.decompressobj(wbits=-15)
        try:
            return self._engine.decompress(block, most)
        except zlib.error as error:
            raise OutboundFailed("the answer's compression is broken") from error

    def end(self) -> None:
        """Say that the body is over.

        Raises:
            OutboundFailed: the compressed data is not.
        """
        if self._encoding not in _PLAIN and self._started and not self._engine.eof:
            raise OutboundFailed("the answer broke off")
