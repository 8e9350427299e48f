"""What the OpenAI protocol says on the wire about failure, translated into the gateway's errors.

Pure. Knows status codes, error bodies and `retry-after`; does not know sockets.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamRefused,
    UpstreamUnavailable,
)

# Servers word "the prompt does not fit" in their own ways; the code is trusted first.
_TOO_LONG_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS = (
    "context length",
    "context window",
    "context size",
    "maximum context",
    "prompt is too long",
    "prompt is too large",
    "input is too long",
    "input is longer than",
    "input tokens exceed",
    "too many tokens",
    "prompt token count",
    "exceed the configured limit",
)


_SAYS_NOTHING = frozenset({"{", "{}", "[]", '{"error":null}', '{"error":{}}', "null"})


class Secrets:
    """Values that must not leave in a message, in any spelling a library might give them."""

    def __init__(self, values: Iterable[str]) -> None:
        # Shorter ones are words (`none`) that would only make messages unreadable.
        found = {value for value in values if len(value) > 4}
        spelled = {quote(value, safe="") for value in found}
        spelled |= {b64encode(value.encode()).decode().rstrip("=") for value in found}
        self._values = sorted(found | spelled, key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """The text with every secret replaced."""
        for value in self._values:
            text = text.replace(value, "***")
        return text


def error_from_status(
    status: int, headers: Mapping[str, str], body: bytes, *, model: str, secrets: Secrets
) -> GatewayError:
    """The error for an answer with a status of 300 or more. The upstream's own words are kept, secrets are not."""
    if status < 400:
        # Followed, it would turn a POST into a GET and carry the key elsewhere.
        return UpstreamBroken(f"The upstream of `{model}` answered with a redirect: its `base_url` is not exact.")
    said = _error_object(body)
    text = _text_of(body)
    own = f"The upstream of `{model}` answered {status}" + (f": {text}" if text else ".")
    words, field = _words(said)
    message = secrets.scrub(words or own)
    kind, code, param = (_string(said.get(name)) for name in ("type", "code", "param"))
    code, param = None if code == str(status) else code, param or field
    retry_after_s = retry_after(headers)
    if status in (401, 403):
        # The gateway's own credentials are at fault, not the client's.
        return UpstreamDenied(f"The upstream refused the gateway's credentials for `{model}`.", status=status)
    if status in (400, 413, 422) and is_too_long(kind, code, message):
        return ContextTooLong(message)
    if status == 429 or status >= 500:
        return UpstreamUnavailable(
            message, status=status, kind=kind, code=code, param=param, retry_after_s=retry_after_s
        )
    # What other servers call unprocessable is a bad request to an OpenAI client.
    status = 400 if status == 422 else status
    return UpstreamRefused(message, status=status, kind=kind, code=code, param=param)


def error_from_frame(error: Any, *, secrets: Secrets) -> GatewayError:
    """The error for an error frame inside a stream, or in a body whose status says success.

    Some servers write the HTTP status they can no longer send as the frame's `code`.
    """
    if isinstance(error, str):
        return UpstreamBroken(secrets.scrub(error))
    kind, code, param = _string(error.type), _string(error.code), _string(error.param)
    message = secrets.scrub(_string(error.message) or "The upstream ended the stream with an error.")
    if is_too_long(kind, code, message):
        return ContextTooLong(message)
    if isinstance(error.code, int) and 400 <= error.code < 600:
        status = error.code
        if status == 429 or status >= 500:
            return UpstreamUnavailable(message, status=status, kind=kind, param=param)
        if status not in (401, 403):
            return UpstreamRefused(message, status=400 if status == 422 else status, kind=kind, param=param)
    return UpstreamBroken(message, kind=kind, code=code, param=param)


def is_too_long(kind: str | None, code: str | None, message: str) -> bool:
    """Whether an upstream's 400 means that the prompt does not fit."""
    if code in _TOO_LONG_CODES or kind in _TOO_LONG_CODES:
        return True
    lower = message.lower()
    return any(words in lower for words in _TOO_LONG_WORDS)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: `retry-after-ms`, else `retry-after` as seconds or HTTP date. Malformed or negative: None."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if isinstance(value, list) and value:  # Google's servers answer a list of one
        value = value[0]
    if not isinstance(value, dict):
        return {}
    error = value.get("error", value)
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _words(said: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What an error object says, and the field it names where only its words do: `message`, else FastAPI's `detail`."""
    if words := _string(said.get("message")):
        return words, None
    detail = said.get("detail")
    if isinstance(detail, str):
        return detail, None
    faults = [fault for fault in detail if isinstance(fault, dict)] if isinstance(detail, list) else []
    if not faults:
        return None, None
    places = [".".join(str(part) for part in fault.get("loc") or () if part != "body") for fault in faults]
    told = [
        f"{place}: {fault.get('msg')}" if place else str(fault.get("msg"))
        for place, fault in zip(places, faults, strict=True)
    ]
    return "; ".join(told), places[0] or None


def _text_of(body: bytes) -> str:
    text = body[:500].decode("utf-8", "replace").strip()
    return "" if text.startswith("<") or text in _SAYS_NOTHING else text


def _string(value: Any) -> str | None:
    return None if value is None or isinstance(value, (dict, list)) else str(value)
