"""`/healthz`, `/readyz`, `/metrics`: what probes and scrapers ask."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.auth import caller
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import NotAllowed, ToolsAway
from gateway.observe.metrics import CONTENT_TYPE


def health_endpoints(services: Services) -> Router:
    """All three. The first two are open."""
    router = Router()

    @router.get("/healthz")
    async def healthz(_request: Request) -> dict[str, Any]:
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz(_request: Request) -> JSONResponse:
        services.drain.refuse()
        snapshot = services.versions.serving
        if away := services.away():
            raise ToolsAway(f"Required tool servers are away: {', '.join(away)}.")
        # Without its queue a gateway still answers: only background runs are not taken on.
        background = "ready" if services.runs.reachable else "unavailable"
        return JSONResponse({"status": "ready", "version": str(snapshot.version), "background": background})

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        principal = await caller(request.scope, services.versions.current.keys, services.clock.now())
        if not principal.roles & {"admin", "metrics"}:
            raise NotAllowed("This needs a key with the role `metrics` or `admin`.")
        return Response(await services.together.scrape(), media_type=CONTENT_TYPE)

    return router
