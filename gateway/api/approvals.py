"""`GET /v1/approvals`, `GET /v1/approvals/{id}`, `POST …/approve` and `…/reject`: what waits for a human, and their word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, get_args

import msgspec
from cachetools import TTLCache
from starlette.requests import Request

from gateway.api.auth import caller
from gateway.api.http import read_body
from gateway.api.lists import limit_of, listed, only
from gateway.api.router import Router
from gateway.api.services import Services
from gateway.approvals.rules import refuse_decision, sees_all, sees_code
from gateway.approvals.view import view
from gateway.errors import InvalidRequest
from gateway.observe.masked import masked_call_view
from gateway.security.principal import Principal
from gateway.store.approval_records import ApprovalRow, ApprovalStatus
from gateway.store.audit_records import AuditEntry

_LIMIT_BYTES = 65_536
# Whoever looks every second reads once an hour, for the audit log. So many reads are remembered.
_READS, _READ_S = 10_000, 3600.0
_STATUSES = get_args(ApprovalStatus)


class _Approval(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an approval. Arguments are none of it: those that were asked for are approved, or none."""

    code: str | None = None
    reason: str | None = None


class _Rejection(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rejection."""

    reason: str


class _Callers:
    """Who may see and decide what, over HTTP."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._desk = services.desk
        self._read: TTLCache[tuple[str, str], bool] = TTLCache(_READS, _READ_S)

    async def who(self, request: Request) -> Principal:
        """The caller."""
        services = self._services
        return await caller(request.scope, services.versions.serving.keys, services.clock.now())

    async def found(self, request: Request, approval_id: str) -> tuple[Principal, ApprovalRow]:
        """The caller, and the approval where they may see it."""
        principal = await self.who(request)
        owner = None if sees_all(principal, self._desk.config) else principal.owner
        return principal, await self._desk.get(approval_id, owner)

    def shown(self, principal: Principal, row: ApprovalRow) -> dict[str, Any]:
        """What the caller is shown of it."""
        code = row.code if sees_code(principal, row, self._desk.config) else None
        shown = view(row, self._desk.status_of(row), code)
        privacy = self._services.versions.serving.privacy
        private = None if privacy is None else privacy.begin(row.owner, row.route)
        return shown if private is None else masked_call_view(private, row.tool, shown)

    async def read_by(self, principal: Principal, rows: Sequence[ApprovalRow]) -> None:
        """What belongs to somebody else is read under the eyes of the audit log, for each reader once an hour."""
        read = [row for row in rows if row.owner != principal.owner]
        others = [row for row in read if (principal.owner, row.id) not in self._read]
        self._read.update({(principal.owner, row.id): True for row in others})
        now = self._services.clock.now()
        for owner in dict.fromkeys(row.owner for row in others):
            ids = ",".join(row.id for row in others if row.owner == owner)
            entry = AuditEntry(at=now, actor=principal.owner, owner=owner, action="approval.read", subject=ids)
            await self._services.audit.append(entry)


T = TypeVar("T", _Approval, _Rejection)


def approvals_endpoints(services: Services) -> Router:
    """All four endpoints."""
    router = Router()
    desk, callers = services.desk, _Callers(services)

    @router.get("/approvals")
    async def list_approvals(request: Request) -> dict[str, Any]:
        principal = await callers.who(request)
        asked = request.query_params
        only(asked, "status", "limit", "after")
        status = _status(asked)
        limit = limit_of(asked.get("limit"))
        rows = await desk.newest(
            None if sees_all(principal, desk.config) else principal.owner,
            status=status,
            limit=limit + 1,
            after=asked.get("after"),
        )
        await callers.read_by(principal, rows[:limit])
        return listed(rows, limit, lambda row: row.id, lambda row: callers.shown(principal, row))

    @router.get("/approvals/{approval_id}")
    async def get_approval(request: Request, approval_id: str) -> dict[str, Any]:
        principal, row = await callers.found(request, approval_id)
        await callers.read_by(principal, [row])
        return callers.shown(principal, row)

    @router.post("/approvals/{approval_id}/approve")
    async def approve(request: Request, approval_id: str) -> dict[str, Any]:
        principal, row = await callers.found(request, approval_id)
        refuse_decision(principal, row, desk.config)
        said = _read(await read_body(request.scope, _LIMIT_BYTES) or b"{}", _Approval)
        spec = services.versions.serving.tools.specs.get(row.tool)
        if (
            row.kind == "call"
            and desk.status_of(row) == "pending"
            and (spec is None or spec.spec_hash != row.spec_hash)
        ):
            raise InvalidRequest(
                f"`{row.tool}` is not the tool any more that this was asked for; it has to be asked for again.",
                code="tool_changed",
            )
        decided = await desk.decide(row, "approved", by=principal.owner, reason=said.reason, code=said.code)
        return callers.shown(principal, decided)

    @router.post("/approvals/{approval_id}/reject")
    async def reject(request: Request, approval_id: str) -> dict[str, Any]:
        principal, row = await callers.found(request, approval_id)
        refuse_decision(principal, row, desk.config)
        said = _read(await read_body(request.scope, _LIMIT_BYTES), _Rejection)
        if not said.reason.strip():
            raise InvalidRequest("`reason` must say why: the model is told, and answers.", param="reason")
        decided = await desk.decide(row, "rejected", by=principal.owner, reason=said.reason)
        return callers.shown(principal, decided)

    return router


def _status(asked: Mapping[str, str]) -> ApprovalStatus | None:
    unknown = sorted(set(asked) - {"limit", "after", "status"})
    if unknown:
        raise InvalidRequest(
            f"There is no filter `{unknown[0]}`; there are `status`, `limit` and `after`.", param=unknown[0]
        )
    status = asked.get("status")
    if status is not None and status not in _STATUSES:
        raise InvalidRequest(f"`status` is {status!r}; expected one of {', '.join(_STATUSES)}.", param="status")
    return cast(ApprovalStatus | None, status)


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        raise InvalidRequest(f"The body may hold {fields}, and nothing else: {error}.") from error
