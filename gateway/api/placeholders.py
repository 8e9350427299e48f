"""`POST /v1/placeholders/reveal`: what one placeholder stands for, told to its owner under the eyes of the audit log."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.api.auth import caller
from gateway.api.http import read_body
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.errors import InvalidRequest, NotAllowed, NotFound
from gateway.security.masking.placeholders import PLACEHOLDER
from gateway.store.audit_records import AuditEntry

_LIMIT_BYTES = 4096
# What is said of a secret is for nobody's cache.
_SECRET = {"cache-control": "no-store"}


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body: a placeholder, and whose it is where it is not the caller's."""

    placeholder: str
    owner: str | None = None


def placeholders_endpoints(services: Services) -> Router:
    """The endpoint."""
    router = Router()

    @router.post("/placeholders/reveal")
    async def reveal(request: Request) -> JSONResponse:
        principal = await caller(request.scope, services.versions.serving.keys, services.clock.now())
        asked = _read(await read_body(request.scope, _LIMIT_BYTES))
        if not PLACEHOLDER.fullmatch(asked.placeholder):
            raise InvalidRequest("`placeholder` is none: it looks like `[[phone:bcdfghjklmn]]`.", param="placeholder")
        owner = principal.owner if asked.owner is None else asked.owner
        if owner != principal.owner and "admin" not in principal.roles:
            raise NotAllowed("Another owner's values need a key with the role `admin`.")
        # Written behind, with the trace that shows it.
        await services.together.flush(2.0)
        value = await services.vault.reveal(asked.placeholder, owner)
        await services.audit.append(
            AuditEntry(
                at=services.clock.now(),
                actor=principal.owner,
                owner=owner,
                action="value.revealed",
                subject=asked.placeholder,
                outcome="told" if value is not None else "not found",
            )
        )
        if value is None:
            raise NotFound("Nothing is kept of this placeholder.")
        return JSONResponse(
            {"object": "placeholder", "placeholder": asked.placeholder, "value": value}, headers=_SECRET
        )

    return router


def _read(body: bytes) -> _Asked:
    try:
        return msgspec.json.decode(body, type=_Asked)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f'The body is not `{{"placeholder": …}}`: {error}') from error
