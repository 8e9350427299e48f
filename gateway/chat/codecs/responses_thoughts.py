"""Reasoning on its way through clients that keep their own conversation.

Pure. `encrypted_content` is a note to ourselves: opaque to clients, readable by every replica. It holds nothing that the same
client is not shown anyway, so it is packed, not encrypted. What another service has encrypted says nothing here.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final

_MARK: Final = "hermes1."
# What a note may unpack to; a larger one is not ours.
_MOST_BYTES: Final = 4 * 1024 * 1024


def sealed(thought: str) -> str:
    """A thought as `encrypted_content`."""
    return _MARK + base64.urlsafe_b64encode(zlib.compress(thought.encode("utf-8", "surrogatepass"), 1)).decode()


def opened(content: Any) -> str | None:
    """The thought of a note; None where it is none of ours."""
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    try:
        packed = base64.urlsafe_b64decode(content[len(_MARK) :])
        inflate = zlib.decompressobj()
        thought = inflate.decompress(packed, _MOST_BYTES)
        return thought.decode("utf-8", "surrogatepass") if inflate.eof else None
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError):
        return None


def thought_of(item: Mapping[str, Any]) -> str:
    """What a reasoning item says, in whichever of its places; nothing where only its author can read it."""
    note = opened(item.get("encrypted_content"))
    if note is not None:
        return note
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list):
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            if said := "\n\n".join(text for text in texts if isinstance(text, str) and text):
                return said
    return ""
