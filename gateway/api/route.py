"""`POST /v1/route`: the decision for a chat request, with reasons and without inference."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.auth import for_user, read_headers
from gateway.api.http import read_body
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.chat.codecs.chat_completions import decode_request
from gateway.routing.explain import explanation
from gateway.turn.prepare import decide


def route_endpoints(services: Services) -> Router:
    """The endpoint."""
    router = Router()

    @router.post("/route")
    async def route(request: Request) -> dict[str, Any]:
        snapshot = services.versions.serving
        principal, wishes = await read_headers(request.scope, snapshot.keys, services.clock.now())
        chat = decode_request(await read_body(request.scope, snapshot.body_limit_bytes))
        principal = for_user(principal, chat.user)
        # What decides is what is active now, not what was when the request began to arrive.
        lease = services.versions.acquire()
        try:
            decision = await decide(chat, principal, wishes, lease.value, kept=services.kept, explain=True)
        finally:
            services.versions.release(lease)
        return explanation(decision)

    return router
