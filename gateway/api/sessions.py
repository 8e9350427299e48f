"""`/v1/sessions/{id}`: conversations that the gateway keeps, to look at and to forget."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.router import Router
from gateway.api.services import Services


def sessions_endpoints(services: Services) -> Router:
    """Both of them."""
    router = Router()

    @router.get("/sessions/{session_id:path}")
    async def get(request: Request, session_id: str) -> dict[str, Any]:
        return await services.sessions.shown(await _owner(request, services), session_id)

    @router.delete("/sessions/{session_id:path}")
    async def delete(request: Request, session_id: str) -> dict[str, Any]:
        await services.sessions.delete(await _owner(request, services), session_id)
        return {"id": session_id, "object": "session.deleted", "deleted": True}

    return router


async def _owner(request: Request, services: Services) -> str:
    return (await caller(request.scope, services.versions.serving.keys, services.clock.now())).owner
