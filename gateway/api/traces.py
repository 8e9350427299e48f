"""`GET /v1/traces` and `GET /v1/traces/{id}`: what happened in finished turns, to whom they belong."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import NotFound
from gateway.security.principal import Principal
from gateway.store.trace_records import TraceSummary

# Traces are written behind; who asks for one that has just ended waits this long at most for it.
_FLUSH_S = 2.0


def traces_endpoints(services: Services) -> Router:
    """Both endpoints."""
    router = Router()

    @router.get("/traces")
    async def list_traces(request: Request) -> dict[str, Any]:
        owner = _owner(await caller(request.scope, services.versions.serving.keys, services.clock.now()))
        only(request.query_params, "limit", "after")
        limit = limit_of(request.query_params.get("limit"))
        await services.together.flush(_FLUSH_S)
        rows = await services.traces.newest(owner, limit=limit + 1, after=request.query_params.get("after"))
        return listed(rows, limit, lambda row: row.trace_id, TraceSummary.shown)

    @router.get("/traces/{trace_id}")
    async def get_trace(request: Request, trace_id: str) -> dict[str, Any]:
        owner = _owner(await caller(request.scope, services.versions.serving.keys, services.clock.now()))
        await services.together.flush(_FLUSH_S)
        row = await services.traces.get(trace_id, owner)
        if row is None:
            raise NotFound(f"There is no trace {trace_id!r}.")
        return row.shown()

    return router


def _owner(principal: Principal) -> str | None:
    """Administrators read everybody's."""
    return None if "admin" in principal.roles else principal.owner
