"""What litellm raises, translated into the gateway's errors.

Knows litellm's exceptions by name, status and the headers they carry; imports nothing of it. Its messages wrap the
provider's body in words of its own: those are taken off, so that the client reads what the provider said.
"""

from __future__ import annotations

import ast
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.backends.secrets import Secrets
from gateway.backends.wire import error_from_frame, error_from_status, is_too_long
from gateway.errors import (
    ContextTooLong,
    GatewayError,
    UpstreamBroken,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

_PREFIX = re.compile(
    r"^(?:(?:(?:litellm\.)?\w+(?:Error|Exception|Timeout)\s+)*(?:litellm\.)?\w+(?:Error|Exception|Timeout)\s*[:-]\s*)+"
)
_STATUS_WORD = re.compile(r"^[A-Z_]{4,} - ")
_SUFFIX = re.compile(
    r"\.? ?Handle with `litellm\.\w+`\.?.*$|,? ?Original Response:.*$|\n?(?:model|Received)=.*$|\s*Traceback \(most recent call last\).*$",
    re.DOTALL,
)
_URL = re.compile(r"\b(?:https?|wss?)://[^\s\"'<>\\]+")
_NETWORK = re.compile(r"connect|errno|reset by peer|disconnected|name or service|ssl", re.IGNORECASE)
_NETWORKS = frozenset({"aiohttp", "httpx", "httpcore"})
# Said of an answer that came with a good status, though litellm gives it another.
_NO_ANSWER = re.compile(r"converting to valid response block|^Unexpected response from|Unable to get json response")
_PARAMETERS = re.compile(r"does not support parameters?: \[?['\"]?(\w+)")
# How else it names the field that it refuses.
_NAMED = re.compile(r"^`?(tool_choice|parallel_tool_calls)\b|\b(tool_choice)=|(?:does not|doesn't) support (\w+)=")
_MESSAGE = re.compile(r"^Invalid \w+ message at index (\d+)")
# Advice for those who run litellm themselves.
_ADVICE = re.compile(r"[^.:;]*litellm.*$", re.IGNORECASE | re.DOTALL)
# Its functions that write a request: whatever goes wrong in them, the provider was not asked.
_WRITING = re.compile(r"transform_request|map_openai_params|get_optional_params|^validate_(?:and_fix|chat)")


class InStream(Exception):
    """An error in mid-stream.

    Attributes:
        original_exception: what litellm makes of it.
    """

    def __init__(self, original_exception: Exception) -> None:
        super().__init__(str(original_exception))
        self.original_exception = original_exception


def translate(error: Exception, *, model: str, secrets: Secrets) -> GatewayError:
    """The gateway's error for one of litellm's; `model` is the name the client knows."""
    names = {kind.__name__ for kind in type(error).__mro__}
    original = getattr(error, "original_exception", None)
    if names & {"InStream", "MidStreamFallbackError"} and isinstance(original, Exception):
        return _in_mid_stream(original, model, secrets)
    if "LiteLLMUnknownProvider" in names:
        return UpstreamError(f"The provider configured for `{model}` is not one that litellm knows.", retryable=False)
    if any(type(each).__name__ == "ImageFetchError" for each in _causes(error)):
        words = "An image cannot be fetched from its address; send it as a data URL."
        return UpstreamRefused(words, status=400, param="messages")
    said = _body_of(error)
    if _NO_ANSWER.search(said) or "APIResponseValidationError" in names:
        return UpstreamBroken(f"The answer of `{model}` is not what its provider's protocol allows.")
    if names & {"ContextWindowExceededError"}:
        return ContextTooLong(_words(said, secrets))
    if names & {"Timeout", "APITimeoutError", "TimeoutError", "TimeoutException"}:
        return UpstreamTimeout(f"The upstream of `{model}` did not answer in time.")
    status = _status_of(error)
    headers = _headers_of(error)
    if headers is None and _while_writing(error):
        return _refused_by_litellm(said, model, secrets)
    if status is None or "APIConnectionError" in names:
        return _without_answer(error, names, model, answered=headers is not None)
    if headers is None and status >= 500 and _NETWORK.search(said):
        return _unreachable(error, model)
    if headers is None and status == 400:
        return _refused_by_litellm(said, model, secrets)
    return error_from_status(
        status, headers or {}, _words(said, secrets, whole=True).encode(), model=model, secrets=secrets
    )


def _refused_by_litellm(said: str, model: str, secrets: Secrets) -> GatewayError:
    """The provider was not asked: it has no such parameter, or litellm could not say what the request says."""
    if named := _PARAMETERS.search(said):
        words = f"The provider of `{model}` has no parameter `{named.group(1)}`."
        return UpstreamRefused(words, status=400, param=named.group(1))
    words = _ADVICE.sub("", _words(said, secrets)).strip() or "The provider's protocol has no way to say this request."
    named, message = _NAMED.search(said), _MESSAGE.search(said)
    param = next(filter(None, named.groups()), None) if named else f"messages[{message.group(1)}]" if message else None
    return ContextTooLong(words) if is_too_long(None, None, words) else UpstreamRefused(words, status=400, param=param)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what is behind it, nearest first."""
    cause: BaseException | None = error
    seen = 0
    while cause is not None and seen < 10:
        yield cause
        cause, seen = cause.__cause__ or cause.__context__, seen + 1


def _while_writing(error: BaseException) -> bool:
    """Whether it was raised before anything was sent: the request itself is at fault."""
    return any(
        _WRITING.search(frame.f_code.co_name)
        for cause in _causes(error)
        for frame, _ in traceback.walk_tb(cause.__traceback__)
    )


def _in_mid_stream(error: Exception, model: str, secrets: Secrets) -> GatewayError:
    if (frame := _frame_behind(error)) is not None:
        return error_from_frame(frame, secrets=secrets)
    if "APIConnectionError" in {kind.__name__ for kind in type(error).__mro__}:
        return UpstreamBroken(f"The answer of `{model}` was cut off.")
    return translate(error, model=model, secrets=secrets)


def _frame_behind(error: BaseException) -> bytes | None:
    """The error frame of a stream that a library raised as an error of its own, if one is the cause."""
    for cause in _causes(error):
        body = getattr(cause, "body", None)
        if type(cause).__name__ == "APIError" and isinstance(body, dict):
            return json.dumps(body).encode()
    return None


def _without_answer(error: Exception, names: set[str], model: str, *, answered: bool) -> UpstreamError:
    network = names & {"APIConnectionError", "ClientError", "OSError", "TransportError"}
    if network and not answered and not _stumbled(error):
        return _unreachable(error, model)
    return UpstreamBroken(f"The answer of `{model}` is not what its provider's protocol allows.")


def _stumbled(error: BaseException) -> bool:
    """Whether a translator found something else in an answer than it looked for; litellm calls that a connection error."""
    causes = [*_causes(error)]
    if any(isinstance(each, OSError) or type(each).__module__.split(".")[0] in _NETWORKS for each in causes):
        return False
    return any(isinstance(each, (LookupError, TypeError, AttributeError)) for each in causes)


def _unreachable(error: BaseException, model: str) -> UpstreamError:
    for cause in _causes(error):
        if isinstance(cause, ConnectionRefusedError) or "ConnectorError" in type(cause).__name__:
            return UpstreamUnavailable(f"The upstream of `{model}` cannot be reached.")
    return UpstreamError(f"The connection to the upstream of `{model}` failed.")


def _status_of(error: Exception) -> int | None:
    status = getattr(error, "provider_status_code", None) or getattr(error, "status_code", None)
    return status if isinstance(status, int) and 400 <= status < 600 else None


def _headers_of(error: Exception) -> Mapping[str, str] | None:
    headers = getattr(error, "litellm_response_headers", None)
    if headers is None:
        headers = getattr(getattr(error, "response", None), "headers", None) or None
    return None if headers is None else {str(name).lower(): str(value) for name, value in headers.items()}


def _body_of(error: Exception) -> str:
    """The provider's body inside the message, or the message without litellm's own words."""
    text = str(getattr(error, "message", None) or error)
    text = _STATUS_WORD.sub("", _PREFIX.sub("", text))
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
            value = None
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return _SUFFIX.sub("", text).strip()


def _words(said: str, secrets: Secrets, *, whole: bool = False) -> str:
    """What may be shown of it: the message alone, or, with `whole`, the body as JSON; no address, no secret."""
    text = _URL.sub("…", secrets.scrub(said))
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if whole:
        plain = not isinstance(value, (dict, list)) and not text.startswith("<")
        return json.dumps({"error": {"message": text}}) if plain and text else text
    inner = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        text = inner["message"]
    return text or "The upstream refused the request."
