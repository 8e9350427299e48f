"""`GET /v1/config` and `POST /v1/reload`: which version serves, and the next one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.api.auth import caller
from gateway.api.errors import describe
from gateway.api.services import Services
from gateway.errors import ConfigError, Problem


def config_endpoints(services: Services) -> APIRouter:
    """Both endpoints."""
    router = APIRouter()

    @router.get("/config")
    async def show(request: Request) -> dict[str, Any]:
        caller(request.scope, services.versions.current.keys, services.clock.now())
        return _state(services)

    @router.post("/reload")
    async def reload(request: Request) -> JSONResponse:
        caller(request.scope, services.versions.current.keys, services.clock.now(), role="admin")
        try:
            await services.versions.reload()
        except ConfigError as error:
            answer = describe(error)
            body = {"error": answer.as_dict(), "problems": [_problem(p) for p in error.problems]}
            return JSONResponse(body, status_code=answer.status)
        return JSONResponse(_state(services))

    return router


def _state(services: Services) -> dict[str, Any]:
    versions = services.versions
    version = versions.current.version
    refusal = versions.last_error
    return {
        "version": str(version),
        "generation": version.generation,
        "replicas": 1,
        "age_s": round(services.clock.now() - versions.changed_at, 3),
        "last_error": None
        if refusal is None
        else {"at": refusal.at, "problems": [_problem(problem) for problem in refusal.problems]},
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "message": problem.message, "severity": problem.severity}
