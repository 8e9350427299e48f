"""Every endpoint in one ASGI app.

Knows the paths and the short way of the hot ones. Does not know how what stands behind them is made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.approvals import approvals_endpoints
from gateway.api.audit import audit_endpoints
from gateway.api.chat_completions import ChatCompletions
from gateway.api.config import config_endpoints
from gateway.api.conversations import conversations_endpoints
from gateway.api.effects import effects_endpoints
from gateway.api.health import health_endpoints
from gateway.api.keys import keys_endpoints
from gateway.api.memories import memories_endpoints
from gateway.api.missing import MISSING
from gateway.api.models import models_endpoints
from gateway.api.placeholders import placeholders_endpoints
from gateway.api.responses import Responses
from gateway.api.route import route_endpoints
from gateway.api.runs import runs_endpoints
from gateway.api.services import Services
from gateway.api.sessions import sessions_endpoints
from gateway.api.stored_responses import responses_endpoints
from gateway.api.tasks import tasks_endpoints
from gateway.api.tools import tools_endpoints
from gateway.api.traces import traces_endpoints
from gateway.api.usage import usage_endpoints

Endpoint = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class GatewayApp(Starlette):
    """Starlette, with a short way for the endpoints that carry the load: past its middleware and its routing, which cost
    more than everything the gateway itself does to a small request. What fails inside is for whoever serves it to answer.
    """

    def __init__(self, hot: Mapping[str, Endpoint], routes: Sequence[BaseRoute]) -> None:
        super().__init__(
            routes=[*(Route(path, endpoint, methods=["POST"]) for path, endpoint in hot.items()), *routes],
            exception_handlers=MISSING,
        )
        self._hot = hot

    def build_middleware_stack(self) -> ASGIApp:
        """Without Starlette's own answer to defects: it would be no JSON."""
        return ExceptionMiddleware(self.router, handlers=self.exception_handlers)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Handle one request; awaited, which is a coroutine less than to await in here."""
        if scope["method"] == "POST" and (hot := self._hot.get(scope["path"])) is not None:
            return hot(scope, receive, send)
        return super().__call__(scope, receive, send)


def create_app(services: Services) -> GatewayApp:
    """The ASGI app over the given objects."""
    chat = ChatCompletions(services.turns, services.versions, services.clock, services.runs, services.drain)
    hot: dict[str, Endpoint] = dict.fromkeys(("/v1/chat/completions", "/chat/completions"), chat)
    hot |= dict.fromkeys(("/v1/responses", "/responses"), Responses(services))
    routes: list[BaseRoute] = []
    for endpoints in (
        models_endpoints,
        route_endpoints,
        tools_endpoints,
        config_endpoints,
        traces_endpoints,
        effects_endpoints,
        approvals_endpoints,
        audit_endpoints,
        keys_endpoints,
        usage_endpoints,
        placeholders_endpoints,
        runs_endpoints,
        tasks_endpoints,
        responses_endpoints,
        conversations_endpoints,
        sessions_endpoints,
        memories_endpoints,
    ):
        routes += endpoints(services).below("/v1")
    for endpoints in (models_endpoints, responses_endpoints, conversations_endpoints):
        # OpenAI's own paths are there without `/v1` too.
        routes += endpoints(services).below("")
    routes += health_endpoints(services).below("")
    return GatewayApp(hot, routes)
