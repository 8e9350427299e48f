"""`POST /v1/runs`: asks for a run of a type that a plugin adds."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from gateway.api.address import origin_of
from gateway.api.auth import read_headers
from gateway.api.bodies import decoded
from gateway.api.cycle import CYCLE
from gateway.api.http import read_body
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.runs.tasks import AskedTask, task_run
from gateway.runs.view import summary


def tasks_endpoints(services: Services) -> Router:
    """The endpoint."""
    router = Router()

    @router.post("/runs", status_code=202)
    async def ask(request: Request) -> dict[str, Any]:
        now = services.clock.now()
        snapshot = services.versions.serving
        origin = origin_of(request.scope, snapshot.keys.trusted_proxies)
        principal, wishes = await read_headers(request.scope, snapshot.keys, now)
        asked = decoded(await read_body(request.scope, snapshot.body_limit_bytes), AskedTask)
        services.drain.refuse()
        new = task_run(asked, principal, wishes, request.scope[CYCLE].trace_id, snapshot, now, origin)
        return summary(await services.runs.submit(new))

    return router
