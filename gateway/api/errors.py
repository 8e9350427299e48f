"""Every `GatewayError` as an OpenAI error body with its status: one table.

Knows statuses, types and codes. Does not know who raised what.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from gateway.errors import (
    ApprovalDecided,
    ApprovalExpired,
    ApprovalLocked,
    AwaitsApproval,
    BackgroundUnavailable,
    BodyTooLarge,
    BudgetExceeded,
    CompensationFailed,
    ConfigError,
    ConfigStale,
    ContextTooLong,
    Draining,
    EffectSettled,
    GatewayError,
    HookFailed,
    IdempotencyConflict,
    InvalidRequest,
    NoSuchModel,
    NotAllowed,
    NotFound,
    NotStorable,
    QueueFull,
    RateLimited,
    RunEnded,
    SchemaOld,
    SessionBusy,
    StoreUnavailable,
    ToolChanged,
    ToolFailed,
    ToolsAway,
    Unauthenticated,
    UnreadableBody,
    UpstreamBroken,
    UpstreamDenied,
    UpstreamError,
    UpstreamHungUp,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

# error: (status, type, code). A class without a row takes its nearest ancestor's; a test sees to it that each has its own.
TABLE: dict[type[GatewayError], tuple[int, str, str | None]] = {
    GatewayError: (500, "server_error", "internal_error"),
    InvalidRequest: (400, "invalid_request_error", None),
    ContextTooLong: (400, "invalid_request_error", "context_length_exceeded"),
    BodyTooLarge: (413, "invalid_request_error", "body_too_large"),
    UnreadableBody: (415, "invalid_request_error", "unsupported_encoding"),
    Unauthenticated: (401, "invalid_request_error", "invalid_api_key"),
    NotAllowed: (403, "invalid_request_error", "not_allowed"),
    NoSuchModel: (404, "invalid_request_error", "model_not_found"),
    NotFound: (404, "invalid_request_error", "not_found"),
    IdempotencyConflict: (409, "invalid_request_error", "idempotency_conflict"),
    SessionBusy: (409, "invalid_request_error", "session_busy"),
    EffectSettled: (409, "invalid_request_error", "effect_settled"),
    RunEnded: (409, "invalid_request_error", "run_ended"),
    ApprovalDecided: (409, "invalid_request_error", "approval_decided"),
    ApprovalExpired: (409, "invalid_request_error", "approval_expired"),
    ApprovalLocked: (409, "invalid_request_error", "approval_locked"),
    AwaitsApproval: (409, "invalid_request_error", "approval_pending"),
    CompensationFailed: (502, "upstream_error", "compensation_failed"),
    ToolChanged: (409, "invalid_request_error", "tool_changed"),
    RateLimited: (429, "rate_limit_error", "rate_limit_exceeded"),
    QueueFull: (429, "rate_limit_error", "queue_full"),
    BudgetExceeded: (429, "insufficient_quota", "insufficient_quota"),
    UpstreamError: (502, "upstream_error", "upstream_error"),
    UpstreamRefused: (502, "upstream_error", "upstream_error"),
    UpstreamDenied: (502, "upstream_error", "upstream_error"),
    UpstreamUnavailable: (502, "upstream_error", "upstream_error"),
    UpstreamHungUp: (502, "upstream_error", "upstream_error"),
    UpstreamTimeout: (504, "upstream_error", "upstream_timeout"),
    UpstreamBroken: (502, "upstream_error", "upstream_error"),
    HookFailed: (500, "server_error", "hook_failed"),
    ToolFailed: (502, "upstream_error", "tool_failed"),
    Draining: (503, "server_error", "draining"),
    ToolsAway: (503, "server_error", "tools_unavailable"),
    StoreUnavailable: (503, "server_error", "store_unavailable"),
    NotStorable: (400, "invalid_request_error", None),
    SchemaOld: (503, "server_error", "schema_old"),
    BackgroundUnavailable: (503, "server_error", "background_unavailable"),
    ConfigStale: (503, "server_error", "config_stale"),
    ConfigError: (400, "invalid_request_error", "config_invalid"),
}

_encode = msgspec.json.Encoder().encode


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error as a client sees it."""

    status: int
    message: str
    type: str
    code: str | None
    param: str | None
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def body(self) -> bytes:
        """OpenAI's error body."""
        return _encode({"error": self.as_dict()})

    def as_dict(self) -> dict[str, Any]:
        """The `error` object: four strings or nulls."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def describe(error: GatewayError) -> ErrorAnswer:
    """The answer to an error."""
    status, kind, code = next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)
    param: str | None = None
    if isinstance(error, InvalidRequest):
        param = error.param
        code = error.code or code
    elif isinstance(error, UpstreamError):
        status, kind, code, param = _upstream(error, status, kind, code)
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(math.ceil(error.retry_after_s)).encode()))
    if not error.retryable and status in (408, 409, 429, *range(500, 600)):
        # SDKs send 408, 409, 429 and 5xx again by themselves; here that cannot help.
        headers.append((b"x-should-retry", b"false"))
    return ErrorAnswer(status, error.message, kind, code, param, tuple(headers))


def internal() -> ErrorAnswer:
    """The answer to a defect of the gateway's own: says nothing of its inside."""
    return ErrorAnswer(
        500,
        "The gateway failed to answer; the trace id in the headers names the case.",
        "server_error",
        "internal_error",
        None,
        (),
    )


def _upstream(
    error: UpstreamError, status: int, kind: str, code: str | None
) -> tuple[int, str, str | None, str | None]:
    """An upstream's refusal keeps the upstream's own status and words; its overload keeps its meaning."""
    if isinstance(error, UpstreamDenied):
        return status, kind, code, None
    if isinstance(error, UpstreamRefused) and error.status is not None and error.status < 500:
        missing = "not_found" if error.status == 404 else None
        return error.status, error.kind or "invalid_request_error", error.code or missing, error.param
    if error.status == 429:
        return 429, error.kind or "rate_limit_error", error.code or "rate_limit_exceeded", error.param
    if error.status == 503:
        return 503, "upstream_error", "upstream_unavailable", None
    return status, kind, code, None
