"""`GET /v1/effects`, `POST /v1/effects/{id}/settle` and `…/retry`: what writing tools did, and the word of an operator."""

from __future__ import annotations

import contextlib
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import structs
from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.cycle import CYCLE
from gateway.api.http import read_body
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.approvals.masking import masked_arguments
from gateway.errors import EffectSettled, InvalidRequest, RunEnded
from gateway.observe.events import Recorder
from gateway.security.principal import Principal
from gateway.store.audit_records import AuditAction, AuditEntry
from gateway.store.turn_records import EffectRow, EffectStatus
from gateway.tools.outcome import CallFailed
from gateway.tools.settling import views
from gateway.tools.spec import ToolContext

_LIMIT_BYTES = 131_072
_STATUSES = get_args(EffectStatus)


class _Settled(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a settlement."""

    status: Literal["done", "failed"]
    reason: str
    content: Any = msgspec.UNSET


def effects_endpoints(services: Services) -> Router:
    """All three endpoints."""
    router = Router()

    async def admin(request: Request) -> Principal:
        return await caller(request.scope, services.versions.serving.keys, services.clock.now(), role="admin")

    @router.get("/effects")
    async def list_effects(request: Request) -> dict[str, Any]:
        await admin(request)
        asked = request.query_params
        only(asked, "status", "limit", "after")
        status = asked.get("status")
        if status is not None and status not in _STATUSES:
            raise InvalidRequest(f"`status` is {status!r}; expected one of {', '.join(_STATUSES)}.", param="status")
        limit = limit_of(asked.get("limit"))
        rows = await services.settling.newest(
            status=cast(EffectStatus | None, status), limit=limit + 1, after=asked.get("after")
        )
        shown = views(rows, await services.compensations.of_effects([row.id for row in rows]))
        return listed(shown, limit, lambda each: each.id, msgspec.to_builtins)

    @router.post("/effects/{effect_id}/settle")
    async def settle(request: Request, effect_id: str) -> dict[str, Any]:
        by = (await admin(request)).owner
        body = await read_body(request.scope, _LIMIT_BYTES)
        try:
            said = msgspec.json.decode(body, type=_Settled)
        except msgspec.MsgspecError as error:
            expected = '{"status": "done" or "failed", "reason": "…"}, and `content` if need be'
            raise InvalidRequest(f"The body must be {expected}: {error}.") from error
        if not said.reason.strip():
            raise InvalidRequest("`reason` must say how it is known what became of the effect.", param="reason")
        row = await services.settling.settle(effect_id, said.status, said.reason, by, said.content)
        await _noted(services, row, "effect.settled", by)
        return await _shown(services, row)

    @router.post("/effects/{effect_id}/retry")
    async def retry(request: Request, effect_id: str) -> dict[str, Any]:
        by = (await admin(request)).owner
        services.drain.refuse()
        if await _undone_again(services, effect_id, by):
            return await _shown(services, await services.settling.open(effect_id, *_STATUSES))
        seen = await services.settling.open(effect_id, "unknown", "failed")
        trace_id: str = request.scope[CYCLE].trace_id
        key, user = await _whose(services, seen)
        context = ToolContext(user, key, None, None, trace_id, "")
        record = Recorder(trace_id, seen.owner, services.clock)
        lease = services.versions.acquire()
        try:
            done = await services.courier.repeat(seen, context, lease.value.tools, record)
        except CallFailed as error:
            raise InvalidRequest(str(error), code="tool_changed") from error
        finally:
            services.versions.release(lease)
            services.together.count(record)
        if done is None:
            raise EffectSettled(f"The effect {effect_id} has changed meanwhile.")
        row = await services.settling.open(effect_id, *_STATUSES)
        await _noted(services, row, "effect.retried", by)
        return await _shown(services, row)

    return router


async def _whose(services: Services, row: EffectRow) -> tuple[str, str | None]:
    """The key and the end user that an effect was made for: its trace says so, or else its owner's name."""
    trace = await services.traces.get(row.trace_id, None)
    if trace is not None:
        return trace.summary.key, trace.summary.user
    key, _, user = row.owner.partition("/")
    if "/" in user:
        raise InvalidRequest("Whose effect this is can no longer be told: its trace is gone.", code="tool_changed")
    return key, user or None


async def _shown(services: Services, row: EffectRow) -> dict[str, Any]:
    [shown] = views([row], await services.compensations.of_effects([row.id]))
    return cast(dict[str, Any], msgspec.to_builtins(shown))


async def _undone_again(services: Services, effect_id: str, by: str) -> bool:
    """Begin again to undo an effect where that has failed; False where it has not."""
    owed = next(
        (each for each in await services.compensations.of_effects([effect_id]) if each.effect_id == effect_id), None
    )
    if owed is None or owed.status != "failed":
        return False
    again = structs.replace(owed, status="pending", attempts=0, error=None, finished_at=None)
    await services.compensations.change(again)
    with contextlib.suppress(RunEnded):  # it is under way, and finds what is owed
        await services.runs.retry(owed.run_id, None)
    row = await services.settling.open(effect_id, *_STATUSES)
    await _said(services, row, "effect.retried", by)
    return True


async def _noted(services: Services, row: EffectRow, action: AuditAction, by: str) -> None:
    """An operator's word on an effect: for the audit log, and where it undoes another, for that one."""
    now = services.clock.now()
    if row.status != "started":
        error = None if row.status == "done" else row.note
        await services.compensations.settle(row.id, status=row.status, error=error, now=now)
    await _said(services, row, action, by)


async def _said(services: Services, row: EffectRow, action: AuditAction, by: str) -> None:
    await services.audit.append(
        AuditEntry(
            at=services.clock.now(),
            actor=by,
            owner=row.owner,
            action=action,
            subject=row.id,
            tool=row.tool,
            arguments=masked_arguments(row.arguments, services.versions.current.tools.secrets_of(row.tool)),
            arguments_hash=row.arguments_hash,
            outcome=row.status,
        )
    )
