"""`GET /v1/models` and `GET /v1/models/{id}`: the names this caller may ask for."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.turn.snapshot import Snapshot


def models_endpoints(services: Services) -> Router:
    """Both endpoints."""
    router = Router()

    @router.get("/models")
    async def list_models(request: Request) -> dict[str, Any]:
        snapshot = services.versions.serving
        principal = await caller(request.scope, snapshot.keys, services.clock.now())
        return {"object": "list", "data": [_model(name, snapshot) for name in snapshot.names_for(principal)]}

    @router.get("/models/{name:path}")
    async def get_model(request: Request, name: str) -> dict[str, Any]:
        snapshot = services.versions.serving
        principal = await caller(request.scope, snapshot.keys, services.clock.now())
        if name not in snapshot.names_for(principal):
            snapshot.meant_by(name, principal)  # raises, unless a wildcard means it
        return _model(name, snapshot)

    return router


def _model(name: str, snapshot: Snapshot) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": snapshot.created, "owned_by": "hermes-gateway"}
