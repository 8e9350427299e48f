"""Paths and methods that do not exist, and requests FastAPI itself refuses: OpenAI error bodies for them too."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gateway.api.errors import ErrorAnswer


def missing(app: FastAPI) -> None:
    """Answer unknown paths with `unknown_url`, and known ones with a wrong method with 405."""

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            message = f"Unknown URL: {request.method} {request.url.path}. The API lives under /v1."
            return _response(ErrorAnswer(404, message, "invalid_request_error", "unknown_url", None, ()))
        message = f"{request.method} is not allowed for {request.url.path}."
        headers = tuple((name.encode(), value.encode()) for name, value in (error.headers or {}).items())
        return _response(
            ErrorAnswer(error.status_code, message, "invalid_request_error", "method_not_allowed", None, headers)
        )


def answer_validation_error(app: FastAPI) -> None:
    """Answer what FastAPI refuses with 400, never 422."""

    @app.exception_handler(RequestValidationError)
    async def refuse(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:]) or None
        return _response(ErrorAnswer(400, str(first["msg"]), "invalid_request_error", None, param, ()))


def _response(answer: ErrorAnswer) -> Response:
    response = Response(answer.body, answer.status, media_type="application/json")
    for name, value in answer.headers:
        response.headers[name.decode()] = value.decode()
    return response
