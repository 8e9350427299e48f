"""`GET /v1/runs`, `GET /v1/runs/{id}`, `POST /v1/runs/{id}/cancel` and `…/retry`: background runs, and what became of them."""

from __future__ import annotations

from typing import Any, cast, get_args

import msgspec
from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.bodies import decoded
from gateway.api.http import read_body
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import InvalidRequest, NotFound
from gateway.runs.stages import LAST
from gateway.runs.view import summary, view
from gateway.security.principal import Principal
from gateway.store.run_records import Status

_STATUSES = get_args(Status)
_LIMIT_BYTES = 65_536
# How long a cancellation is waited for that is being heeded.
_CANCEL_WAIT_S = 1.0


class _Retried(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a retry."""

    stage: str | int = msgspec.field(default=LAST, name="from")


def runs_endpoints(services: Services) -> Router:
    """All four endpoints."""
    router = Router()

    async def owner_of(request: Request) -> str | None:
        return _owner(await caller(request.scope, services.versions.serving.keys, services.clock.now()))

    @router.get("/runs")
    async def list_runs(request: Request) -> dict[str, Any]:
        owner = await owner_of(request)
        asked = request.query_params
        only(asked, "status", "dead", "limit", "after")
        status = asked.get("status")
        if status is not None and status not in _STATUSES:
            raise InvalidRequest(f"`status` is {status!r}; expected one of {', '.join(_STATUSES)}.", param="status")
        dead = asked.get("dead")
        if dead not in (None, "true", "false"):
            raise InvalidRequest(f"`dead` is {dead!r}; expected `true` or `false`.", param="dead")
        limit = limit_of(asked.get("limit"))
        rows = await services.runs.newest(
            owner,
            status=cast(Status | None, status),
            dead=None if dead is None else dead == "true",
            limit=limit + 1,
            after=asked.get("after"),
        )
        return listed(rows, limit, lambda row: row.id, summary)

    @router.get("/runs/{run_id}")
    async def get_run(request: Request, run_id: str) -> dict[str, Any]:
        row = await services.runs.get(run_id, await owner_of(request))
        if row is None:
            raise NotFound(f"There is no run {run_id!r}.")
        return {**view(row), "stages": await services.runs.stages(row)}

    @router.post("/runs/{run_id}/cancel")
    async def cancel(request: Request, run_id: str) -> dict[str, Any]:
        owner = await owner_of(request)
        row = await services.runs.cancel(run_id, owner)
        if not row.over:
            # Mostly it is over within moments, and who asks need not ask again.
            row = await services.runs.ended(run_id, owner, _CANCEL_WAIT_S) or row
        return view(row)

    @router.post("/runs/{run_id}/retry")
    async def retry(request: Request, run_id: str) -> dict[str, Any]:
        owner = await owner_of(request)
        if await services.runs.get(run_id, owner) is None:
            raise NotFound(f"There is no run {run_id!r}.")
        body = await read_body(request.scope, _LIMIT_BYTES)
        stage = decoded(body or b"{}", _Retried).stage
        services.drain.refuse()
        return view(await services.runs.retry(run_id, owner, str(stage)))

    return router


def _owner(principal: Principal) -> str | None:
    """Administrators see everybody's."""
    return None if "admin" in principal.roles else principal.owner
