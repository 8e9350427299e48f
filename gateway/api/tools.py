"""`GET /v1/tools`: the registry tools this caller may be offered."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.router import Router
from gateway.api.services import Services


def tools_endpoints(services: Services) -> Router:
    """The endpoint."""
    router = Router()

    @router.get("/tools")
    async def list_tools(request: Request) -> dict[str, Any]:
        snapshot = services.versions.serving
        principal = await caller(request.scope, snapshot.keys, services.clock.now())
        specs = [spec for spec in snapshot.tools.specs.values() if snapshot.tools.allowed(spec, principal)]
        return {
            "object": "list",
            "has_more": False,
            "data": [
                {
                    "id": spec.name,
                    "object": "tool",
                    "description": spec.description,
                    "parameters": spec.parameters,
                    "provider": spec.provider,
                    "remote_name": spec.remote_name or None,
                    "writes": spec.writes,
                    "deletes": spec.deletes,
                    "needs_confirmation": spec.needs_confirmation,
                    "confidence_gate": spec.confidence_gate,
                    "compensate": spec.compensate or None,
                    "requires": list(spec.requires),
                    "timeout_s": spec.timeout_s,
                    "spec_hash": spec.spec_hash,
                }
                for spec in specs
            ],
        }

    return router
