"""Around every HTTP request: its trace id, and an error body whatever happens inside.

Knows nothing of endpoints.
"""

from __future__ import annotations

from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.errors import describe, internal
from gateway.api.http import send_error
from gateway.errors import GatewayError
from gateway.ids import new_trace_id

TRACE_ID = "gateway.trace_id"

_log: Any = structlog.get_logger("gateway.edge")


class Edge:
    """ASGI middleware: gives each request a trace id, names it in every answer, and lets no stack trace out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace_id = new_trace_id()
        scope[TRACE_ID] = trace_id
        encoded = trace_id.encode()
        started = False

        async def traced(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = message["headers"] = list(message.get("headers", ()))
                headers.append((b"x-request-id", b"req_" + encoded))
                headers.append((b"x-gateway-trace", encoded))
            await send(message)

        try:
            await self._app(scope, receive, traced)
        except GatewayError as error:
            if started:
                raise
            await send_error(traced, describe(error))
        except Exception:
            _log.exception("request.failed", trace_id=trace_id, path=scope["path"])
            if started:
                raise
            await send_error(traced, internal())
