"""`GET /v1/config`, `POST /v1/reload`, `POST /v1/config/rollback`: which version serves, the next one, an earlier one.

They answer on a stale replica too: who mends it has to see it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.api.auth import caller
from gateway.api.errors import describe
from gateway.api.http import read_body
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import ConfigError, InvalidRequest, Problem

_LIMIT_BYTES = 4096


class _Rollback(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rollback."""

    generation: int | None = None


def config_endpoints(services: Services) -> Router:
    """All three endpoints."""
    router = Router()

    @router.get("/config")
    async def show(request: Request) -> dict[str, Any]:
        await caller(request.scope, services.versions.current.keys, services.clock.now())
        return await _state(services)

    @router.post("/reload")
    async def reload(request: Request) -> JSONResponse:
        await caller(request.scope, services.versions.current.keys, services.clock.now(), role="admin")
        return await _changed(services, services.replica.reload)

    @router.post("/config/rollback")
    async def roll_back(request: Request) -> JSONResponse:
        await caller(request.scope, services.versions.current.keys, services.clock.now(), role="admin")
        body = await read_body(request.scope, _LIMIT_BYTES)
        try:
            wanted = msgspec.json.decode(body, type=_Rollback) if body.strip() else _Rollback()
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f'The body must be empty or `{{"generation": NUMBER}}`: {error}.') from error
        return await _changed(services, lambda: services.replica.roll_back(wanted.generation))

    return router


async def _changed(services: Services, change: Callable[[], Awaitable[object]]) -> JSONResponse:
    try:
        await change()
    except ConfigError as error:
        answer = describe(error)
        body = {"error": answer.as_dict(), "problems": [_problem(p) for p in error.problems]}
        return JSONResponse(body, status_code=answer.status)
    return JSONResponse(await _state(services))


async def _state(services: Services) -> dict[str, Any]:
    versions, replica = services.versions, services.replica
    version, calibration = versions.current.version, versions.current.calibration
    refusal = await services.together.refusal()
    return {
        "version": str(version),
        "generation": version.generation,
        "replicas": replica.count,
        "age_s": round(services.clock.now() - versions.changed_at, 3),
        "last_error": None
        if refusal is None
        else {"at": refusal.at, "problems": [_problem(problem) for problem in refusal.problems]},
        "calibration": {"state": calibration.state, "reason": calibration.reason or None},
        "stale": replica.standing.stale,
        "stale_reason": replica.standing.reason,
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "message": problem.message, "severity": problem.severity}
