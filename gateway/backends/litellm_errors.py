"""What litellm raises, translated into the gateway's errors.

Knows litellm's exceptions by name, status and the headers they carry; imports nothing of it. Its messages wrap the
provider's body in words of its own: those are taken off, so that the client reads what the provider said.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.backends.wire import Secrets, error_from_status, is_too_long
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)\s*(?::|-)\s*)+")
_SUFFIX = re.compile(
    r"\.? ?Handle with `litellm\.\w+`\.?.*$|,? ?Original Response:.*$|\n?(?:model|Received)=.*$", re.DOTALL
)
_URL = re.compile(r"\b(?:https?|wss?)://\S+")
_NETWORK = re.compile(r"connect|errno|reset by peer|disconnected|name or service|ssl", re.IGNORECASE)
_PARAMETERS = re.compile(r"does not support parameters?: \[?['\"]?(\w+)")


def translate(error: Exception, *, model: str, secrets: Secrets) -> GatewayError:
    """The gateway's error for one of litellm's; `model` is the name the client knows."""
    names = {kind.__name__ for kind in type(error).__mro__}
    original = getattr(error, "original_exception", None)
    if "MidStreamFallbackError" in names and isinstance(original, Exception):
        if "APIConnectionError" in {kind.__name__ for kind in type(original).__mro__}:
            return UpstreamBroken(f"The answer of `{model}` was cut off.")
        return translate(original, model=model, secrets=secrets)
    said = _body_of(error)
    if names & {"ContextWindowExceededError"}:
        return ContextTooLong(_words(said, secrets))
    if names & {"Timeout", "APITimeoutError", "TimeoutError", "TimeoutException"}:
        return UpstreamTimeout(f"The upstream of `{model}` did not answer in time.")
    status = _status_of(error)
    headers = _headers_of(error)
    if status is None or "APIConnectionError" in names:
        return _without_answer(error, names, model, answered=headers is not None)
    if headers is None and status >= 500 and _NETWORK.search(said):
        return _unreachable(error, model)
    if headers is None and status == 400:
        # litellm itself refused: the provider has no such parameter.
        named = _PARAMETERS.search(said)
        words = _words(said, secrets)
        if is_too_long(None, None, words):
            return ContextTooLong(words)
        return UpstreamRefused(words, status=400, param=named.group(1) if named else None)
    return error_from_status(
        status, headers or {}, _words(said, secrets, whole=True).encode(), model=model, secrets=secrets
    )


def _without_answer(error: Exception, names: set[str], model: str, *, answered: bool) -> UpstreamError:
    network = names & {"APIConnectionError", "ClientError", "OSError", "TransportError"}
    if network and not answered:
        return _unreachable(error, model)
    return UpstreamBroken(f"The answer of `{model}` is not what its provider's protocol allows.")


def _unreachable(error: BaseException, model: str) -> UpstreamError:
    cause: BaseException | None = error
    seen = 0
    while cause is not None and seen < 10:
        if isinstance(cause, ConnectionRefusedError) or "ConnectorError" in type(cause).__name__:
            return UpstreamUnavailable(f"The upstream of `{model}` cannot be reached.")
        cause, seen = cause.__cause__ or cause.__context__, seen + 1
    return UpstreamError(f"The connection to the upstream of `{model}` failed.")


def _status_of(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and 400 <= status < 600 else None


def _headers_of(error: Exception) -> Mapping[str, str] | None:
    headers = getattr(error, "litellm_response_headers", None)
    if headers is None:
        headers = getattr(getattr(error, "response", None), "headers", None) or None
    return None if headers is None else {str(name).lower(): str(value) for name, value in headers.items()}


def _body_of(error: Exception) -> str:
    """The provider's body inside the message, or the message without litellm's own words."""
    text = str(getattr(error, "message", None) or error)
    text = _PREFIX.sub("", text)
    start = text.find("{")
    if start >= 0:
        try:
            _, end = json.JSONDecoder().raw_decode(text[start:])
            return text[start : start + end]
        except ValueError:
            pass
    literal = re.match(r"b(['\"]).*?(?<!\\)\1", text, re.DOTALL)
    if literal:
        try:
            value: Any = ast.literal_eval(literal.group())
        except (ValueError, SyntaxError):
            value = b""
        if isinstance(value, bytes) and value:
            return value.decode("utf-8", "replace")
    return _SUFFIX.sub("", text).strip()


def _words(said: str, secrets: Secrets, *, whole: bool = False) -> str:
    """What may be shown of it: the message alone, or, with `whole`, the body as JSON; no address, no secret."""
    text = said
    if not whole:
        try:
            value = json.loads(said)
        except ValueError:
            value = None
        inner = value.get("error", value) if isinstance(value, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            text = inner["message"]
    return _URL.sub("…", secrets.scrub(text)) or "The upstream refused the request."
