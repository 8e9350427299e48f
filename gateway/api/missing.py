"""Paths and methods that do not exist: OpenAI error bodies for them too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.errors import ErrorAnswer


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer unknown paths with `unknown_url`, and known ones with a wrong method with 405."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        message = f"Unknown URL: {request.method} {request.url.path}. The API lives under /v1."
        return _response(ErrorAnswer(404, message, "invalid_request_error", "unknown_url", None, ()))
    message = f"{request.method} is not allowed for {request.url.path}."
    headers = tuple((name.encode(), value.encode()) for name, value in (error.headers or {}).items())
    return _response(
        ErrorAnswer(error.status_code, message, "invalid_request_error", "method_not_allowed", None, headers)
    )


def _response(answer: ErrorAnswer) -> Response:
    response = Response(answer.body, answer.status, media_type="application/json")
    for name, value in answer.headers:
        response.headers[name.decode()] = value.decode()
    return response


# What Starlette raises, and what answers it.
MISSING: Final[Mapping[Any, Callable[[Request, Exception], Any]]] = {HTTPException: _refuse}
