"""`GET /v1/usage`: what was used, added up: everybody's for administrators, one's own for others."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.auth import caller
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import StoreUnavailable
from gateway.observe.usage_report import as_csv, asked_for, reported


def usage_endpoints(services: Services) -> Router:
    """The endpoint."""
    router = Router()

    @router.get("/usage")
    async def usage(request: Request) -> Response:
        snapshot = services.versions.serving
        principal = await caller(request.scope, snapshot.keys, services.clock.now())
        asked = asked_for(dict(request.query_params))
        with contextlib.suppress(StoreUnavailable):
            await services.used.flush()  # what this process has in hand; the database is asked in any case
        owner = None if "admin" in principal.roles else principal.owner
        sums = await services.usage.sums(asked.by, owner=owner, since=asked.since, until=asked.until)
        currency = snapshot.config.budgets.currency
        rows = [reported(row, asked.by, currency) for row in sums]
        if asked.csv:
            return Response(as_csv(rows, asked.by), media_type="text/csv; charset=utf-8")
        body = {"object": "list", "data": cast(list[Any], rows), "has_more": False}
        return Response(msgspec.json.encode(body), media_type="application/json")

    return router
