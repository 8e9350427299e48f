"""What can go wrong, as meanings.

Knows nothing of HTTP: status, `type` and `code` of each error stand in one table in `gateway/api/errors.py`.

    GatewayError
    ├── InvalidRequest              the request itself is wrong; `param` names the field
    │   ├── ContextTooLong          the backend says the prompt does not fit
    │   ├── BodyTooLarge            larger than `server.body_limit_mb`
    │   └── UnreadableBody          compressed in a way this server does not read
    ├── Unauthenticated             no key, or one nobody knows
    ├── NotAllowed                  a known key that may not do this
    ├── NoSuchModel                 unknown to this caller (a forbidden model too)
    ├── NotFound                    a stored thing that is not there, or not this owner's
    ├── IdempotencyConflict         a key that was used for another request
    ├── SessionBusy                 another turn is under way in the session
    ├── EffectSettled               an effect whose outcome is known, or that somebody is making
    ├── ApprovalDecided             somebody has decided it
    │   ├── ApprovalExpired         nobody has, in time
    │   └── ApprovalLocked          the wrong code was typed too often
    ├── AwaitsApproval              a background run is laid aside until a human has decided
    ├── CompensationFailed          something of a turn that failed could not be undone
    ├── RateLimited                 try again after `retry_after_s`
    │   └── QueueFull               too many wait for a place at the backends already
    ├── BudgetExceeded              what may be spent is spent
    ├── UpstreamError               the far side of a backend failed
    │   ├── UpstreamRefused         it answered 4xx: the request will not get better by itself
    │   │   └── UpstreamDenied      it refused the gateway's own credentials
    │   ├── UpstreamUnavailable     refused connection, 503, overloaded
    │   ├── UpstreamHungUp          it closed a connection that was kept, and nothing of an answer came
    │   ├── UpstreamTimeout         a wait ran into its bound
    │   └── UpstreamBroken          the answer is cut or not what the protocol allows
    ├── ToolFailed                  ends the turn; failures the model may mend are results, not errors
    ├── HookFailed                  an operator's hook broke its promise
    ├── Draining                    this process is about to stop
    ├── ToolsAway                   a server of tools is away that has to be there
    ├── StoreUnavailable            what must be durable cannot be written
    │   ├── NotStorable             the database does not take a value of the request
    │   └── SchemaOld               the database's tables are those of another version
    ├── BackgroundUnavailable       the queue of background runs cannot be reached
    ├── ConfigStale                 this replica may be behind the others and must not decide
    └── ConfigError                 files or settings are wrong; carries every problem
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Of a name that a client made up, an error and the log say this many characters.
_SHOWN: Final = 100


class GatewayError(Exception):
    """An error whose `message` is safe to show to a client.

    Attributes:
        message: one sentence or two, without secrets, URLs or stack traces.
        retryable: whether the same request could succeed if it were sent again.
        retry_after_s: seconds the far side or a limit asked to wait, or None.
    """

    retryable: bool = False

    def __init__(self, message: str, *, retryable: bool | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        if retryable is not None:
            self.retryable = retryable


class InvalidRequest(GatewayError):
    """The request is wrong. `param` names the field in OpenAI's notation, for example `messages[1].role`."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextTooLong(InvalidRequest):
    """The prompt does not fit into the backend's context."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class BodyTooLarge(InvalidRequest):
    """The request body is larger than the configured limit."""


class UnreadableBody(InvalidRequest):
    """The request body is encoded in a way this server does not read."""


class Unauthenticated(GatewayError):
    """No key was sent, or one that nobody knows."""


class NotAllowed(GatewayError):
    """The key is known and may not do this."""


class NoSuchModel(GatewayError):
    """No model of this name exists for this caller."""

    def __init__(self, name: str) -> None:
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
        super().__init__(f"The model `{shown}` does not exist or you do not have access to it.")
        self.name = name


class NotFound(GatewayError):
    """A stored thing that does not exist, or belongs to somebody else."""


class IdempotencyConflict(GatewayError):
    """An `Idempotency-Key` that was used for another request."""


class SessionBusy(GatewayError):
    """Another turn is under way in the session; the next one goes on from what it says."""

    retryable = True


class EffectSettled(GatewayError):
    """An effect that is not to be settled or repeated: its outcome is known, or somebody is making it."""


class RunEnded(GatewayError):
    """A run that is not to be begun again: it is under way, or has completed."""


class ApprovalDecided(GatewayError):
    """An approval that somebody has decided."""


class ApprovalExpired(ApprovalDecided):
    """An approval that nobody has given in time."""


class ApprovalLocked(ApprovalDecided):
    """An approval for which the wrong code was typed too often."""


class AwaitsApproval(GatewayError):
    """A background run has to wait for a human, for longer than anybody should hold it. No client is told this.

    Attributes:
        approvals: what it waits for.
        until: seconds since the epoch at which it goes on in any case.
    """

    retryable = True

    def __init__(self, approvals: tuple[str, ...], until: float) -> None:
        super().__init__(f"It waits for approval: {', '.join(approvals)}.")
        self.approvals = approvals
        self.until = until


class CompensationFailed(GatewayError):
    """Something that a failed turn has done could not be undone; operators can try again."""


class RateLimited(GatewayError):
    """Too much at once; `retry_after_s` says how long to wait, where that is known."""

    retryable = True


class QueueFull(RateLimited):
    """Every place at a model's backends is taken, and as many wait for one as may."""


class BudgetExceeded(GatewayError):
    """What may be spent is spent, or would be by this turn; sent again at once, it would be refused again."""


class UpstreamError(GatewayError):
    """The far side of a backend failed.

    Attributes:
        status: the HTTP status the upstream answered, or None where there was no answer.
        code: the upstream's own error code, if it sent one.
        param: the field the upstream complained about, if it named one.
        kind: the upstream's own error type, if it sent one.
    """

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        retry_after_s: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, retry_after_s=retry_after_s)
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind


class UpstreamRefused(UpstreamError):
    """The upstream answered 4xx: its own words reach the client, the request will not get better by itself."""

    retryable = False


class UpstreamDenied(UpstreamRefused):
    """The upstream refused the gateway's own credentials: nothing the client could mend."""


class UpstreamUnavailable(UpstreamError):
    """Connection refused, 5xx, overloaded: nothing was processed, or so the upstream says."""


class UpstreamHungUp(UpstreamError):
    """The upstream closed a connection that was kept between requests, and nothing of an answer came."""


class UpstreamTimeout(UpstreamError):
    """A wait on the upstream ran into its bound."""


class UpstreamBroken(UpstreamError):
    """The upstream's answer is cut, or not what its protocol allows."""


class ToolFailed(GatewayError):
    """A tool failed in a way that ends the turn."""


class ToolChanged(GatewayError):
    """A tool of a run is not the one any more that the run was begun with."""


class HookFailed(GatewayError):
    """An operator's hook failed or answered with something that cannot be."""


class Draining(GatewayError):
    """This process stops soon and takes no new work."""

    retryable = True


class ToolsAway(GatewayError):
    """A server of tools is away without which this process is not ready."""

    retryable = True


class StoreUnavailable(GatewayError):
    """Something that has to be durable could not be written or read."""

    retryable = True


class NotStorable(StoreUnavailable):
    """The database is there, and does not take a value of the request, such as a text with a NUL character."""

    retryable = False


class SchemaOld(StoreUnavailable):
    """The database's tables are not those of this version, and somebody else decides when they change."""

    retryable = False


class BackgroundUnavailable(GatewayError):
    """Background work cannot be taken on: its queue cannot be reached. What is answered at once is not affected."""

    retryable = True


class ConfigStale(GatewayError):
    """This replica does not know that its version is the active one, and must not decide."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file: where (`line` counts from 1; 0 when the whole file is meant) and what."""

    file: str
    line: int
    message: str
    severity: str = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class ConfigError(GatewayError):
    """Files or settings are wrong. `problems` holds every one of them, not only the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(p) for p in problems) or "The configuration is invalid.")
        self.problems = problems
