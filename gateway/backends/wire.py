"""What the OpenAI protocol says on the wire about failure, translated into the gateway's errors.

Pure. Knows status codes, error bodies and `retry-after`; does not know sockets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from gateway.backends.secrets import Secrets
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamRefused,
    UpstreamUnavailable,
)

# Servers word "the prompt does not fit" in their own ways; the code is trusted first.
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "tokens_limit_reached"})
_TOO_LONG_WORDS: Final = (
    "context length",
    "context window",
    "context size",
    "maximum context",
    "prompt is too long",
    "prompt is too large",
    "prompt exceeds",
    "prompt token count",
    "maximum prompt length",
    "input is too long",
    "input is longer than",
    "input tokens exceed",
    "input token length",
    "input token count",
    "maximum input length",
    "range of input length",
    "maximum number of tokens allowed",
    "too many tokens",
    "exceed the configured limit",
    "reduce the length of the messages",
    "context limit",
    "context overflow",
    "maximum model length",
    "model token limit",
    "max message tokens",
    "`inputs` must have less than",
    "`inputs` tokens",
    "超长",
    "上下文长度",
)
# However it is said: what was sent, that it is too much, and that tokens are what is counted. What was asked for in answer
# has a limit of its own, which no other prompt mends.
_TOO_MUCH: Final = re.compile(
    r"\b(?:prompt|inputs?|context|messages|conversation|request)\b(?:\W+\w+){0,9}?\W+"
    r"(?:too (?:long|large|many)|(?:long|larg)er than|exceed(?:s|ed|ing)?)\b"
)
_COUNTED: Final = ("token", "context")
_ANSWERED: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "completion token", "output token")
_READ_CHARACTERS: Final = 4000
# What an error without a status means, by its own type or code.
_STATUS_OF: Final = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "invalid_argument": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "resource_exhausted": 429,
    "overloaded_error": 503,
    "unavailable": 503,
}
# A limit that time alone does not lift.
_SPENT: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_SAYS_NOTHING: Final = frozenset({"{", "{}", "[]", '{"error":null}', '{"error":{}}', "null"})
_TEXT_CHARACTERS: Final = 500
_HIDDEN_MARKUP: Final = re.compile(
    r"<(script|style|head)\b.*?(?:</\1|\Z)[^>]*>?|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE
)
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
_TAG: Final = re.compile(r"<[^>]*>?")
# Where a program's own trace begins: of no use to a client.
_TRACE: Final = re.compile(r"\s*(?:Traceback \(most recent call last\)|\n\s+at [\w.$<>]+ ?\().*", re.DOTALL)
_SECONDS: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]*)?")
# Nobody means a longer wait.
_LONGEST_WAIT_S: Final = 366 * 86400.0


def error_from_status(
    status: int, headers: Mapping[str, str], body: bytes, *, model: str, secrets: Secrets
) -> GatewayError:
    """The error for an answer with a status of 300 or more. The upstream's own words are kept, secrets are not."""
    if status < 400:
        # Followed, it would turn a POST into a GET and carry the key elsewhere.
        return UpstreamBroken(f"The upstream of `{model}` answered with a redirect: its `base_url` is not exact.")
    said = _error_object(body)
    words, field = _words(said)
    words = _TRACE.sub("", words or "")
    if not words:
        text = text_of(body, secrets)
        words = f"The upstream of `{model}` answered {status}" + (f": {text}" if text and text != str(status) else ".")
    return _judged(status, words, said, field, secrets, model=model, retry_after_s=retry_after(headers))


def error_from_frame(frame: bytes, *, secrets: Secrets) -> GatewayError:
    """The error for an error frame inside a stream, or for a body whose status says success: its JSON.

    Some servers write the HTTP status they can no longer send as the frame's `code`.
    """
    said = _error_object(frame)
    words, field = _words(said)
    kind, code = (_string(said.get(name)) for name in ("type", "code"))
    status = int(code) if code is not None and re.fullmatch("[45][0-9][0-9]", code) else None
    if status is None:
        status = next((_STATUS_OF[name.lower()] for name in (code, kind) if name and name.lower() in _STATUS_OF), None)
    words = _TRACE.sub("", words or "")
    if not words:
        text = text_of(frame, secrets)
        words = "The upstream ended its answer with an error" + (f": {text}" if text else ".")
    return _judged(status, words, said, field, secrets)


def _judged(
    status: int | None,
    words: str,
    said: Mapping[str, Any],
    field: str | None,
    secrets: Secrets,
    *,
    model: str = "",
    retry_after_s: float | None = None,
) -> GatewayError:
    """The error for what an upstream said; without a status it is a broken answer."""
    kind, code, param = (
        None if value is None else secrets.scrub(value)
        for value in (_string(said.get(name)) for name in ("type", "code", "param"))
    )
    code, param = None if status is not None and code == str(status) else code, param or field
    if status in (401, 402, 403, 407):
        # The gateway's own credentials are at fault, not the client's.
        whose = f"The upstream refused the gateway's credentials{f' for `{model}`' if model else ''}"
        return UpstreamDenied(f"{whose}: {secrets.scrub(words, denied=True)}", status=status)
    message = secrets.scrub(words)
    if status in (None, 400, 413, 422, 500) and is_too_long(kind, code, message):
        return ContextTooLong(message)
    if status is None:
        return UpstreamBroken(message, kind=kind, code=code, param=param)
    if status in (408, 425, 429) or status >= 500:
        return UpstreamUnavailable(
            message,
            status=status,
            kind=kind,
            code=code,
            param=param,
            retry_after_s=retry_after_s,
            retryable=None if _SPENT.isdisjoint({kind, code}) else False,
        )
    # What other servers call unprocessable is a bad request to an OpenAI client.
    return UpstreamRefused(message, status=400 if status == 422 else status, kind=kind, code=code, param=param)


def is_too_long(kind: str | None, code: str | None, message: str) -> bool:
    """Whether an upstream's refusal means that the prompt does not fit."""
    if code in _TOO_LONG_CODES or kind in _TOO_LONG_CODES:
        return True
    lower = message[:_READ_CHARACTERS].lower()
    if any(words in lower for words in _TOO_LONG_WORDS):
        return True
    counted = any(word in lower for word in _COUNTED) and not any(word in lower for word in _ANSWERED)
    return counted and _TOO_MUCH.search(lower) is not None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: `retry-after-ms`, else `retry-after` as seconds or HTTP date. Malformed or negative: None."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        if _SECONDS.fullmatch(value.strip()):
            seconds = float(value) * scale
        elif scale != 1.0:
            continue
        else:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue
        if 0 <= seconds <= _LONGEST_WAIT_S:
            return seconds
    return None


def text_of(body: bytes, secrets: Secrets) -> str:
    """What a body says that is no JSON error: its beginning, of a page its title or its text; empty for nothing."""
    text = _TRACE.sub("", body[: 64 * 1024].decode("utf-8", "replace").strip())
    if text.startswith("<"):
        title = _TITLE.search(text)
        text = (title.group(1) if title else "") or _TAG.sub(" ", _HIDDEN_MARKUP.sub(" ", text))
    text = " ".join(secrets.scrub(text).split())
    if len(text) > _TEXT_CHARACTERS:
        text = text[:_TEXT_CHARACTERS].rstrip() + " …"
    return "" if text in _SAYS_NOTHING else text


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if isinstance(value, list) and value:  # Google's servers answer a list of one
        value = value[0]
    if not isinstance(value, dict):
        return {}
    errors = value.get("errors")
    error = value.get("error", errors[0] if isinstance(errors, list) and errors else value)
    if isinstance(error, dict):
        return error if error is value or _words(error)[0] else {**value, **error}
    if isinstance(error, str) and error:
        words = _words(value)[0] or ""
        return {**value, "message": words if error in words else f"{error}: {words}" if words else error}
    return value


def _words(said: Mapping[str, Any], depth: int = 3) -> tuple[str | None, str | None]:
    """What an error object says, and the field it names where only its words do: `message`, else FastAPI's `detail`."""
    message = next((said[name] for name in ("message", "Message", "error_description", "msg") if said.get(name)), None)
    if isinstance(message, dict) and depth:  # Mistral's servers put the faults there
        return _words(message, depth - 1)
    if words := _string(message):
        meta = said.get("metadata")
        behind = meta.get("raw") if isinstance(meta, dict) else None  # what OpenRouter was told itself
        return (f"{words}: {behind}" if isinstance(behind, str) and behind not in words else words), None
    detail = said.get("detail")
    if isinstance(detail, str):
        return detail, None
    if isinstance(detail, dict) and depth:
        return _words(detail, depth - 1)
    faults = [fault for fault in detail if isinstance(fault, dict)] if isinstance(detail, list) else []
    if not faults:
        return None, None
    places = [".".join(str(part) for part in _listed(fault.get("loc")) if part != "body") for fault in faults]
    told = [
        f"{place}: {fault.get('msg')}" if place else str(fault.get("msg"))
        for place, fault in zip(places, faults, strict=True)
    ]
    return "; ".join(told), places[0] or None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _string(value: Any) -> str | None:
    return None if value is None or isinstance(value, (dict, list)) else str(value)
