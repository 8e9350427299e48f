"""`/v1/keys`: make, show, change, exchange and end keys. For administrators alone."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.api.auth import caller
from gateway.api.http import read_body
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import InvalidRequest
from gateway.security.key_desk import KeyDesk, KeyView, KeyWish

_LIMIT_BYTES = 262_144
# What is said of a secret is for nobody's cache.
_SECRET = {"cache-control": "no-store"}
T = TypeVar("T")


class _Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an exchange."""

    overlap_s: float = 0


def keys_endpoints(services: Services) -> Router:
    """All five endpoints."""
    router = Router()

    async def desk(request: Request) -> tuple[KeyDesk, str]:
        snapshot = services.versions.serving
        principal = await caller(request.scope, snapshot.keys, services.clock.now(), role="admin")
        return KeyDesk(services.keys, snapshot.config.teams, services.clock), principal.owner

    @router.get("/keys")
    async def list_keys(request: Request) -> dict[str, Any]:
        at, _ = await desk(request)
        only(request.query_params, "limit", "after")
        limit = limit_of(request.query_params.get("limit"))
        rows = await at.every(limit=limit + 1, after=request.query_params.get("after"))
        return listed(rows, limit, lambda row: row.id, _shown)

    @router.post("/keys")
    async def create(request: Request) -> JSONResponse:
        at, by = await desk(request)
        made = await at.create(await _read(request, KeyWish), by)
        services.book.changed()
        return JSONResponse(_shown(made), headers=_SECRET)

    @router.patch("/keys/{key_id}")
    async def change(request: Request, key_id: str) -> JSONResponse:
        at, _ = await desk(request)
        changed = await at.change(key_id, await _read(request, KeyWish))
        services.book.changed()
        return JSONResponse(_shown(changed))

    @router.delete("/keys/{key_id}")
    async def revoke(request: Request, key_id: str) -> JSONResponse:
        at, _ = await desk(request)
        ended = await at.revoke(key_id)
        services.book.changed()
        return JSONResponse(_shown(ended))

    @router.post("/keys/{key_id}/rotate")
    async def rotate(request: Request, key_id: str) -> JSONResponse:
        at, _ = await desk(request)
        rotated = await at.rotate(key_id, (await _read(request, _Rotation, empty=True)).overlap_s)
        services.book.changed()
        return JSONResponse(_shown(rotated), headers=_SECRET)

    return router


async def _read(request: Request, kind: type[T], *, empty: bool = False) -> T:
    body = await read_body(request.scope, _LIMIT_BYTES)
    try:
        return msgspec.json.decode(body or b"{}" if empty else body, type=kind)
    except msgspec.ValidationError as error:
        place = str(error).partition(" - at `$.")[2].rstrip("`")
        raise InvalidRequest(f"The body is not what is expected here: {error}.", param=place or None) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error


def _shown(view: KeyView) -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.to_builtins(view))
