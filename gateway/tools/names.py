"""Foreign names in the letters that models may call: reversible, so that no two names ever become one.

Pure. Knows the pattern `[a-zA-Z0-9_-]{1,64}` and nothing of who gave the names.
"""

from __future__ import annotations

import hashlib
import re

from gateway.tools.spec import TOOL_NAME_PATTERN

MAX_CHARS = 64

_ESCAPE = re.compile(r"_x([0-9a-f]*)_")
# A character that has to be written otherwise, or an underscore that would be read as the beginning of an escape.
_ESCAPED = re.compile(r"[^a-zA-Z0-9_-]|_(?=x[0-9a-f]*_)")
_HASH_CHARS = 12
_HASHED = re.compile(rf".{{{MAX_CHARS - _HASH_CHARS - 2}}}_h[0-9a-f]{{{_HASH_CHARS}}}")


def callable_name(name: str) -> str:
    """The name as models call it: itself where it may stay, else with `_xHEX_` for each character that may not.

    What is longer than 64 characters then is cut, and ends in `_h` and the beginning of its SHA-256: two different names
    stay different.
    """
    # Half of a surrogate pair has a number too.
    escaped = _ESCAPED.sub(lambda found: f"_x{ord(found[0]):x}_", name) or "_x_"
    if len(escaped) <= MAX_CHARS and not _HASHED.fullmatch(escaped):
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{escaped[: MAX_CHARS - _HASH_CHARS - 2]}_h{digest}"


def original_name(name: str) -> str | None:
    """What `callable_name` was given; None where that was cut, or is not one of its names."""
    if not TOOL_NAME_PATTERN.fullmatch(name) or _HASHED.fullmatch(name):
        return None
    try:
        found = _ESCAPE.sub(lambda each: chr(int(each[1], 16)) if each[1] else "", name)
    except (ValueError, OverflowError):
        return None
    return found if callable_name(found) == name else None
