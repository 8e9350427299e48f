"""What came back from the outside, whole."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping

import msgspec

_CHARSET = re.compile(rb"""<meta[^>]+charset=["']?([A-Za-z0-9_:.-]+)""", re.IGNORECASE)

# What Python can decode and no page is written in: punycode takes minutes for a megabyte, the others make half characters.
_NO_CHARSETS = frozenset({"punycode", "idna", "unicode-escape", "raw-unicode-escape", "utf-7", "undefined"})


class Fetched(msgspec.Struct, frozen=True):
    """What came back.

    Attributes:
        url: where it came from in the end.
        status: HTTP status.
        content_type: without parameters, lower case; empty where the far side named none.
        charset: as the far side named it, or None.
        content: the decompressed body.
        headers: the answer's headers, names in lower case.
    """

    url: str
    status: int
    content_type: str
    charset: str | None
    content: bytes
    headers: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """The body as text: by the charset that was named, in a header or in the page, else UTF-8; never fails."""
        found = _CHARSET.search(self.content[:2048])
        named = self.charset or (found[1].decode("ascii") if found else "utf-8")
        try:
            if codecs.lookup(named).name in _NO_CHARSETS:
                named = "utf-8"
            return self.content.decode(named, "replace")
        except (LookupError, UnicodeError):
            return self.content.decode("utf-8", "replace")
