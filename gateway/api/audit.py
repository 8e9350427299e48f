"""`GET /v1/audit`: who has done what, the newest first, each entry standing on the one before it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import InvalidRequest
from gateway.store.audit_records import view_of


def audit_endpoints(services: Services) -> Router:
    """The endpoint."""
    router = Router()

    @router.get("/audit")
    async def list_entries(request: Request) -> dict[str, Any]:
        await caller(request.scope, services.versions.serving.keys, services.clock.now(), role="admin")
        asked = request.query_params
        only(asked, "limit", "after")
        after = asked.get("after")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 16):
            raise InvalidRequest(f"`after` is {after!r}; expected the id of an entry.", param="after")
        limit = limit_of(asked.get("limit"))
        rows = await services.audit.newest(None, limit=limit + 1, after=None if after is None else int(after))
        return listed(rows, limit, lambda row: str(row.seq), view_of)

    return router
