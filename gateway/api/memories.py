"""`/v1/memories`: what the gateway remembers of its caller, to look at, to correct and to forget."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.http import read_body
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import InvalidRequest
from gateway.store.memory_records import MemoryRow

_LIMIT_BYTES = 65_536


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a change."""

    text: str


def memories_endpoints(services: Services) -> Router:
    """All four endpoints."""
    router = Router()

    @router.get("/memories")
    async def every(request: Request) -> dict[str, Any]:
        query = request.query_params
        only(query, "limit", "after")
        limit = limit_of(query.get("limit"))
        owner = await _owner(request, services)
        rows = await services.memories.page(owner, limit=limit + 1, after=query.get("after"))
        return listed(rows, limit, lambda row: row.id, _shown)

    @router.get("/memories/{memory_id}")
    async def get(request: Request, memory_id: str) -> dict[str, Any]:
        return _shown(await services.memories.get(memory_id, await _owner(request, services)))

    @router.patch("/memories/{memory_id}")
    async def change(request: Request, memory_id: str) -> dict[str, Any]:
        owner = await _owner(request, services)
        await services.memories.get(memory_id, owner)  # of one that is not there, no body is right
        body = await read_body(request.scope, _LIMIT_BYTES)
        try:
            wanted = msgspec.json.decode(body, type=_Change)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f'The body must be `{{"text": …}}`: {error}', param="text") from error
        return _shown(await services.memories.change(memory_id, owner, wanted.text, services.versions.serving))

    @router.delete("/memories/{memory_id}")
    async def delete(request: Request, memory_id: str) -> dict[str, Any]:
        await services.memories.delete(memory_id, await _owner(request, services))
        return {"id": memory_id, "object": "memory.deleted", "deleted": True}

    return router


def _shown(row: MemoryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "memory",
        "kind": row.kind,
        "text": row.text,
        "source": row.source,
        "created_at": int(row.created_at),
        "updated_at": int(row.updated_at),
    }


async def _owner(request: Request, services: Services) -> str:
    return (await caller(request.scope, services.versions.serving.keys, services.clock.now())).owner
