"""Arguments as the audit log keeps them: enough to recognise a call by, without anybody's numbers and addresses.

Pure. The hash beside them says what they really were.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from gateway.late import late

_MAIL: Final = late(r"[^\s@]+@[^\s@]+\.[^\s@]+")
# Numbers of cards, accounts, phones, people: seven digits or more, however they are grouped.
_DIGITS: Final = late(r"(?<![\w-])\+?\d(?:[ .()-]{0,2}\d){6,}(?![\w-])")
_SECRET: Final = late(r"pass|secret|token|api_?key|credential|pin$|cvv|密码", re.IGNORECASE)
_HIDDEN: Final = "***"
_MOST_CHARS: Final = 200


def masked_arguments(arguments: str, secrets: Collection[str] = ()) -> str:
    """JSON text of arguments, masked; what is no JSON is not kept at all. `secrets` are paths of what is not to be seen in it."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return '"***"'
    return msgspec.json.encode(_masked(value, secrets)).decode()


def _masked(value: Any, secrets: Collection[str], path: str = "") -> Any:
    if any(path == secret or path.endswith(f".{secret}") for secret in secrets):
        return _HIDDEN
    match value:
        case dict():
            return {key: _masked(item, secrets, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
        case list():
            return [_masked(item, secrets, path) for item in value]
        case _ if _SECRET.search(path.rpartition(".")[2]):
            return _HIDDEN
        case str():
            text = _DIGITS.sub(lambda found: f"{_HIDDEN}{found[0][-2:]}", _MAIL.sub(_HIDDEN, value))
            return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"
        case int() if not isinstance(value, bool) and abs(value) >= 10**9:
            return f"{_HIDDEN}{str(value)[-2:]}"
    return value
